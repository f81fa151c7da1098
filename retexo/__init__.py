"""Layer-wise training of graph neural networks over partitioned graphs (lazy message passing, arXiv 2302.13053)."""

__version__ = "0.1.0"
