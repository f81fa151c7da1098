"""Files of users are opened by open_regular: regular ones, and what is written is no symbolic
link.
"""

import ast
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import ROOT

from partitioning.file_io import load_npy, open_regular

OPENERS = {"open", "read_text", "read_bytes"}
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
    "partitioning/file_io.py",
    "retexo/settings/options.py",  # the program's own modules
    "retexo/launch/handshake.py",
    "retexo/launch/cores.py",  # of the system
    "retexo/launch/heartbeat.py",
    "retexo/apps/job.py",  # in a temporary directory of the program
    "retexo/results/callbacks.py",  # rounds that the program itself writes
}


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
    """Calls that open a file by its path: of OPENERS, or of READERS with another argument than an
    open file.
    """
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
    """Readers of other libraries that take nothing but paths (DGL, safetensors) are not seen
    here.
    """
    found = []
    for package in ("partitioning", "retexo"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for call in _direct_opens(ast.parse(path.read_text())):
                where, text = path.relative_to(ROOT).as_posix(), ast.unparse(call)
                # Neither a path of the user's, nor one that can be a FIFO.
                other = text.startswith(("os.open(", "archive.open(", "opener.open("))
                other = other or text.startswith(
                    ("self._filesystem().open(", "ChangedRowsExchange.open(")
                )
                other = other or "/proc/" in text or "os.devnull" in text
                if where not in OWN and not other:
                    found.append(f"{where}:{call.lineno}: {text}")
    assert not found
