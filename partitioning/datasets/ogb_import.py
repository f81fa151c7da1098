"""Imports ogb, which takes 3 s, where an OGB graph is loaded. No other module imports it."""

import sys
from typing import Any


def import_ogb() -> Any:
    """Import ogb.nodeproppred without DGL, which it does not need, and without `outdated`.

    `outdated` would ask the network for the newest version of ogb. Raises ImportError where ogb is
    not installed.
    """
    hidden = {name: sys.modules.get(name) for name in ("dgl", "outdated")}
    sys.modules |= dict.fromkeys(hidden)  # type: ignore[arg-type]
    try:
        import ogb.nodeproppred
        import ogb.nodeproppred.dataset  # noqa: F401
    finally:
        for name, module in hidden.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
    return ogb.nodeproppred
