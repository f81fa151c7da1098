"""Importing DGL: `from partitioning.dgl_import import dgl`. No other module of the project imports DGL itself.

DGL chooses its backend when it is imported and, where none is chosen, says so and writes a file into the home
directory; the environment variable set here avoids both. It looks for the `packaging` package without declaring it and
falls back on a copy that setuptools no longer has: with `packaging` installed, DGL 1.1.3 needs no alias.
"""

import os
import warnings

os.environ.setdefault("DGLBACKEND", "pytorch")  # before the import below: DGL reads it once

import packaging.version  # noqa: F401  a clear error here, instead of one about setuptools inside DGL

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecated names of torch and scipy that DGL uses while it is imported
    import dgl

__all__ = ["dgl"]
