"""The partition directory: arrays that any reader of npy opens, and DGL's own files beside them where they are wanted.

    PARTITION_DIR/NAME-METHOD-OBJECTIVE-PARTS/
        meta.json                          counts, task, split, request, versions, checksums (see Meta)
        part0/*.npy                        the part, an array a file (see npy_files.py)
        NAME-METHOD-OBJECTIVE-PARTS.json   with partition.dgl_files: DGL's partition config
        part0/*.dgl                        and its files (see dgl_files.py), for `dgl.distributed.load_partition`
        part1/ ...

A directory of version 1, which has DGL's files alone, one made by DGL's `partition_graph` (no meta.json), or by the
public Retexo code (a meta.json without a version), is read where DGL is installed; what it does not say (degrees of
halo nodes, the number of classes) the workers agree on when they start.

N nodes, E edges, F features, C classes, I inner nodes of a part, H its halo nodes.
"""
