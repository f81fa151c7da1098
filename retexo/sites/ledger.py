"""A ledger of the nodes that other sites have asked for, over all runs (sites.max_rows_shared).

asked.npz lies beside the site's part. It has the names of the sites, and for each of them, by
index, the ids that it has asked for in any run, with or without a limit. Features or embeddings of
these nodes have left the site.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.errors import InputError
from partitioning.files.file_io import (
    exclusive,
    open_regular,
    reading,
    rename_durably,
    why_unwritten,
)
from retexo.arrays import IntArray

LEDGER = "asked.npz"
PATIENCE = 30.0
"""Seconds to wait for another run that writes the ledger."""


def record_requests(
    folder: Path,
    sites: Sequence[str],
    ids_by_site: Sequence[IntArray],
    num_nodes: int,
    limit: float | None,
    kind: str = "",
) -> None:
    """Add the ids that each site asks for to the ledger in a folder, under a lock.

    Args:
        ids_by_site: the distinct ids that each of `sites` asks for.
        limit: the most nodes that a site may ask for in all runs together; below 1, a share of
            num_nodes; None: no limit.
        kind: the node type in a heterogeneous graph; each has its own ledger and limit.

    Raises:
        InputError: a site asks for too many, and nothing is recorded; or the ledger cannot be
            read or written, or is locked for more than PATIENCE.
    """
    path = folder / (f"asked-{kind}.npz" if kind else LEDGER)
    try:
        with exclusive(folder / f".lock-{path.name}", str(path), PATIENCE):
            before = _read_ledger(path)
            after = {
                name: np.union1d(before.get(name, ids[:0]), ids)
                for name, ids in zip(sites, ids_by_site, strict=True)
            }
            if limit is not None:
                _check_limit(
                    limit, num_nodes, dict(zip(sites, ids_by_site, strict=True)), after, path
                )
            _write_ledger(path, {**before, **after})
    except OSError as error:
        raise InputError(
            f"{path}: {why_unwritten(error)}: sites.max_rows_shared needs this ledger of the rows"
            " that other sites get"
        ) from error


def _check_limit(
    limit: float,
    num_nodes: int,
    ids_by_site: Mapping[str, IntArray],
    after: Mapping[str, IntArray],
    path: Path,
) -> None:
    """Raise InputError if a site asks for more nodes, over all runs, than the limit allows."""
    most = max_nodes(limit, num_nodes)
    over = [
        f"{name} asks for {len(ids)}, {len(after[name])} with those of earlier runs"
        for name, ids in ids_by_site.items()
        if len(after[name]) > most
    ]
    if over:
        raise InputError(
            f"sites.max_rows_shared={limit}: a site may get at most {most} of {num_nodes} nodes;"
            f" {'; '.join(over)}; nothing was sent. Ask the site why, or raise the limit ({path} is"
            " the ledger)"
        )


def max_nodes(limit: float, num_nodes: int) -> int:
    """Return the number of nodes that sites.max_rows_shared allows; below 1 it is a share."""
    return int(limit * num_nodes if limit < 1 else limit)


def _read_ledger(path: Path) -> dict[str, IntArray]:
    """Read the ids that each site has asked for so far; none without a file."""
    if not path.exists():
        return {}
    with (
        reading(path, "ledger of a site", "find out why it changed"),
        open_regular(path) as file,
        np.load(file, allow_pickle=False) as ledger,
    ):
        return {
            str(name): ledger[str(index)].astype(np.int64)
            for index, name in enumerate(ledger["sites"])
        }


def _write_ledger(path: Path, ids: Mapping[str, IntArray]) -> None:
    """Write the ids that each site has asked for into an npz file, atomically."""
    arrays: dict[str, Any] = {
        str(index): ids_of_peer for index, ids_of_peer in enumerate(ids.values())
    }
    unfinished = path.with_name(f".unfinished-{path.name}")
    try:
        np.savez(unfinished, sites=np.array(list(ids)), **arrays)
        rename_durably(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
