"""Which row of its arrays a node has: by position, or by its id.

N nodes.
"""

import numpy as np

from partitioning.array_checks import Array, Ints, check_unique, refuse
from partitioning.node_names import Names, hash_names


class Nodes:
    """The nodes and their rows: by position, or by ids. New ids become nodes where no table names all of them."""

    def __init__(self, num_nodes: int, ids: Array | None, grows: bool, where: str = "") -> None:
        self.num_nodes, self.ids, self.grows, self.kind = num_nodes, None, grows, "node"
        self._names: list[Array] = []
        if ids is not None:
            import pandas as pd

            keys = self._keys(ids)
            self.index = pd.Index(keys)
            if not self.index.is_unique:
                check_unique(keys, where, ids)
            self.ids = keys

    @property
    def named(self) -> bool:
        """Whether ids are names."""
        return bool(self._names)

    @property
    def expected(self) -> str:
        """Of an id, for a message."""
        return f"expected one of the {self.num_nodes} {self.kind} ids"

    def _keys(self, ids: Array) -> Ints:
        """As numbers; names are kept."""
        if ids.dtype != object:
            return ids
        self._names.append(ids)
        return hash_names(ids)

    def all_names(self) -> Names | None:
        return (
            Names.of(str(name) for piece in self._names for name in piece) if self._names else None
        )

    def rows(
        self,
        wanted: Array,
        where: str,
        begin: int = 0,
        *,
        keep_unknown: bool = False,
        remedy: str = "",
    ) -> Ints:
        """The row of each id, int64 [K], the first of which is in row `begin` of its file.

        keep_unknown: whether an id that no node has gets the row -1, and is not refused.
        """
        if self.ids is None:
            known = (wanted >= 0) & (wanted < self.num_nodes)
            return np.where(known, wanted, -1) if keep_unknown else wanted
        import pandas as pd

        if self._names and wanted.dtype != object:
            wanted = wanted.astype(str).astype(object)
        keys = hash_names(wanted) if wanted.dtype == object else wanted
        rows: Ints = self.index.get_indexer(
            pd.Index(keys)
        )  # a tenth of the time of np.searchsorted
        if self.grows and (rows < 0).any():
            _, first = np.unique(keys[rows < 0], return_index=True)
            new = np.flatnonzero(rows < 0)[np.sort(first)]
            if wanted.dtype == object:
                self._names.append(wanted[new])
            self.ids = np.concatenate((self.ids, keys[new]))
            self.index, self.num_nodes = pd.Index(self.ids), len(self.ids)
            rows = self.index.get_indexer(pd.Index(keys))
        if not keep_unknown:
            refuse(wanted, rows < 0, where, self.expected + remedy, begin)
        return rows
