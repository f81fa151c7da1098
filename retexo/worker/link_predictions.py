"""app=predict for links: scores of given pairs, or the most likely destinations of given nodes.

Each worker writes the pairs whose source it owns, or the destinations that it owns. Only the
numbers of nodes cross the network as ids. q given nodes at a time, K destinations, I inner nodes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.errors import InputError
from partitioning.read.id_files import add_types, find_positions, make_id_keys, read_ids
from retexo.comm.collectives import ReduceInput
from retexo.comm.traffic_meter import PREDICTIONS
from retexo.models.stage import Stage
from retexo.results.predictions import Columns, write_table
from retexo.settings.app_settings import PredictSettings
from retexo.tasks.embedded_nodes import MAX_PAIRS, EmbeddedNodes
from retexo.tasks.ranking import OwnDestinations
from retexo.tasks.task_context import TaskContext
from retexo.trainers.lazy import InferenceResult


def write_links(
    context: TaskContext,
    stages: Sequence[Stage],
    inferred: InferenceResult,
    job: Any,
    names: list[str] | None,
) -> None:
    """Write the file of this partition; InputError for an id that is no node's.

    Args:
        context: of this worker; all workers call it.
        stages: of the trained network.
        inferred: its output.
        job: an InferJob.
        names: of the inner nodes; None where ids are integers.
    """
    embedded = EmbeddedNodes.of(context, stages, inferred.by_head, [job.checkpoint.heads])
    predict, types = job.predict, job.directory.types_of_pairs
    columns = (
        _score_pairs(embedded, Path(predict.pairs), types, named=names is not None)
        if predict.pairs
        else _find_destinations(embedded, predict, names, types)
    )
    write_table(job.run_dir / "predictions" / f"part{context.comm.rank}.{predict.format}", columns)


def _number_ids(
    context: TaskContext, ids: NDArray[Any], where: str, types: Sequence[str], *, named: bool
) -> Tensor:
    """Return the numbers of nodes in the partitioned graph by their ids, int64 of the same shape.

    Each owner knows the numbers of its nodes. Ids of the graph come before those of the tables.

    Args:
        context: of this worker; all workers call it.
        ids: of the graph, or of the tables of a relation.
        where: for error messages.
        types: of the relation's source and destination; empty without a relation.
        named: whether the graph's ids are names.

    Raises:
        InputError: an id is no node's, at all workers alike.
    """
    forms = [make_id_keys(ids, named=named, where=where)]
    if types:
        forms.append(make_id_keys(add_types(ids, types), named=True, where=where))
    places = find_positions(context.partition.node_ids.numpy(), np.stack(forms))
    by_form = torch.from_numpy(np.where(places >= 0, places + context.partition.first_id + 1, 0))
    context.comm.all_reduce([ReduceInput(by_form.view(-1))], PREDICTIONS)
    known = torch.where(by_form[0] > 0, by_form[0], by_form[-1])
    if bool((known == 0).any()):
        unknown = ids[(known == 0).numpy()][0]
        raise InputError(f"{where}: the graph has no node with the id {unknown}; take it out")
    return known - 1


def score_own_pairs(
    embedded: EmbeddedNodes, ids: NDArray[Any], where: str, types: Sequence[str], *, named: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Score pairs of ids, [n, 2]; see _number_ids. All workers call it.

    Returns:
        Which pairs have their source here, bool [n], and the scores of these.
    """
    part, numbers = (
        embedded.context.partition,
        _number_ids(embedded.context, ids, where, types, named=named),
    )
    own = (numbers[:, 0] >= part.first_id) & (numbers[:, 0] < part.first_id + part.num_inner)
    return own.numpy(), embedded.score_by_source(numbers[own])[0].numpy()


def _score_pairs(
    embedded: EmbeddedNodes, path: Path, types: Sequence[str], *, named: bool
) -> Columns:
    """Return id, partner and score of the pairs in predict.pairs whose source is here.

    All workers call it.
    """
    ids = read_ids(path, "predict.pairs", 2)
    own, scores = score_own_pairs(embedded, ids, f"predict.pairs={path}", types, named=named)
    return {**_id_columns(ids[own, 0], ids[own, 1], named=named), "score": scores}


def _find_destinations(
    embedded: EmbeddedNodes,
    predict: PredictSettings,
    names: list[str] | None,
    types: Sequence[str],
) -> Columns:
    """Return the `top` highest scored nodes among those without a known edge from a given one.

    Columns of this worker's own destinations only, in the order of the given nodes, the best first.
    All workers call it.
    """
    path, top, part = Path(str(predict.nodes)), predict.top or 0, embedded.context.partition
    ids = read_ids(path, "predict.nodes", 1)[:, 0]
    where, named = f"predict.nodes={path}", names is not None
    numbers = _number_ids(embedded.context, ids, where, types, named=named)
    own_ids = part.node_ids.numpy() if names is None else np.array(names, dtype=object)
    destinations, pieces = OwnDestinations(embedded, held_out=predict.known == "all"), []
    for first in range(0, len(numbers), MAX_PAIRS):
        some = numbers[first : first + MAX_PAIRS]
        scores, nodes = destinations.find_top(some, min(top, part.num_inner))  # [q, K]
        by_worker = embedded.all_gather(scores.T.contiguous())
        # Stable: all workers break ties alike, for nodes of lower workers.
        order = torch.cat(by_worker).sort(dim=0, descending=True, stable=True).indices[:top]
        column = order.T - sum(map(len, by_worker[: embedded.context.comm.rank]))
        row, place = ((column >= 0) & (column < scores.shape[1])).nonzero(as_tuple=True)
        column = column[row, place]
        is_new = scores[row, column].isfinite()
        row, column = row[is_new], column[is_new]
        pieces.append((first + row, nodes[row, column], scores[row, column]))
    rows, places, score = (torch.cat(columns).numpy() for columns in zip(*pieces, strict=True))
    columns = _id_columns(ids[rows], own_ids[places], named=names is not None)
    return {**columns, "score": score}


def _id_columns(src: NDArray[Any], dst: NDArray[Any], *, named: bool) -> Columns:
    """Return the columns `id` and `partner` of a file of predictions."""
    if named:
        src, dst = (np.array(list(map(str, ids.tolist())), dtype=object) for ids in (src, dst))
        return {"id": src, "partner": dst}
    return {"id": src.astype(np.int64), "partner": dst.astype(np.int64)}
