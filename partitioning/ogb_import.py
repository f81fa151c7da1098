"""The one place that imports ogb, which takes 3 s: only where an OGB graph is loaded or scored."""

import sys
from typing import Any


def import_ogb() -> Any:
    """The package ogb.nodeproppred.

    Hidden from it are DGL, which it does without, and `outdated`, which asks the network for its newest version.
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
