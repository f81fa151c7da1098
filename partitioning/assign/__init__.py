"""Assigns nodes to partitions: at random, by METIS or km1, or as a file says."""
