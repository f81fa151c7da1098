"""Dense and sparse matrices as the input of a layer: bag-of-words features stay sparse, also when aggregated.

R rows, F input width, D output width, Z stored values.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from retexo.models.dropout import fast_dropout

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
warnings.filterwarnings(
    "ignore", message="Sparse invariant checks are implicitly disabled"
)  # SciPy made the indices

SCAN_CHUNK_VALUES = 1 << 20
"""Values of a chunk in which zeros are counted; dense rows are recognised after few chunks."""
MAX_SPARSE_DENSITY = 0.15
"""Share of stored values up to which rows are kept sparse."""
_ONEDNN_BUILT = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
USE_ONEDNN = _ONEDNN_BUILT and torch.backends.cpu.get_cpu_capability() == "AVX512"
"""Whether oneDNN may multiply in float32 (`product`). Without it commands on PubMed and an eighth of products' shape took
1.09 and 1.06 of the CPU seconds on an AMD EPYC with AVX-512 (the least of three runs in turn, at 8666332)."""
ROWS_PER_IMAGE = 128
"""Rows in an image that it convolves: the gradient of weights takes .75 to .95 of what it takes of one long image."""


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A CSR matrix [R, F] that dense weights are multiplied with, forward and backward."""

    row_ptr: Tensor
    """int32 [R + 1]"""
    columns: Tensor
    """int32 [Z]"""
    values: Tensor
    """[Z]"""
    by_column: Tensor
    """int64 [Z] the order of the values in the transposed matrix."""
    column_ptr: Tensor
    """int32 [F + 1]"""
    rows: Tensor
    """int32 [Z] the row of each value in the transposed matrix."""

    @classmethod
    def from_scipy(cls, matrix: sp.csr_array, device: torch.device | None = None) -> "SparseMatrix":
        """Take over a SciPy matrix [R, F] with sorted indices."""
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
        return len(self.row_ptr) - 1, len(self.column_ptr) - 1

    def dropout(self, rate: float) -> "SparseMatrix":
        """Drop each stored value with probability `rate` and scale up the others; zeros stay zeros anyway."""
        values = fast_dropout(self.values, rate)
        return SparseMatrix(
            self.row_ptr, self.columns, values, self.by_column, self.column_ptr, self.rows
        )

    def to_dense(self) -> Tensor:
        """[R, F]"""
        return torch.sparse_csr_tensor(
            self.row_ptr, self.columns, self.values, self.shape
        ).to_dense()

    def __matmul__(self, weight: Tensor) -> Tensor:
        """[R, F] @ [F, D] -> [R, D], differentiable in the weight."""
        product: Tensor = _Product.apply(weight, self)  # type: ignore[no-untyped-call]
        return product

    # As sums of rows: of 47 columns and more in a third to a half of the time of torch's sparse product.

    def product(self, weight: Tensor) -> Tensor:
        return sum_rows(weight, self.columns, self.row_ptr, self.values)

    def transposed_product(self, gradient: Tensor) -> Tensor:
        values = self.values.index_select(0, self.by_column)  # a third of the time of []
        return sum_rows(gradient, self.rows, self.column_ptr, values)


class _Product(torch.autograd.Function):
    """Y = X W and dL/dW = X^T dL/dY, with the transposed matrix at hand (torch sorts it anew each time)."""

    @staticmethod
    # There is no sparse product in bfloat16.
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, weight: Tensor, matrix: SparseMatrix) -> Tensor:
        ctx.matrix = matrix
        return matrix.product(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix.transposed_product(gradient.contiguous()), None


RowIndex = slice | Tensor
"""Which rows of a matrix: a range, or int64 [n]."""
Matrix = Tensor | SparseMatrix
"""An input of a layer, [R, F]."""


def to_dense(matrix: Matrix) -> Tensor:
    """[R, F]"""
    return matrix if isinstance(matrix, Tensor) else matrix.to_dense()


def matmul(matrix: Matrix, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[R, F] @ [F, D] + [D] -> [R, D]"""
    if isinstance(matrix, Tensor) and USE_ONEDNN and _pays_off_with_onednn(matrix, weight):
        return _onednn_product(matrix, weight, bias)
    if bias is None:
        return matrix @ weight
    return (
        matrix @ weight + bias
        if isinstance(matrix, SparseMatrix)
        else torch.addmm(bias, matrix, weight)
    )


def _pays_off_with_onednn(matrix: Tensor, weight: Tensor) -> bool:
    """Whether it takes longer than what oneDNN does before one, as measured for widths from 3 on."""
    return (
        len(matrix) >= 512
        and matrix.numel() * weight.shape[1] >= 1 << 22
        and matrix.device.type == "cpu"
        and matrix.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")  # in bfloat16 torch takes oneDNN of itself
    )


def _onednn_product(matrix: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product as a convolution of images of PIXELS x 1, or one of R x 1 pixels, with a kernel of one.

    torch multiplies float32 with MKL, which leaves out AVX-512 on processors that are not Intel's, and convolves with
    oneDNN, which takes a quarter to a half of the time on some of them. A dilation does nothing to a kernel of one, but
    without it torch would not take oneDNN in a process of one thread.
    """
    num_rows, (num_in, num_out) = len(matrix), weight.shape
    length = ROWS_PER_IMAGE if num_rows % ROWS_PER_IMAGE == 0 else num_rows
    pixels = matrix.reshape(-1, length, 1, num_in).permute(
        0, 3, 1, 2
    )  # channels last, as the rows lie
    kernel = weight.T.reshape(num_out, num_in, 1, 1)
    out = torch.nn.functional.conv2d(pixels, kernel, bias, dilation=2)
    return out.permute(0, 2, 3, 1).reshape(num_rows, num_out)


def take_rows(matrix: Matrix, rows: RowIndex) -> Matrix:
    """The chosen rows of [R, F]."""
    if isinstance(matrix, Tensor):
        return matrix[rows]
    arrays = (each.cpu().numpy() for each in (matrix.values, matrix.columns, matrix.row_ptr))
    chosen = rows if isinstance(rows, slice) else rows.cpu().numpy()
    return SparseMatrix.from_scipy(
        sp.csr_array(tuple(arrays), shape=matrix.shape)[chosen], matrix.values.device
    )


def scale_rows(matrix: Matrix, scale: Tensor) -> Matrix:
    """The rows of [R, F], each times its entry of `scale`, [R]."""
    if isinstance(matrix, Tensor):
        return matrix * scale[:, None].to(matrix.dtype)
    of_values = torch.repeat_interleave(scale.to(matrix.values.dtype), matrix.row_ptr.diff())
    return replace(matrix, values=matrix.values * of_values)


def dropout(matrix: Matrix, rate: float, training: bool) -> Matrix:
    """Dropout in training mode, else the matrix itself."""
    if not training or rate == 0:
        return matrix
    return matrix.dropout(rate) if isinstance(matrix, SparseMatrix) else fast_dropout(matrix, rate)


def is_sparse(rows: Tensor) -> bool:
    """Whether so few values of [R, F] are nonzero that a sparse product is faster; False where rows have a gradient."""
    if rows.requires_grad or not rows.numel():
        return False
    nonzero = 0
    for chunk in torch.split(rows, max(1, SCAN_CHUNK_VALUES // rows.shape[1])):
        nonzero += int(np.count_nonzero(chunk.numpy() != 0))  # eight times as fast as torch's
        if nonzero > MAX_SPARSE_DENSITY * rows.numel():
            return False
    return True


def as_matrix(rows: Tensor | sp.csr_array) -> Matrix:
    """Rows [R, F] as the kind of matrix that is faster to multiply with; a SciPy matrix may be sorted in place."""
    if isinstance(rows, Tensor):
        sparse = rows.device.type == "cpu" and is_sparse(rows)
        return SparseMatrix.from_scipy(sp.csr_array(rows.numpy())) if sparse else rows
    if rows.nnz > MAX_SPARSE_DENSITY * rows.shape[0] * rows.shape[1]:
        return torch.from_numpy(rows.toarray())
    rows.sort_indices()
    return SparseMatrix.from_scipy(rows)


def placeholder_rows(rows: Tensor) -> Tensor:
    """What stands for rows that are released, [R, F]: NaN, and one value in memory."""
    return rows.new_full((1, 1), torch.nan).expand(rows.shape)


def sum_rows(values: Tensor, rows: Tensor, row_ptr: Tensor, weight: Tensor | None) -> Tensor:
    """Weighted sums of rows; torch's embedding bag, on a CPU as fast as DGL's products and faster than SciPy's.

    Args:
        values: [m, K].
        rows: int32 [E] the rows of each sum, one sum after the other.
        row_ptr: int32 [n + 1], sum i takes rows[row_ptr[i] : row_ptr[i + 1]].
        weight: [E]; None for ones.
    Returns: [n, K].
    """
    return torch.nn.functional.embedding_bag(
        rows, values, row_ptr, mode="sum", per_sample_weights=weight, include_last_offset=True
    )


def used_columns(matrix: Matrix) -> Tensor:
    """Columns of [n, F] that hold anything but zeros, bool [F] on the host."""
    if isinstance(matrix, Tensor):
        return (matrix != 0).any(dim=0).cpu()
    used = torch.zeros(matrix.shape[1], dtype=torch.bool)
    used[matrix.columns[matrix.values != 0].long().cpu()] = True
    return used
