"""Reads npy and npz files. Nothing is unpickled."""

import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX

from partitioning.errors import InputError, join_names
from partitioning.files.file_io import load_npy, open_regular, reading
from partitioning.graph.array_checks import Array, check_axes, expect

log = logging.getLogger(__name__)


def read_edges_and_nodes(
    path: Path, names: Mapping[str, str]
) -> tuple[dict[str, Array], dict[str, str]]:
    """Read the edges [E, 2] and arrays of nodes of an npz file of a published data set.

    Args:
        path: The file, with an array `edges`.
        names: Our names of the arrays of nodes -> theirs.

    Returns:
        The arrays by our names, with src and dst; and what to call them in messages.

    Raises:
        InputError: an array is missing or damaged, or `edges` has another shape.
    """
    arrays = read_named(path, ("edges", *names.values()))
    where = {ours: f"{path}: array `{theirs}`" for ours, theirs in names.items()}
    where |= dict.fromkeys(("src", "dst"), f"{path}: array `edges`")
    edges = arrays["edges"]
    is_right = edges.ndim == 2 and edges.shape[1] == 2 and edges.dtype.kind in "iu"
    expect(is_right, edges, where["src"], "integers [edges, 2]")
    src, dst = np.ascontiguousarray(edges.T)
    return {"src": src, "dst": dst} | {ours: arrays[names[ours]] for ours in names}, where


def read_named(path: Path, names: Collection[str]) -> dict[str, Array]:
    """Read these arrays of an npz file of a published data set.

    InputError if one is missing, damaged or a single value.
    """
    from partitioning.files.download import FETCH_AGAIN  # slow: for files that were fetched

    arrays = read_arrays(path, names, warn=False, remedy=FETCH_AGAIN)
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InputError(
            f"{path}: there is no array `{missing[0]}`; expected {', '.join(names)}; {FETCH_AGAIN}"
        )
    check_axes(arrays, names, str(path))
    return arrays


def read_arrays(
    path: Path, names: Collection[str], *, warn: bool = True, remedy: str = "write it anew"
) -> dict[str, Array]:
    """Read the arrays of an npz file that have these names, those that are there.

    Others are not unpacked; `warn`: they are logged. InputError if it is damaged or holds Python
    objects.
    """
    with _open_npz(path) as archive:
        arrays: dict[str, Array] = {}
        for name in archive.files:
            with reading(path, "array", remedy, f"{path}: array `{name}`"):
                _check_member(archive, name)
                if name in names:
                    arrays[name] = archive[name]
        others = [name for name in archive.files if name not in names]
        if others and warn:
            log.warning(
                "%s: arrays that have no meaning here are left out: %s", path, join_names(others)
            )
        return arrays


def list_arrays(path: Path) -> list[str]:
    """Return the names of the arrays of an npz file."""
    with _open_npz(path) as archive:
        return list(archive.files)


def is_csr(path: Path) -> bool:
    """Return whether an npz is one of scipy.sparse.save_npz."""
    return "format" in list_arrays(path)


@contextlib.contextmanager
def _open_npz(path: Path) -> Iterator[Any]:
    """Within the block, open an npz file; InputError if it is none, or has an array twice."""
    with contextlib.ExitStack() as opened:
        with reading(path, "npz file", "write it anew with numpy.savez"):
            file = opened.enter_context(open_regular(path))
            archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path}: this is a single npy array; expected an npz of several")
        opened.enter_context(archive)
        twice = [name for name, times in Counter(archive.files).items() if times > 1]
        if twice:
            raise InputError(
                f"{path}: holds `{twice[0]}` more than once; write it anew with numpy.savez"
            )
        yield archive


def _check_member(archive: Any, name: str) -> None:
    """Raise ValueError for a member of an npz that is no npy file.

    BadZipFile for one that cannot be opened.

    Zip files name a member twice. One whose names differ cannot be opened, because it may be an
    array that is read.
    """
    members = archive.zip.namelist()
    with archive.zip.open(name if name in members else f"{name}.npy") as member:
        if member.read(len(MAGIC_PREFIX)) != MAGIC_PREFIX:
            raise ValueError("expected only .npy members")


def read_npy(path: Path) -> Array:
    """Map an npy file for reading, so that features are read only when a part is written.

    InputError for another file, and for a single number.
    """
    with reading(path, "npy array", "write it anew with numpy.save"):
        array = load_npy(path, mmap_mode="r")
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise InputError(
            f"{path}: an archive or a single number; expected one npy array with one row per node"
        )
    return array
