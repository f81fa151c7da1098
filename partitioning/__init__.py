"""Everything before training: load a graph, split its nodes, assign them, write partitions."""
