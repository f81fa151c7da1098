"""The partition directory: DGL's own files, and beside them what DGL does not keep.

    PARTITION_DIR/NAME-METHOD-OBJECTIVE-PARTS/
        meta.json                          ours: counts, task, split, request, versions, checksums (see Meta)
        NAME-METHOD-OBJECTIVE-PARTS.json   DGL's partition config: node_map, edge_map, files of each part
        part0/
            graph.dgl        in-edges of the part's inner nodes; inner nodes first, then halo nodes
                             ndata: _ID, inner_node, part_id, out_deg     edata: _ID, inner_edge
            node_feat.dgl    of inner nodes: _N/feat, _N/label, _N/{train,val,test}_mask, _N/orig_id, _N/in_deg,
                             _N/out_deg (degrees in the whole graph, self loops left out)
            edge_feat.dgl    empty
        part1/ ...

`dgl.distributed.load_partition` reads such a directory. A directory made by DGL's `partition_graph` (no meta.json), or
by the public Retexo code (a meta.json without a version), is read too; what it does not say (degrees of halo nodes,
the number of classes) the workers agree on when they start.

N nodes, E edges, F features, C classes, I inner nodes of a part, H its halo nodes.
"""
