"""Rows of several matrices that are read when they are taken, so that features of all partitions
need no memory.

N rows with F columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import Ints

Rows = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """Features [N, F] of nodes."""

    matrices: Sequence[Rows]
    matrix: Ints
    """[N] index of the matrix that has each row."""
    row: Ints
    """[N] row in that matrix."""

    @classmethod
    def of(cls, matrices: Sequence[Rows]) -> Self:
        """Return the rows of all matrices, one after the other."""
        sizes = [len(each) for each in matrices]
        rows = np.concatenate([np.arange(size) for size in sizes])
        return cls(matrices, np.repeat(np.arange(len(sizes)), sizes), rows)

    def __len__(self) -> int:
        return len(self.row)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.row), self.matrices[0].shape[1]

    def __getitem__(self, rows: NDArray[Any]) -> Rows:
        """Return some of the rows, [n, F]; without a copy where they are in sequence."""
        matrix, row = self.matrix[rows], self.row[rows]
        if len(row) and (matrix == matrix[0]).all() and (np.diff(row) == 1).all():
            sequence: Rows = self.matrices[matrix[0]][row[0] : row[0] + len(row)]
            return sequence
        taken = np.empty((len(row), self.shape[1]), np.float32)
        for number in np.unique(matrix):
            chosen = matrix == number
            taken[chosen] = self.matrices[number][row[chosen]]
        return taken

    def change(self, rows: Ints, values: Rows) -> "FeatureRows":
        """Return the features with other values in some rows; a row N or more is a new one."""
        size = max(len(self.row), 1 + int(rows.max(initial=-1)))
        matrix, row = (np.resize(each, size) for each in (self.matrix, self.row))
        matrix[rows], row[rows] = len(self.matrices), np.arange(len(rows))
        return FeatureRows([*self.matrices, values], matrix, row)

    def keep(self, rows: NDArray[Any]) -> "FeatureRows":
        """Return the features with some of the rows."""
        return FeatureRows(self.matrices, self.matrix[rows], self.row[rows])
