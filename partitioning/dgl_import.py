"""Importing DGL: `dgl = import_dgl("what for")`. No other module of the project imports DGL itself.

DGL chooses its backend when it is imported and, where none is chosen, says so and writes a file into the home
directory; the environment variable set here avoids both. It looks for the `packaging` package without declaring it and
falls back on a copy that setuptools no longer has: with `packaging` installed, DGL 1.1.3 needs no alias.
"""

import os
import warnings
from importlib.util import find_spec
from typing import Any

from partitioning.errors import InputError


def has_dgl() -> bool:
    """Whether DGL is installed; it is not imported for that."""
    return find_spec("dgl") is not None


def require_dgl(use: str) -> None:
    """InputError that begins with `use` where DGL is not installed."""
    if not has_dgl():
        raise InputError(
            f"{use}: needs DGL, which is not installed; it has wheels for Python up to 3.11: "
            "pip install 'dgl>=1.1.3,<2'"
        )


def import_dgl(use: str) -> Any:
    """The package dgl; InputError that begins with `use` where it is not installed."""
    require_dgl(use)
    os.environ.setdefault("DGLBACKEND", "pytorch")  # before the import below: DGL reads it once
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # deprecated names of torch and scipy that DGL uses while it is imported
        import dgl
    return dgl
