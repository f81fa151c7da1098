"""The one place that imports ogb, which takes 3 s: only where an OGB graph is loaded or scored."""

import sys
from typing import Any


def import_ogb() -> Any:
    """The package ogb.nodeproppred; `outdated`, with which ogb asks the network for its newest version, is hidden."""
    from partitioning.dgl_import import dgl  # noqa: F401  ogb imports DGL, too; this module sets it up first

    hidden = sys.modules.get("outdated")
    sys.modules["outdated"] = None  # type: ignore[assignment]
    try:
        import ogb.nodeproppred
        import ogb.nodeproppred.dataset
    finally:
        del sys.modules["outdated"]
        if hidden is not None:
            sys.modules["outdated"] = hidden
    return ogb.nodeproppred
