"""What a worker keeps of a prediction, so that the next one computes only what changed.

A state folder holds a folder for each part, and in it one folder for each kept prediction, named by
its number: npy files and state.json with their checksums. A prediction is written beside its place
and renamed when it is complete. The one before stays until all workers have written theirs, so
that a killed command leaves a prediction that all workers have.

n nodes, F width of rows.
"""

import json
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.errors import InputError, first_line
from partitioning.file_io import UNREADABLE, load_npy, read_text, why_unwritten
from retexo.arrays import IntArray
from retexo.errors import TrainingError
from retexo.models.matrix import is_sparse
from retexo.results.atomic_write import UNFINISHED, write_json

VERSION = 1
MARKER = "predict_state.json"
"""File of a state folder, by which a folder of other files is recognised."""
NO_NUMBER = -1


class DamagedState(Exception):
    """A kept prediction that cannot be used; the message names the file."""


@dataclass(frozen=True, eq=False)
class RowTable:
    """Rows [n, F] on disk, dense or sparse."""

    values: NDArray[np.floating[Any]] | sp.csr_array

    def take(self, places: IntArray) -> Tensor:
        """Return some rows as a dense tensor, [m, F]."""
        rows = self.values[places]
        return torch.from_numpy(rows.toarray() if sp.issparse(rows) else np.ascontiguousarray(rows))


@dataclass(frozen=True, eq=False)
class KeptPrediction:
    """A prediction that is read from disk."""

    number: int
    identity: Mapping[str, Any]
    """What it was computed with."""
    arrays: Mapping[str, NDArray[Any]]
    tables: Mapping[str, RowTable]
    totals: Mapping[str, Any]
    """At rank 0, see StateWriter.commit."""


def prepare_folder(folder: Path) -> None:
    """Mark a new or empty folder as a state folder; InputError for a folder of other files."""
    where = f"predict.state={folder}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = [each.name for each in folder.iterdir() if not each.name.startswith(".")]
        if others and not (folder / MARKER).is_file():
            raise InputError(
                f"{where}: holds other files ({min(others)}); name a new or an empty folder"
            )
        write_json(folder / MARKER, {"version": VERSION})
    except (OSError, TrainingError) as error:
        raise InputError(f"{where}: cannot be used as a folder: {first_line(error)}") from None


def find_numbers(part: Path) -> list[int]:
    """The numbers of a part's complete predictions, the newest first."""
    if not part.is_dir():
        return []
    names = [each.name for each in part.iterdir() if each.name.isdecimal()]
    return sorted(map(int, names), reverse=True)


def open_kept(part: Path, number: int) -> KeptPrediction:
    """Read a kept prediction and check all of its files; DamagedState if one is not as written."""
    folder = part / str(number)
    try:
        content = json.loads(read_text(folder / "state.json"))
        found = {
            name: _read_array(folder / f"{name}.npy", about)
            for name, about in content["files"].items()
        }
        tables = {name: _as_table(name, about, found) for name, about in content["tables"].items()}
        identity, totals = dict(content["identity"]), dict(content["totals"])
    except UNREADABLE as error:
        raise DamagedState(f"{folder}: {first_line(error)}") from None
    return KeptPrediction(number, identity, found, tables, totals)


def _read_array(path: Path, about: Mapping[str, Any]) -> NDArray[Any]:
    """Read an array and compare it with its description; DamagedState if it differs."""
    try:
        array: NDArray[Any] = load_npy(path, mmap_mode="r" if about["bytes"] else None)
    except UNREADABLE as error:
        raise DamagedState(f"{path}: {first_line(error)}") from None
    if _describe(array) != about:
        raise DamagedState(f"{path}: its checksum is not the one in state.json")
    return array


def _describe(array: NDArray[Any]) -> dict[str, Any]:
    """Return type, shape, bytes and checksum of an array, for the description of a kept
    prediction.
    """
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    shape = [array.dtype.str, *array.shape]
    return {"type": shape, "bytes": flat.nbytes, "crc32": zlib.crc32(flat.data)}


def _as_table(name: str, about: Mapping[str, Any], found: Mapping[str, NDArray[Any]]) -> RowTable:
    """Build a RowTable from its arrays: one if dense, three in CSR format if sparse."""
    if not about["sparse"]:
        return RowTable(found[name])
    parts = tuple(found[f"{name}_{each}"] for each in ("data", "indices", "indptr"))
    return RowTable(sp.csr_array(parts, shape=tuple(about["shape"])))


class StateWriter:
    """Writes a prediction of one part, array by array."""

    def __init__(self, part: Path, number: int) -> None:
        self._part, self._number = part, number
        self._folder = part / f"{UNFINISHED}{number}"
        self._files: dict[str, Any] = {}
        self._tables: dict[str, Any] = {}
        try:
            for left in part.glob(f"{UNFINISHED}*"):  # of a killed command
                shutil.rmtree(left)
            self._folder.mkdir(parents=True)
        except OSError as error:
            raise TrainingError(f"{self._folder}: {why_unwritten(error)}") from error

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the arrays written so far."""
        return sum(each["bytes"] for each in self._files.values())

    def add(self, name: str, array: Any) -> None:
        """Write an array or a tensor."""
        array = array.numpy() if isinstance(array, Tensor) else np.asarray(array)
        path = self._folder / f"{name}.npy"
        try:
            np.save(path, array, allow_pickle=False)
        except OSError as error:
            raise TrainingError(f"{path}: {why_unwritten(error)}") from error
        self._files[name] = _describe(array)

    def add_rows(self, name: str, rows: Tensor) -> None:
        """Write rows [n, F], sparse where that is shorter."""
        sparse = is_sparse(rows)
        self._tables[name] = {"sparse": sparse, "shape": list(rows.shape)}
        if not sparse:
            self.add(name, rows)
            return
        matrix = sp.csr_array(rows.numpy())
        for each in ("data", "indices", "indptr"):
            self.add(f"{name}_{each}", getattr(matrix, each))

    def commit(self, identity: Mapping[str, Any], totals: Mapping[str, Any]) -> None:
        """Give the prediction its place; the former ones stay.

        Args:
            identity: what it was computed with.
            totals: counts of the last full prediction, at rank 0.
        """
        content = {
            "version": VERSION,
            "identity": identity,
            "files": self._files,
            "tables": self._tables,
            "totals": totals,
        }
        write_json(self._folder / "state.json", content)
        try:
            self._folder.rename(self._part / str(self._number))
        except OSError as error:
            raise TrainingError(f"{self._folder}: {why_unwritten(error)}") from error

    def remove_former(self) -> None:
        """Remove the other predictions of this part; all workers have committed."""
        for number in find_numbers(self._part):
            if number != self._number:
                shutil.rmtree(self._part / str(number), ignore_errors=True)
