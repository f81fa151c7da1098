"""Arrays, files and threads.

Values looked up as NumPy does, files of users opened by open_regular alone, and work in threads,
with its errors.
"""

import ast
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, torch_threads

from partitioning.errors import InputError
from partitioning.files.file_io import explaining, load_npy, open_regular, reading
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
    assert [indices.tolist() for indices in unique_inverse(index)] == [
        distinct.tolist(),
        place.tolist(),
    ]


OPENERS = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}
READERS = {
    "np.load",
    "np.loadtxt",
    "sp.load_npz",
    "torch.load",
    "pd.read_csv",
    "pd.read_parquet",
    "pq.ParquetFile",
    "pq.read_schema",
    "zipfile.ZipFile",
    "gzip.open",
}
"""They take a path as well as an open file."""
OWN = {
    "partitioning/files/file_io.py",
    "retexo/settings/options.py",  # the program's own modules
    "retexo/launch/handshake.py",
    "retexo/launch/cores.py",  # of the system
    "retexo/launch/heartbeat.py",
    "retexo/apps/job.py",  # in temporary directories of the program
    "retexo/trainers/sampled_dgl/client.py",
    "retexo/results/callbacks.py",  # rounds that the program itself writes
}


def test_why_a_file_cannot_be_read_is_named(tmp_path: Path) -> None:
    full = "No space left on device"
    for error, message in (
        (ValueError("odd"), r"not a readable table \(odd\); fetch it"),
        (KeyError("edge"), r"not a readable table \(KeyError: 'edge'\); fetch it"),
        (MemoryError("1 PiB"), r"\(1 PiB\); free memory, or where it is damaged fetch it"),
        (OSError(errno.ENOSPC, full), f"^x: {full}; free some space$"),
    ):
        with pytest.raises(InputError, match=message), explaining("x", "table", "fetch it"):
            raise error
    message = r"not a readable table \(not a regular file\);"
    with pytest.raises(InputError, match=message), reading(tmp_path, "table"):
        pass


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


def _direct_opens(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls that open a file by its path: OPENERS, or READERS without an open file."""
    opened = {
        node.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name)
    } | {"file"}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in READERS:
            of = node.args[0]
            if not (isinstance(of, ast.Name) and of.id in opened) and "open_regular(" not in (
                ast.unparse(of)
            ):
                yield node
        elif name == "open" or (isinstance(node.func, ast.Attribute) and node.func.attr in OPENERS):
            yield node


def test_no_file_is_opened_by_another_way() -> None:
    """Readers of other libraries that take only paths (DGL, safetensors) are not seen."""
    places = []
    for package in ("partitioning", "retexo"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for call in _direct_opens(ast.parse(path.read_text())):
                where, text = path.relative_to(ROOT).as_posix(), ast.unparse(call)
                # Neither a path of the user's, nor one that can be a FIFO.
                other = text.startswith(
                    ("os.open(", "archive.open(", "archive.zip.open(", "opener.open(")
                )
                other = other or text.startswith("unfinished.write_")  # a new file
                other = other or text.startswith("self._filesystem().open(")
                # A Place reads its text by open_regular, too.
                other = other or text.startswith(("place.read_text(", "(place / "))
                other = other or "/proc/" in text or "os.devnull" in text
                if where not in OWN and not other:
                    places.append(f"{where}:{call.lineno}: {text}")
    assert not places


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
