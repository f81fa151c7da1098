"""Array helpers compared with NumPy and torch."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import torch_threads

from retexo import arrays
from retexo.arrays import (
    bincount,
    counts_to_pointers,
    csr_from_counts,
    ids_to_mask,
    repeat_interleave,
    take,
    unique_inverse,
)

LISTS = st.lists(st.integers(0, 8), max_size=40)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@given(ids=LISTS)
def test_numbers_are_looked_up_as_numpy_does(ids: list[int], dtype: type) -> None:
    index = np.array(ids, dtype)
    for values in (
        np.arange(9) % 2 == 0,
        np.arange(9, dtype=np.int32),
        np.linspace(0, 1, 9, dtype=np.float32),
    ):
        assert np.array_equal(take(values, index), values[index])
        assert take(values, index).dtype == values.dtype
    distinct, place = np.unique(index, return_inverse=True)
    with mock.patch.object(arrays, "BLOCK_SIZE", 7), torch_threads(2):
        assert np.array_equal(take(np.arange(9), index), index)
        assert np.array_equal(ids_to_mask(index, 9), np.isin(np.arange(9), index))
    assert np.array_equal(bincount(index, 9), np.bincount(index, minlength=9))
    assert counts_to_pointers(bincount(place)).tolist() == [
        *np.searchsorted(np.sort(place), range(len(distinct))),
        len(ids),
    ]
    assert np.array_equal(ids_to_mask(index, 9), np.isin(np.arange(9), index))
    assert [each.tolist() for each in unique_inverse(index)] == [distinct.tolist(), place.tolist()]


@given(counts=LISTS)
def test_values_are_repeated_as_torch_does(counts: list[int]) -> None:
    values, number = torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64)
    assert torch.equal(repeat_interleave(values, number), torch.repeat_interleave(values, number))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@given(counts=LISTS)
def test_a_sparse_matrix_holds_its_columns_as_they_are(counts: list[int], dtype: type) -> None:
    columns = np.array([column for count in counts for column in range(count)], dtype)
    values = np.arange(len(columns), dtype=np.float32) + 1
    matrix = csr_from_counts(values, columns, np.array(counts, np.int64), 9)
    expected = np.zeros((len(counts), 9))
    expected[np.repeat(np.arange(len(counts)), counts), columns] = values
    assert np.array_equal(matrix.toarray(), expected)
    assert matrix.indices.dtype == dtype
    assert np.shares_memory(matrix.indices, columns) == (len(columns) > 0)
