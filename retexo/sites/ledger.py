"""How many of a site's nodes others have asked for, in all runs together, and the limit on it (sites.max_rows_shared).

Beside the site's part, asked.npz: names of the sites, and for each of them, by its place, the ids that it has asked for
in any run, with a limit or without. Rows of these nodes have left the site, as features or as what a model makes of them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.errors import InputError
from partitioning.file_io import exclusive, open_regular, reading, rename_durably, why_unwritten
from retexo.arrays import IntArray

LEDGER = "asked.npz"
PATIENCE = 30.0
"""Seconds to wait for another run that writes the account."""


def record(
    folder: Path,
    sites: Sequence[str],
    asked: Sequence[IntArray],
    num_nodes: int,
    limit: float | None,
    kind: str = "",
) -> None:
    """Note what each of these sites asks for, distinct ids; InputError, and nothing noted, where it is too much.

    limit: most nodes that any other site may have asked for, in all runs; below 1 as a share of num_nodes; None: any.
    kind: their type in a heterogeneous graph, where each has a limit and an account of its own.
    """
    path = folder / (f"asked-{kind}.npz" if kind else LEDGER)
    try:
        with exclusive(folder / f".lock-{path.name}", str(path), PATIENCE):
            before = _read(path)
            after = {
                name: np.union1d(before.get(name, ids[:0]), ids)
                for name, ids in zip(sites, asked, strict=True)
            }
            if limit is not None:
                _check_limit(limit, num_nodes, dict(zip(sites, asked, strict=True)), after, path)
            _write(path, {**before, **after})
    except OSError as error:
        raise InputError(
            f"{path}: {why_unwritten(error)}: sites.max_rows_shared needs this account of the rows that other sites get"
        ) from error


def _check_limit(
    limit: float,
    num_nodes: int,
    asked: Mapping[str, IntArray],
    after: Mapping[str, IntArray],
    path: Path,
) -> None:
    most = most_nodes(limit, num_nodes)
    over = [
        f"{name} asks for {len(ids)}, {len(after[name])} with what it has had in other runs"
        for name, ids in asked.items()
        if len(after[name]) > most
    ]
    if over:
        raise InputError(
            f"sites.max_rows_shared={limit}: at most {most} of {num_nodes} nodes are given to a site; "
            f"{'; '.join(over)}; nothing was given. Ask why, or allow more ({path} keeps the account)"
        )


def most_nodes(limit: float, num_nodes: int) -> int:
    """What sites.max_rows_shared allows of so many nodes; below 1 it is a share of them."""
    return int(limit * num_nodes if limit < 1 else limit)


def _read(path: Path) -> dict[str, IntArray]:
    if not path.exists():
        return {}
    with (
        reading(path, "account of what sites asked for", "look for the reason"),
        open_regular(path) as file,
        np.load(file, allow_pickle=False) as account,
    ):
        return {
            str(name): account[str(place)].astype(np.int64)
            for place, name in enumerate(account["sites"])
        }


def _write(path: Path, ids: Mapping[str, IntArray]) -> None:
    arrays: dict[str, Any] = {str(place): each for place, each in enumerate(ids.values())}
    unfinished = path.with_name(f".unfinished-{path.name}")
    try:
        np.savez(unfinished, sites=np.array(list(ids)), **arrays)
        rename_durably(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
