"""The exit status of each job of a command, which --multirun may run in other processes."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self


class JobLog:
    """A file with a line per job, because launchers such as joblib start processes of their own.

    A launcher that starts jobs on other machines leaves no lines here.
    """

    def __init__(self, path: Path) -> None:
        """Use a JSON lines file, which the first job creates."""
        self._path = path

    @classmethod
    @contextmanager
    def temporary(cls) -> Iterator[Self]:
        """A log in a temporary folder, removed at the end; a job that ends later is not noted."""
        with tempfile.TemporaryDirectory(prefix="retexo-jobs-") as folder:
            yield cls(Path(folder, "jobs.jsonl"))

    def add(self, status: int, name: str) -> None:
        """Note the exit status of a job, and the settings that distinguish it from others."""
        if self._path.parent.is_dir():
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([status, name]) + "\n")

    def read(self) -> list[tuple[int, str]]:
        """Exit status and settings of each job that has ended, as given to `add`."""
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return [(int(status), str(name)) for status, name in map(json.loads, lines)]
