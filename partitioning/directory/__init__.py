"""The partition directory: npy files that any program can read and, where wanted, DGL's own files.

    PARTITION_DIR/NAME-METHOD-OBJECTIVE-PARTS/
        meta.json            counts, task, split, request, versions, checksums (see Meta)
        part0/...            npy files, one array each (see npy_files.py)
        NAME-...-PARTS.json  DGL's partition config, with partition.dgl_files (see dgl_config.py)
        part0/*.dgl          DGL's files, for dgl.distributed.load_partition (see dgl_files.py)
        part1/ ...

Directories with DGL's files alone are imported into ours (import_dgl.py), where DGL is installed:
those of DGL's `partition_graph` (no meta.json) and of the public Retexo code (a meta.json without a
version). The workers agree at the start on what such a directory lacks: degrees of halo nodes,
number of classes.
"""
