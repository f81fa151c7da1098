"""Maps node ids to rows.

N nodes.
"""

import re
from typing import Any

import numpy as np

from partitioning.errors import InputError
from partitioning.graph.array_checks import (
    MAX_EXACT,
    Array,
    Ints,
    check_integers,
    check_unique,
    refuse,
)
from partitioning.graph.graph_data import NodeTable
from partitioning.graph.node_names import Names, decode_names, hash_names
from partitioning.read.cells import NUMBER


class Nodes:
    """Nodes of a graph; without ids they are known by position.

    If no table lists all nodes, unknown ids become new nodes.
    """

    def __init__(
        self,
        num_nodes: int,
        ids: Array | None,
        grows: bool,
        where: str = "",
        kind: str = "node",
    ) -> None:
        """Index the ids: integers, or names as objects; None: nodes are known by position.

        InputError for an id that is there twice; where: file and column, for its message.
        """
        self.num_nodes, self.ids, self.grows, self.kind = num_nodes, None, grows, kind
        self._names: list[Array] = []
        if ids is not None:
            import pandas as pd

            keys = self._keys(ids)
            self.index = pd.Index(keys)
            if not self.index.is_unique:
                check_unique(keys, where, ids)
            self.ids = keys

    @classmethod
    def of_keys(cls, keys: Ints, *, named: bool) -> "Nodes":
        """Return nodes by the keys [N] of a partition directory: ids, or hashes of names.

        The names themselves are not known.
        """
        nodes = cls(len(keys), keys, grows=False, where="ids of the directory")
        nodes._names = [np.zeros(0, object)] if named else []
        return nodes

    @classmethod
    def of_table(cls, table: NodeTable) -> "Nodes":
        """Return the nodes [N] of a graph by the ids, or names, of the data set."""
        return cls(table.num_nodes, table.given_ids, grows=False)

    @property
    def named(self) -> bool:
        """Whether nodes are known by names, not by integers."""
        return bool(self._names)

    @property
    def expected(self) -> str:
        """Return the end of an error message about an unknown id: which ids are expected."""
        return f"expected one of the {self.num_nodes} {self.kind} ids"

    def _keys(self, ids: Array) -> Ints:
        """Return ids as int64 keys, and store names; InputError for lone surrogates."""
        if ids.dtype != object and not self.named:
            return ids
        self._names.append(_as_names(ids))
        return hash_names(self._names[-1])

    def use_names(self) -> None:
        """Know the nodes by name from now on: integer ids become their text, in place."""
        assert self.ids is not None
        self._names = [_as_names(self.ids)]
        self._index(hash_names(self._names[0]))

    def _index(self, keys: Ints) -> None:
        import pandas as pd

        self.ids, self.index, self.num_nodes = keys, pd.Index(keys), len(keys)

    def extended(self, ids: Array, where: str, remedy: str) -> "Nodes":
        """Return these nodes, then others: ids [n].

        InputError, which ends with `remedy`, for one of these nodes, and for an id that is there
        twice.
        """
        import pandas as pd

        is_known = self.find_rows(ids, where, keep_unknown=True) >= 0
        refuse(ids, is_known, where, f"in the graph already; {remedy}")
        known = np.arange(self.num_nodes) if self.ids is None else self.ids
        more = Nodes(self.num_nodes + len(ids), None, grows=False)
        more._names = [*self._names]
        keys = more._keys(ids)
        check_unique(keys, where, ids)
        more.ids = np.concatenate((known, keys))
        more.index = pd.Index(more.ids)
        return more

    def all_names(self) -> Names | None:
        """Return the names of all nodes; None where ids are integers."""
        return (
            Names.of(str(name) for piece in self._names for name in piece) if self._names else None
        )

    def find_rows(
        self,
        wanted: Array,
        where: str,
        begin: int = 0,
        *,
        keep_unknown: bool = False,
        remedy: str = "",
    ) -> Ints:
        """Return the row of each id, int64 [K]; unknown ones become nodes, in place, if these grow.

        Without ids, `wanted` is returned unchecked, unless unknown ones are kept.

        Args:
            wanted: [K] ids.
            where: File and column, for messages.
            begin: Row of the file that the first id is in.
            keep_unknown: Whether an unknown id gets the row -1; else it is refused.
            remedy: What a message ends with.

        Raises:
            InputError: an id is unknown, or a name where ids are integers.
        """
        if self.ids is None:
            known = (wanted >= 0) & (wanted < self.num_nodes)
            return np.where(known, wanted, -1) if keep_unknown else wanted
        import pandas as pd

        wanted = _as_names(wanted) if self.named else wanted
        if not self.named and wanted.dtype == object:
            raise InputError(
                f"{where}: ids are names, such as {wanted[0]!r}; those of the graph are integers"
            )
        keys = hash_names(wanted) if wanted.dtype == object else wanted
        rows: Ints = self.index.get_indexer(
            pd.Index(keys)
        )  # a tenth of the time of np.searchsorted
        if self.grows and (rows < 0).any():
            _, first = np.unique(keys[rows < 0], return_index=True)
            new = np.flatnonzero(rows < 0)[np.sort(first)]
            if wanted.dtype == object:
                self._names.append(wanted[new])
            self._index(np.concatenate((self.ids, keys[new])))
            rows = self.index.get_indexer(pd.Index(keys))
        if not keep_unknown and (rows < 0).any():
            hint = self._hint_of_spelling(wanted[rows < 0][0])
            refuse(wanted, rows < 0, where, self.expected + hint + remedy, begin)
        return rows

    def _hint_of_spelling(self, unknown: Any) -> str:
        """Return what a message says of an unknown name that is one of the names but for its form.

        That is blanks around it, leading zeros, capitals, or another way to write a number.
        """
        plain = _plain_name(unknown)
        names = (str(name) for piece in self._names for name in piece)
        known = next((name for name in names if _plain_name(name) == plain), None)
        if known is None:
            return ""
        return f"; {known!r} is another one: write it in the same way in both tables"


def _plain_name(name: Any) -> str:
    """Return a form that spellings of a name share: 100000 and 1E+05, 007 and 7, Bob and bob.

    Numbers that are not whole, or that float64 does not hold exactly, stay as they are written.
    """
    text = str(name).strip().lstrip("0").casefold()
    number = float(text) if re.fullmatch(NUMBER, text) else float("nan")
    return str(int(number)) if number.is_integer() and abs(number) < MAX_EXACT else text


def check_ids(array: Array, where: str) -> Array:
    """Return an array of ids [n] as int64, or of names as objects of str."""
    return decode_names(array, where) if array.dtype.kind in "US" else check_integers(array, where)


def _as_names(ids: Array) -> Array:
    return ids if ids.dtype == object else ids.astype(str).astype(object)
