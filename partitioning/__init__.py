"""Everything that happens before training: load a graph, split its nodes, assign them to partitions, write them."""
