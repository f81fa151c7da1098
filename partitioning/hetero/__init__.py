"""Heterogeneous graphs: types of nodes, and relations between them."""
