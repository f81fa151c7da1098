"""New nodes and other changes: of a graph in memory, and of a partition directory."""
