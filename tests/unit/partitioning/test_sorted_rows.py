"""Rows' pointers and degrees, beside those of a count."""

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import torch_threads

from partitioning.directory import sorted_rows
from partitioning.directory.sorted_rows import degrees, row_pointers, runs


@pytest.mark.parametrize("threads", [1, 3])
@given(data=st.data())
def test_pointers_and_degrees_are_those_of_a_count(data: st.DataObject, threads: int) -> None:
    num_rows = data.draw(st.integers(1, 8))
    rows = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=30))
    is_sorted = data.draw(st.booleans())
    entries = torch.tensor(sorted(rows) if is_sorted else rows, dtype=torch.int32)
    weight = torch.arange(len(rows), dtype=torch.float32)
    block = data.draw(st.integers(1, 9))  # so that rows begin, end and fall where blocks do
    with torch_threads(threads), mock.patch.object(sorted_rows, "BLOCK", block):
        pointers = row_pointers(entries, num_rows)
        found = degrees(entries, None, num_rows)
        weighted = degrees(entries, weight, num_rows)
        begins = runs(entries.numpy()).tolist()
    here = entries.tolist()
    changes = (place for place in range(1, len(here)) if here[place] != here[place - 1])
    assert begins == sorted({0, *changes, len(here)})
    counts = [entries.tolist().count(row) for row in range(num_rows)]
    assert found.tolist() == counts
    assert weighted.tolist() == [float(weight[entries == row].sum()) for row in range(num_rows)]
    if entries.tolist() == sorted(rows):
        assert pointers is not None
        assert pointers.tolist() == [sum(counts[:row]) for row in range(num_rows + 1)]
    else:
        assert pointers is None
