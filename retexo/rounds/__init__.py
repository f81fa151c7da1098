"""The rounds that train one layer: gradient message and compression, early stopping, recovery."""
