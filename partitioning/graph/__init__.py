"""The graph in memory: node types, relations, names of nodes, and checks of their arrays."""
