"""On the path of a Python that starts: there is no DGL, as on Python 3.12."""

import sys

sys.modules["dgl"] = None  # type: ignore[assignment]
