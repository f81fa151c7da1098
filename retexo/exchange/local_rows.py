"""Rows of a worker as sent: before or after a layer's weights, single or summed, in a format.

I inner nodes, F input width, D width after the layer's weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from partitioning.thread_pool import in_threads
from retexo.arrays import Int32Array, IntArray, WeightArray, bincount, csr_from_counts, take
from retexo.exchange.coding.columns import divide_columns
from retexo.exchange.coding.rows import RowFormat, Rows, row_sizes
from retexo.exchange.coding.values import Precision, value_bytes
from retexo.models.matrix import Matrix, as_matrix, is_sparse, placeholder_rows, sum_rows, to_dense

HOST = torch.device("cpu")
MAX_CHUNK_VALUES = 1 << 22
"""Maximum number of values that are converted or counted at a time."""


@dataclass(frozen=True)
class MessageFormat:
    """How the vectors of a message are encoded."""

    projected: bool
    """Whether they are multiplied by the layer's weights."""
    sparse: bool
    scaled: bool = False
    """Whether each piece begins with an exponent for each column (coding/columns.py)."""

    @property
    def code(self) -> int:
        """Number of the format in message headers."""
        return 4 * self.scaled + 2 * self.projected + self.sparse

    @property
    def rank(self) -> tuple[bool, int]:
        """Return the sort key among equally long formats; the lowest is chosen."""
        return self.projected, self.code

    @classmethod
    def from_code(cls, code: int) -> "MessageFormat":
        """Return the format with this number."""
        return cls(bool(code & 2), bool(code & 1), bool(code & 4))

    def row_format(self, precision: Precision) -> RowFormat:
        """Return the rows' format (coding/rows.py): this encoding in a precision."""
        return RowFormat("sparse" if self.sparse else "dense", precision)


DENSE, SPARSE, PROJECTED = (
    MessageFormat(False, False),
    MessageFormat(False, True),
    MessageFormat(True, False),
)


@dataclass(eq=False)
class LocalRows:
    """Rows of a worker's inner nodes, before and after a layer's weights."""

    rows: Tensor
    """[I, F] on the host."""
    scale: Tensor | None
    """[I] factor of each source in the aggregate (source_scale); None for ones."""
    project: Callable[[Matrix], Tensor]
    """Multiplies rows by the layer's weights, [n, F] -> [n, D]."""
    projected_width: int
    precision: Precision
    exponents: Tensor | None = None
    """int8 [F] by which columns are divided where rows are sent before the weights."""
    device: torch.device = HOST
    """Where partial sums are added and messages encoded and decoded. Sparse rows, and messages in
    the sparse encoding, stay on the host."""

    @classmethod
    def unprojected(
        cls, rows: Tensor, scale: Tensor | None, precision: Precision, device: torch.device = HOST
    ) -> Self:
        """Return rows that are only sent before the weights."""
        return cls(rows, scale, to_dense, rows.shape[1], precision, device=device)

    def unprojected_format(self, *, sparse: bool) -> MessageFormat:
        """Return the format of rows that are sent before the weights."""
        return MessageFormat(False, sparse, self.exponents is not None)

    @cached_property
    def sparse(self) -> sp.csr_array | None:
        """Return the rows in CSR format if they are sparse, else None."""
        return sp.csr_array(self.rows.numpy()) if is_sparse(self.rows) else None

    @cached_property
    def sparse_sizes(self) -> IntArray:
        """Return each row's bytes in the sparse encoding, int64 [I].

        Rows that nobody needs, which hold NaN, have sizes without meaning.
        """
        step = max(1, MAX_CHUNK_VALUES // max(1, self.rows.shape[1]))
        places = [slice(first, first + step) for first in range(0, len(self.rows), step)]
        sizes = in_threads(
            lambda place: row_sizes(
                self._rows_without_nan(place), SPARSE.row_format(self.precision)
            ),
            places,
        )
        return np.concatenate([np.zeros(0, np.int64), *sizes])

    def width(self, *, projected: bool) -> int:
        """Return the width of rows before or after the weights, F or D."""
        return self.projected_width if projected else self.rows.shape[1]

    def dense_size(self, *, projected: bool) -> int:
        """Return the bytes of one row or sum in the dense encoding."""
        return value_bytes(self.width(projected=projected), self.rows.dtype, self.precision)

    def is_shorter_projected(self, nodes: IntArray) -> bool:
        """Return whether the weights make each of `nodes`, int64 [n], shorter to send.

        False for sparse rows. Each row is compared dense or sparse, before and after the weights.
        """
        after = self.dense_size(projected=True)
        return (
            self.sparse is None
            and after < self.dense_size(projected=False)
            and bool((self.sparse_sizes[nodes] > after).all())
        )

    def release(self) -> None:
        """Replace the rows before the weights by NaN; they must not be sparse.

        Their sizes and the projected rows are kept, computed now if need be.
        """
        assert self.sparse is None
        assert len(self.projected) == len(self.sparse_sizes)  # computed now if they were not before
        self.rows = placeholder_rows(self.rows)
        self.__dict__.pop("_rows_on_device", None)

    def _rows_without_nan(self, place: slice) -> Rows:
        """Return some rows, with NaN replaced by 0 if the precision cannot encode NaN.

        They are divided by the exponents of their columns, if there are any.
        """
        if self.sparse is None:
            taken = self.rows[place]
            rows: Rows = taken if self.precision == "full" else taken.nan_to_num()
        else:
            rows = self.sparse[place]
            rows.data[np.isnan(rows.data)] = 0
        return rows if self.exponents is None else divide_columns(rows, self.exponents)

    @cached_property
    def projected(self) -> Tensor:
        """All rows after the weights, [I, D], on the device."""
        rows = self.project(self.rows if self.sparse is None else as_matrix(self.sparse))
        return rows.to(self.device)

    @cached_property
    def _rows_on_device(self) -> Tensor:
        """All rows before the weights, [I, F]."""
        return self.rows.to(self.device)

    def _all(self, projected: bool) -> Rows:
        """Return the rows before or after the weights, on the device unless they are sparse."""
        if projected:
            return self.projected
        return self._rows_on_device if self.sparse is None else self.sparse

    def sum_matrix(
        self,
        nodes: Int32Array,
        target: Int32Array,
        num_targets: int,
        edge_weight: WeightArray | None = None,
    ) -> sp.csr_array:
        """Return the sparse matrix [num_targets, I] that sums scaled, weighted rows by target.

        Args:
            nodes: [E] source node of each edge.
            target: [E] ascending.
            edge_weight: [E]; None for ones.
        """
        dtype = self.rows.numpy().dtype
        scale = None if self.scale is None else self.scale.numpy().astype(dtype, copy=False)
        weight = np.ones(len(nodes), dtype) if scale is None else take(scale, nodes)
        weight = weight if edge_weight is None else weight * edge_weight
        return csr_from_counts(weight, nodes, bincount(target, num_targets), len(self.rows))

    def vectors(self, nodes: Int32Array, summing: sp.csr_array, projected: bool) -> Rows:
        """Return a message's vectors: rows of `nodes` [k], then sums, [k + num_targets, F or D].

        Columns are divided by 2^exponents where there are exponents, unless `projected`.
        """
        vectors = self._take_vectors(nodes, summing, projected)
        if projected or self.exponents is None:
            return vectors
        return divide_columns(vectors, self.exponents)

    def _take_vectors(self, nodes: Int32Array, summing: sp.csr_array, projected: bool) -> Rows:
        """Return rows of `nodes`, then the sums, before or after the weights."""
        values = self._all(projected)
        if not isinstance(values, Tensor):
            both: list[sp.csr_array] = [values[nodes], summing @ values]
            return sp.csr_array(sp.vstack(both, format="csr"))
        rows, row_ptr = (
            torch.from_numpy(array.astype(np.int32, copy=False)).to(self.device)
            for array in (summing.indices, summing.indptr)
        )
        sums = sum_rows(values, rows, row_ptr, torch.from_numpy(summing.data).to(self.device))
        if not len(nodes):
            return sums
        result = values.new_empty(len(nodes) + len(sums), values.shape[1])
        index = torch.from_numpy(nodes).to(self.device)
        torch.index_select(values, 0, index, out=result[: len(nodes)])
        result[len(nodes) :] = sums
        return result
