"""DGL's distributed engine on our partitions: a server for each, clients in the workers."""
