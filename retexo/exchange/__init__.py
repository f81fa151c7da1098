"""Which boundary rows and partial sums each partition sends, and how they are encoded.

A row is encoded in `coding/`; `layer_exchange.py` exchanges the rows of one layer.
"""
