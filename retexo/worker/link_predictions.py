"""app=predict of links: scores of given pairs, or the most likely partners of given nodes.

Each worker writes what its own nodes have: of pairs those with its sources, of partners those that are its own. Ids
cross the network as numbers of nodes alone. q given nodes at a time, K partners, I inner nodes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.errors import InputError
from partitioning.links.id_files import find_positions, make_id_keys, read_ids
from retexo.comm.collectives import ReduceInput
from retexo.models.stage import Stage
from retexo.results.predictions import Columns, write_table
from retexo.trainers.context import Context
from retexo.trainers.lazy import InferenceResult
from retexo.trainers.ranking import QUERIES, TAG, Embedded, Known, new_scores


def write_links(
    context: Any,
    stages: Sequence[Stage],
    inferred: InferenceResult,
    job: Any,
    names: list[str] | None,
) -> None:
    """Write the file of this partition. names: of the inner nodes; None where ids are integers."""
    embedded = Embedded.of(context, stages, inferred.by_head, [job.checkpoint.answer])
    wanted = job.predict
    columns = (
        _pairs(embedded, Path(wanted.pairs), named=names is not None)
        if wanted.pairs
        else _partners(embedded, Path(wanted.nodes), wanted.top, names)
    )
    write_table(job.run_dir / "predictions" / f"part{context.comm.rank}.{wanted.format}", columns)


def _numbers(context: Context, ids: NDArray[Any], where: str, *, named: bool) -> Tensor:
    """The numbers of nodes in the partitioned graph by their ids, int64 of the same shape; each owner knows its own."""
    place = find_positions(
        context.partition.node_ids.numpy(), make_id_keys(ids, named=named, where=where)
    )
    known = torch.from_numpy(np.where(place >= 0, place + context.partition.first_id + 1, 0))
    context.comm.all_reduce([ReduceInput(known.view(-1))], TAG)
    if bool((known == 0).any()):
        unknown = ids[(known == 0).numpy()][0]
        raise InputError(f"{where}: the id {unknown} is no node's; take it out")
    return known - 1


def own_scores(
    embedded: Embedded, ids: NDArray[Any], where: str, *, named: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of pairs of ids, [n, 2], which have their source here, bool [n], and the scores of these."""
    part, numbers = embedded.context.partition, _numbers(embedded.context, ids, where, named=named)
    own = (numbers[:, 0] >= part.first_id) & (numbers[:, 0] < part.first_id + part.num_inner)
    return own.numpy(), embedded.of_pairs(numbers[own]).numpy()


def _pairs(embedded: Embedded, path: Path, *, named: bool) -> Columns:
    ids = read_ids(path, "predict.pairs", 2)
    own, scores = own_scores(embedded, ids, f"predict.pairs={path}", named=named)
    return {**_columns(ids[own, 0], ids[own, 1], named=named), "score": scores}


def _partners(embedded: Embedded, path: Path, top: int, names: list[str] | None) -> Columns:
    """The nodes without a known edge to a given one that score most."""
    ids, part = read_ids(path, "predict.nodes", 1)[:, 0], embedded.context.partition
    numbers = _numbers(embedded.context, ids, f"predict.nodes={path}", named=names is not None)
    own_ids = part.node_ids.numpy() if names is None else np.array(names)
    known, found = Known(embedded), []
    for first in range(0, len(numbers), QUERIES):
        some = numbers[first : first + QUERIES]
        scores, nodes = new_scores(embedded, known, some, min(top, part.num_inner))  # [q, K]
        everyone = torch.cat(
            embedded.everywhere(scores.T.contiguous())
        )  # of all workers, one after the other
        least = everyone.topk(min(top, len(everyone)), dim=0).values[-1]
        place, at = ((scores >= least[:, None]) & scores.isfinite()).nonzero(as_tuple=True)
        found.append((first + place, nodes[place, at], scores[place, at]))
    places, partners, score = (torch.cat(each).numpy() for each in zip(*found, strict=True))
    return {**_columns(ids[places], own_ids[partners], named=names is not None), "score": score}


def _columns(src: NDArray[Any], dst: NDArray[Any], *, named: bool) -> Columns:
    kind: Any = np.str_ if named else np.int64
    return {"id": src.astype(kind), "partner": dst.astype(kind)}
