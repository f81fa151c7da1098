"""Dense and sparse matrices as layer inputs. Bag-of-words features and their sums stay sparse.

R rows, F input width, D output width, Z stored values.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
warnings.filterwarnings(
    "ignore", message="Sparse invariant checks are implicitly disabled"
)  # SciPy made the indices

SCAN_CHUNK_VALUES = 1 << 20
"""Values per chunk when zeros are counted. Dense rows are recognised after few chunks."""
MAX_SPARSE_DENSITY = 0.15
"""Maximum share of nonzero values of rows that are kept sparse."""


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A CSR matrix [R, F] for products with dense weights, forward and backward."""

    row_ptr: Tensor
    """int32 [R + 1]"""
    columns: Tensor
    """int32 [Z]"""
    values: Tensor
    """[Z]"""
    by_column: Tensor
    """int64 [Z] order of the values in the transposed matrix."""
    column_ptr: Tensor
    """int32 [F + 1]"""
    rows: Tensor
    """int32 [Z] row of each value in the transposed matrix."""

    @classmethod
    def from_scipy(cls, matrix: sp.csr_array, device: torch.device | None = None) -> "SparseMatrix":
        """Convert a SciPy matrix [R, F] with sorted indices; device None: the CPU.

        On the CPU the values share its memory.
        """
        places = sp.csr_array(
            (np.arange(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape
        ).tocsc()
        arrays = {
            "row_ptr": matrix.indptr.astype(np.int32),
            "columns": matrix.indices.astype(np.int32),
            "values": matrix.data,
            "by_column": places.data,
            "column_ptr": places.indptr.astype(np.int32),
            "rows": places.indices.astype(np.int32),
        }
        return cls(**{name: torch.from_numpy(array).to(device) for name, array in arrays.items()})

    @property
    def shape(self) -> tuple[int, int]:
        """Return the number of rows R and of columns F."""
        return len(self.row_ptr) - 1, len(self.column_ptr) - 1

    def dropout(self, rate: float) -> "SparseMatrix":
        """Return a copy with each stored value 0 with probability `rate`, the others scaled up."""
        return replace(self, values=fast_dropout(self.values, rate))

    def to_dense(self) -> Tensor:
        """Return a dense tensor [R, F]."""
        return torch.sparse_csr_tensor(
            self.row_ptr, self.columns, self.values, self.shape
        ).to_dense()

    def __matmul__(self, weight: Tensor) -> Tensor:
        """Return self @ weight, [R, F] @ [F, D] -> [R, D], differentiable in the weight."""
        product: Tensor = _Product.apply(weight, self)  # type: ignore[no-untyped-call]
        return product


class _Product(torch.autograd.Function):
    """Y = X W and dL/dW = X^T dL/dY with a stored transpose.

    torch would sort X in every backward pass. As sums of rows both products take, from 47 columns
    on, a third to half of the time of torch's product.
    """

    @staticmethod
    # torch has no sparse product in bfloat16
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, weight: Tensor, matrix: SparseMatrix) -> Tensor:
        ctx.matrix = matrix
        return sum_rows(weight, matrix.columns, matrix.row_ptr, matrix.values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        matrix = ctx.matrix
        values = matrix.values.index_select(0, matrix.by_column)  # a third of the time of []
        return sum_rows(gradient.contiguous(), matrix.rows, matrix.column_ptr, values), None


RowIndex = slice | Tensor
"""Rows of a matrix: a range, or int64 [n]."""
Matrix = Tensor | SparseMatrix
"""Input of a layer, [R, F]."""


def to_dense(matrix: Matrix) -> Tensor:
    """Convert to a dense tensor [R, F]."""
    return matrix if isinstance(matrix, Tensor) else matrix.to_dense()


def matmul(matrix: Matrix, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return matrix [R, F] @ weight [F, D] + bias [D], if any, as a dense tensor [R, D]."""
    if bias is None:
        return matrix @ weight
    return (
        matrix @ weight + bias
        if isinstance(matrix, SparseMatrix)
        else torch.addmm(bias, matrix, weight)
    )


def take_rows(matrix: Matrix, rows: RowIndex) -> Matrix:
    """Return some rows of [R, F]; a view for a range of a dense matrix."""
    if isinstance(matrix, Tensor):
        return matrix[rows]
    arrays = (array.cpu().numpy() for array in (matrix.values, matrix.columns, matrix.row_ptr))
    chosen = rows if isinstance(rows, slice) else rows.cpu().numpy()
    return SparseMatrix.from_scipy(
        sp.csr_array(tuple(arrays), shape=matrix.shape)[chosen], matrix.values.device
    )


def scale_rows(matrix: Matrix, scale: Tensor) -> Matrix:
    """Return a copy of [R, F] with each row multiplied by its entry of `scale`, [R]."""
    if isinstance(matrix, Tensor):
        return matrix * scale[:, None].to(matrix.dtype)
    value_scale = torch.repeat_interleave(scale.to(matrix.values.dtype), matrix.row_ptr.diff())
    return replace(matrix, values=matrix.values * value_scale)


def dropout(matrix: Matrix, rate: float, training: bool) -> Matrix:
    """Apply dropout (fast_dropout) in training mode; otherwise return the matrix itself."""
    if not training or rate == 0:
        return matrix
    return matrix.dropout(rate) if isinstance(matrix, SparseMatrix) else fast_dropout(matrix, rate)


def is_sparse(rows: Tensor) -> bool:
    """Return whether rows [R, F] have so few nonzeros that a sparse product is faster.

    The rows are on the host. False for rows with a gradient, and while torch.export traces.
    """
    if torch.compiler.is_compiling() or rows.requires_grad or not rows.numel():
        return False
    nonzero = 0
    for chunk in torch.split(rows, max(1, SCAN_CHUNK_VALUES // rows.shape[1])):
        nonzero += int(np.count_nonzero(chunk.numpy() != 0))  # eight times as fast as torch's count
        if nonzero > MAX_SPARSE_DENSITY * rows.numel():
            return False
    return True


def as_matrix(rows: Tensor | sp.csr_array) -> Matrix:
    """Convert rows [R, F] to the kind of matrix with the faster product.

    Tensors on a GPU or with a gradient stay as they are. A SciPy matrix may be sorted in place.
    """
    if isinstance(rows, Tensor):
        sparse = rows.device.type == "cpu" and is_sparse(rows)
        return SparseMatrix.from_scipy(sp.csr_array(rows.numpy())) if sparse else rows
    if rows.nnz > MAX_SPARSE_DENSITY * rows.shape[0] * rows.shape[1]:
        return torch.from_numpy(rows.toarray())
    rows.sort_indices()
    return SparseMatrix.from_scipy(rows)


def placeholder_rows(rows: Tensor) -> Tensor:
    """Return NaN rows [R, F] that occupy one value of memory, as placeholder for released rows."""
    return rows.new_full((1, 1), torch.nan).expand(rows.shape)


def sum_rows(values: Tensor, rows: Tensor, row_ptr: Tensor, weight: Tensor | None) -> Tensor:
    """Return weighted sums of rows, [n, K], with torch's embedding bag.

    On a CPU it is as fast as DGL's products and faster than SciPy's.

    Args:
        values: [m, K]
        rows: int32 [E] rows of each sum, one sum after the other.
        row_ptr: int32 [n + 1], sum i takes rows[row_ptr[i] : row_ptr[i + 1]].
        weight: [E]; None for ones.
    """
    return torch.nn.functional.embedding_bag(
        rows, values, row_ptr, mode="sum", per_sample_weights=weight, include_last_offset=True
    )


def used_columns(matrix: Matrix) -> Tensor:
    """Return which columns of [n, F] have a nonzero value, bool [F] on the CPU."""
    if isinstance(matrix, Tensor):
        return (matrix != 0).any(dim=0).cpu()
    used = torch.zeros(matrix.shape[1], dtype=torch.bool)
    used[matrix.columns[matrix.values != 0].long().cpu()] = True
    return used


def fast_dropout(values: Tensor, rate: float) -> Tensor:
    """Apply dropout with a rate rounded to a multiple of 1/65536; on a GPU, torch's dropout.

    The random bits are those of torch's global generator. With torch's dropout, commands on Cora,
    PubMed and an eighth of ogbn-products took 1.03, 1.46 and 1.52 times the CPU seconds (2 cores of
    an AMD EPYC, minimum of three alternating runs).
    """
    if values.device.type != "cpu":
        return nn.functional.dropout(values, rate)
    level = round(rate * 2**16)
    if level == 2**16:
        return torch.zeros_like(values)
    words = torch.empty((values.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: values.numel()].view(values.shape)
    # Multiplying by bools takes twice as long.
    kept = torch.ge(bits, level - 2**15, out=torch.empty_like(values))
    # scale and mask in one pass
    return torch.addcmul(values.new_zeros(()), values, kept, value=2**16 / (2**16 - level))
