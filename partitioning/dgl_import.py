"""Imports DGL, which is optional: `dgl = import_dgl("a purpose")`. No other module imports it.

Without a chosen backend DGL prints a message and writes a file into the home directory when it is
imported; the environment variable set here avoids both.
"""

import os
import warnings
from importlib.util import find_spec
from typing import Any

from partitioning.errors import InputError


def has_dgl() -> bool:
    """Return whether DGL is installed, without importing it."""
    return find_spec("dgl") is not None


def require_dgl(use: str) -> None:
    """Raise InputError that begins with `use` where DGL is not installed."""
    if not has_dgl():
        raise InputError(
            f"{use}: needs DGL, which is not installed; it has wheels for Python up to 3.11: "
            "pip install 'dgl>=1.1.3,<2'"
        )


def import_dgl(use: str) -> Any:
    """Import DGL without its warnings, with DGLBACKEND=pytorch where the variable is not set.

    InputError that begins with `use` where it is not installed.
    """
    require_dgl(use)
    os.environ.setdefault("DGLBACKEND", "pytorch")  # before the import below: DGL reads it once
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # deprecated names of torch and scipy that DGL uses while it is imported
        import dgl
    return dgl
