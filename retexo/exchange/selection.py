"""What a sender sends for a boundary: which rows, which partial sums, and how they are written.

I inner nodes, F width of a row, D width of a row after the weights; of one ordered pair of parts: L rows, R targets,
E edges that are to be served.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from retexo.exchange.coding.rows import RowFormat, Rows, encode, row_sizes
from retexo.exchange.coding.values import Precision, value_bytes
from retexo.exchange.cover import minimum_cover
from retexo.nn.matrix import Matrix, as_matrix, is_sparse, row_sums

Ints = NDArray[np.signedinteger[Any]]
Mask = NDArray[np.bool_]
CHUNK_CELLS = 1 << 22
"""Values of partial sums that are looked at at a time."""


@dataclass(frozen=True)
class MessageFormat:
    """How a message of rows is written."""

    projected: bool
    sparse: bool

    @property
    def code(self) -> int:
        return 2 * self.projected + self.sparse

    @classmethod
    def of_code(cls, code: int) -> "MessageFormat":
        return cls(bool(code & 2), bool(code & 1))

    def row_format(self, precision: Precision) -> RowFormat:
        return RowFormat("sparse" if self.sparse else "dense", precision)


DENSE, SPARSE, PROJECTED = MessageFormat(False, False), MessageFormat(False, True), MessageFormat(True, False)


@dataclass(frozen=True, eq=False)
class LocalRows:
    """The rows that a worker sends from: those of its inner nodes, before and after a layer's weights."""

    rows: Tensor
    """[I, F] on the host."""
    scale: Tensor | None
    """[I] what the aggregator multiplies a source with; None for ones."""
    project: Callable[[Matrix], Tensor]
    """[n, F] -> [n, D] after the weights, on the host."""
    projected_width: int
    precision: Precision

    @cached_property
    def sparse(self) -> sp.csr_array | None:
        """The rows in CSR, if they are sparse."""
        return sp.csr_array(self.rows.numpy()) if is_sparse(self.rows) else None

    @cached_property
    def sparse_sizes(self) -> Ints:
        """Bytes that each row takes in the sparse form, int64 [I]; looked at in chunks.

        Rows that nobody needs are NaN, which not every precision has a code for.
        """
        step = max(1, CHUNK_CELLS // max(1, self.rows.shape[1]))
        places = [slice(first, first + step) for first in range(0, len(self.rows), step)]
        chunks = (self.rows[place].nan_to_num() if self.sparse is None else self.sparse[place] for place in places)
        sizes = [row_sizes(chunk, SPARSE.row_format(self.precision)) for chunk in chunks]
        return np.concatenate([np.zeros(0, np.int64), *sizes])

    @cached_property
    def projected(self) -> Tensor:
        """[I, D] all rows after the weights."""
        return self.project(self.rows if self.sparse is None else as_matrix(self.sparse))

    def _all(self, form: MessageFormat) -> Rows:
        """All rows, as a message of the form is made from them."""
        if form.projected:
            return self.projected
        return self.rows if self.sparse is None else self.sparse

    def take(self, nodes: Ints, form: MessageFormat) -> Rows:
        values = self._all(form)
        return values.index_select(0, torch.from_numpy(nodes)) if isinstance(values, Tensor) else values[nodes]

    def add_up(self, nodes: Ints, target: Ints, num_targets: int, form: MessageFormat) -> Rows:
        """Scaled rows of `nodes`, int64 [E], added up by target, int64 [E]: [num_targets, F], after the weights D."""
        dtype = self.rows.numpy().dtype
        weight = np.ones(len(nodes), dtype) if self.scale is None else self.scale.numpy()[nodes].astype(dtype)
        matrix = sp.csr_array((weight, (target, nodes)), shape=(num_targets, len(self.rows)))
        values = self._all(form)
        if not isinstance(values, Tensor):
            sums: sp.csr_array = matrix @ values
            return sums
        rows, row_ptr = (
            torch.from_numpy(each.astype(np.int32, copy=False)) for each in (matrix.indices, matrix.indptr)
        )
        return row_sums(values, rows, row_ptr, torch.from_numpy(matrix.data))


@dataclass(frozen=True, eq=False)
class Selection:
    """Of the rows and targets with an edge to be served, those that something is sent for; all ascending."""

    form: MessageFormat
    rows: Mask
    """[L']"""
    sums: Mask
    """[R']"""


def choose(
    owned: LocalRows, nodes: Ints, source: Ints, target: Ints, num_targets: int, *, sums: bool, projected: bool
) -> Selection:
    """Choose the form, and with it the rows and sums, that take the fewest bytes.

    Args:
        nodes: int64 [L'] inner nodes with an edge to be served.
        source, target: int64 [E'] the ends of these edges, in [0, L') and [0, num_targets); each of them occurs.
        sums: whether a partial sum may be sent for a target.
        late: whether the receiver can take rows after the weights.
    """
    best: tuple[int, Selection] | None = None
    for form, row_weight, sum_weight in _candidates(owned, nodes, source, target, num_targets, sums, projected):
        if sums:
            cover = minimum_cover(source, target, row_weight, sum_weight)
            choice, weight = Selection(form, cover.left_mask, cover.right_mask), cover.weight
        else:
            choice = Selection(form, np.ones(len(nodes), bool), np.zeros(num_targets, bool))
            weight = int(row_weight.sum())
        if best is None or weight < best[0]:
            best = weight, choice
    assert best is not None
    return best[1]


def _candidates(
    owned: LocalRows, nodes: Ints, source: Ints, target: Ints, num_targets: int, sums: bool, projected: bool
) -> list[tuple[MessageFormat, Ints, Ints]]:
    """Forms with the bytes of each row [L'] and of each sum [R'], without those that cannot be the best."""
    dtype = owned.rows.dtype

    def fixed(form: MessageFormat, width: int) -> tuple[MessageFormat, Ints, Ints]:
        size = value_bytes(width, dtype, owned.precision)
        return form, np.full(len(nodes), size), np.full(num_targets, size)

    forms = [fixed(DENSE, owned.rows.shape[1])]
    if projected:
        forms.append(fixed(PROJECTED, owned.projected_width))
    row_weight = owned.sparse_sizes[nodes]
    # Else sums, which have no more zeros than their rows, but for some that cancel, are not the shortest so either.
    if (row_weight < np.minimum(forms[0][1], forms[-1][1])).any():
        sum_weight = _sum_sizes(owned, nodes[source], target, num_targets) if sums else forms[0][2]
        forms.append((SPARSE, row_weight, sum_weight))
    return [form for form in forms if not any(_is_beaten(form, other) for other in forms if other is not form)]


def _is_beaten(form: tuple[MessageFormat, Ints, Ints], other: tuple[MessageFormat, Ints, Ints]) -> bool:
    """Whether every row and sum is shorter in the other form; of equal ones the first stays."""
    shorter = bool((other[1] <= form[1]).all() and (other[2] <= form[2]).all())
    equal = shorter and bool((other[1] == form[1]).all() and (other[2] == form[2]).all())
    return shorter and (not equal or other[0].code < form[0].code)


def _sum_sizes(owned: LocalRows, nodes: Ints, target: Ints, num_targets: int) -> Ints:
    """Bytes of the sum of all rows of each target, int64 [R'], a chunk of targets at a time."""
    order = np.argsort(target, kind="stable")
    nodes, target = nodes[order], target[order]
    step = max(1, CHUNK_CELLS // max(1, owned.rows.shape[1]))
    sizes = [np.zeros(0, dtype=np.int64)]
    for first in range(0, num_targets, step):
        end = min(first + step, num_targets)
        edges = slice(*np.searchsorted(target, (first, end)))
        sums = owned.add_up(nodes[edges], target[edges] - first, end - first, SPARSE)
        sizes.append(row_sizes(sums, SPARSE.row_format(owned.precision)))
    return np.concatenate(sizes)


def write(owned: LocalRows, choice: Selection, nodes: Ints, source: Ints, target: Ints) -> Tensor:
    """The chosen rows, then the chosen sums of what no chosen row serves, as bytes; uint8 [B]. As in `choose`."""
    rest = choice.sums[target] & ~choice.rows[source]
    place = np.cumsum(choice.sums) - 1
    sums = owned.add_up(nodes[source[rest]], place[target[rest]], int(choice.sums.sum()), choice.form)
    vectors = _stack(owned.take(nodes[choice.rows], choice.form), sums)
    return encode(vectors, choice.form.row_format(owned.precision))


def _stack(rows: Rows, sums: Rows) -> Rows:
    if isinstance(rows, Tensor) or isinstance(sums, Tensor):
        assert isinstance(rows, Tensor)
        assert isinstance(sums, Tensor)
        return torch.cat((rows, sums))
    both: list[sp.csr_array] = [rows, sums]
    return sp.csr_array(sp.vstack(both, format="csr"))
