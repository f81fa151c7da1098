"""Arrays, files and threads.

Values looked up as NumPy does, files that open_regular refuses, and work in threads,
with its errors.
"""

import os
import socket
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import torch_threads

from partitioning.file_io import load_npy, open_regular
from partitioning.thread_pool import in_blocks, in_threads
from retexo import arrays
from retexo.arrays import (
    bincount,
    counts_to_pointers,
    ids_to_mask,
    row_pointers,
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


@pytest.mark.parametrize("mode", ["rb", "a", "r+b"])
@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path, kind: str, mode: str) -> None:
    path = tmp_path / "it"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(path))
    else:
        path = Path("/dev/null")
    with pytest.raises(OSError, match="not a regular file") as caught:
        open_regular(path, mode)
    assert caught.value.filename == str(path)


def test_a_link_is_read_and_not_written_through(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.arange(3))
    (tmp_path / "link.npy").symlink_to("array.npy")
    for mmap_mode in (None, "r", "c"):
        assert load_npy(tmp_path / "link.npy", mmap_mode).tolist() == [0, 1, 2]
    for mode in ("a", "wb", "r+b"):
        with pytest.raises(OSError, match="a symbolic link, and files are not written through"):
            open_regular(tmp_path / "link.npy", mode)


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_order_and_errors_come_back(count: int) -> None:
    with torch_threads(count):
        assert in_threads(divmod, range(20), [3] * 20) == [
            divmod(number, 3) for number in range(20)
        ]
        assert in_blocks(lambda block: (block.start, block.stop), 7, 3) == [(0, 3), (3, 6), (6, 7)]
        assert in_blocks(str, 0, 3) == []
        with pytest.raises(ZeroDivisionError):
            in_threads(divmod, [1, 1], [1, 0])


@given(st.lists(st.integers(0, 5), max_size=12))
def test_row_pointers_are_of_sorted_rows_alone(rows: list[int]) -> None:
    with mock.patch.object(arrays, "BLOCK", 3), torch_threads(2):
        pointers = row_pointers(torch.tensor(rows, dtype=torch.int32), 6)
    expected = np.searchsorted(rows, np.arange(7)).tolist() if rows == sorted(rows) else None
    assert (None if pointers is None else pointers.tolist()) == expected
