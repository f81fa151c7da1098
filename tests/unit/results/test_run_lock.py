"""The lock of a run's directory, and what a killed run left there."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from partitioning.errors import InputError
from partitioning.files.file_io import exclusive
from retexo.errors import TrainingError
from retexo.results.atomic_write import UNFINISHED, write_json
from retexo.results.run_lock import exclusive_run_dir

HOLD = """
import sys
from pathlib import Path
from retexo.results.run_lock import exclusive_run_dir
with exclusive_run_dir(Path(sys.argv[1]), 0):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_the_owner_is_named_and_its_death_frees_the_folder(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(InputError) as caught, exclusive_run_dir(tmp_path, 0):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert (
        f"hydra.run.dir={tmp_path}: in use by process {holder.pid} on '{socket.gethostname()}'"
        in str(caught.value)
    )
    assert "which began at '20" in str(caught.value)
    with exclusive_run_dir(tmp_path, 0):
        pass


def test_nodes_share_a_run_directory(tmp_path: Path) -> None:
    in_use = pytest.raises(InputError, match=f"in use by process {os.getpid()} on")
    with (
        exclusive_run_dir(tmp_path, 0),
        exclusive_run_dir(tmp_path, 1),
        in_use,
        exclusive_run_dir(tmp_path, 1),
    ):
        pass


@pytest.mark.parametrize("content", ["", "3", "{}", '{"pid": "x"}', "\x1b[2J"])
def test_an_owner_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    with exclusive(tmp_path / "lock", "here"):
        (tmp_path / "lock").write_text(content)
        with (
            pytest.raises(InputError, match="here: in use by another process"),
            exclusive(tmp_path / "lock", "here"),
        ):
            pass


def test_what_a_killed_run_was_writing_is_removed(tmp_path: Path) -> None:
    """Nothing else in the folder is removed."""
    leftovers, others = (
        [],
        [tmp_path / "summary.json", tmp_path / ".hidden", tmp_path / "other" / f"{UNFINISHED}file"],
    )
    for folder in ("", "checkpoint", "state", "state/rank0", "predictions"):
        (tmp_path / folder).mkdir(exist_ok=True)
        leftovers.append(tmp_path / folder / f"{UNFINISHED}1a2b-file")
    (tmp_path / "other").mkdir()
    for path in (*leftovers, *others):
        path.touch()
    with exclusive_run_dir(tmp_path, 0):
        assert not [path for path in leftovers if path.exists()]
        assert all(path.exists() for path in others)


def test_a_refusal_leaves_no_folder_that_was_made_for_the_lock(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError), exclusive(tmp_path / "there" / "made" / "too" / ".lock", "it"):
        raise InputError("no")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_a_run_directory_that_is_removed_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"gone/a.json: .*folder was removed meanwhile; start"):
        write_json(tmp_path / "gone" / "a.json", {})
