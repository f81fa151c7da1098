"""A trained model in memory: predictions for a graph or its partitions, also over HTTP."""
