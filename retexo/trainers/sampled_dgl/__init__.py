"""DGL's distributed engine (`dgl.distributed`) on our partitions: one server per partition, clients
in the workers.
"""
