"""How many of a site's nodes others have asked for, in all runs together, and the limit on it (sites.max_rows_shared).

Beside the site's part, asked.npz: names of the sites, and for each of them, by its place, the ids that it has asked for
in runs with a limit. Rows of these nodes have left the site, as features or as what a model makes of them.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.errors import InputError
from partitioning.files import reading, rename_durably
from retexo.arrays import IntArray

LEDGER = "asked.npz"


def check_limit(
    folder: Path,
    sites: Sequence[str],
    asked: Sequence[IntArray],
    num_nodes: int,
    limit: float,
    kind: str = "",
) -> None:
    """Note what each of these sites asks for, distinct ids; InputError, and nothing noted, where it is too much.

    limit: most nodes that any other site may have asked for, in all runs; below 1 as a share of num_nodes.
    kind: their type in a heterogeneous graph, where each has a limit and an account of its own.
    """
    path, most = folder / (f"asked-{kind}.npz" if kind else LEDGER), most_nodes(limit, num_nodes)
    before = _read(path)
    after = {
        name: np.union1d(before.get(name, ids[:0]), ids)
        for name, ids in zip(sites, asked, strict=True)
    }
    over = [
        f"{name} asks for {len(ids)}, {len(after[name])} with what it has had in other runs"
        for name, ids in zip(sites, asked, strict=True)
        if len(after[name]) > most
    ]
    if over:
        raise InputError(
            f"sites.max_rows_shared={limit}: at most {most} of {num_nodes} nodes are given to a site; "
            f"{'; '.join(over)}; nothing was given. Ask why, or allow more ({path} keeps the account)"
        )
    everything = {**before, **after}
    arrays: dict[str, Any] = {str(place): ids for place, ids in enumerate(everything.values())}
    unfinished = path.with_name(f".unfinished-{os.getpid()}-{LEDGER}")
    try:
        np.savez(unfinished, sites=np.array(list(everything)), **arrays)
        rename_durably(unfinished, path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); sites.max_rows_shared needs it"
        ) from error


def most_nodes(limit: float, num_nodes: int) -> int:
    """What sites.max_rows_shared allows of so many nodes; below 1 it is a share of them."""
    return int(limit * num_nodes if limit < 1 else limit)


def _read(path: Path) -> dict[str, IntArray]:
    if not path.exists():
        return {}
    with (
        reading(path, "account of what sites asked for", "look for the reason"),
        np.load(path) as file,
    ):
        return {
            str(name): file[str(place)].astype(np.int64) for place, name in enumerate(file["sites"])
        }
