"""The feature pipeline: from the columns of a table, or a matrix, to what a model reads.

A loader decides the role of each column (`roles.py`) and describes the feature columns by a
`Schema` (`graph/schema.py`). After the split is drawn, `fit_pipeline` learns from the training
nodes how to fill blanks, scale numbers and encode categories, and `apply_pipeline` does it
(`encoder.py`). The fitted state is JSON; it is stored in meta.json, so that later tables are
encoded in the same way.
"""
