"""DGL's own distributed engine (`dgl.distributed`) on our partitions: a server a part, and clients in the workers."""
