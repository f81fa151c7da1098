"""app=predict with predict.state: from the kept prediction to the next one.

The workers agree on the newest prediction that all of them have. It is used if every worker finds
it whole, made by the same model, and its nodes in the same order; else all compute everything.
"""

import hashlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partitioning.links.id_files import find_positions
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import SETUP, MessageTag
from retexo.exchange.changed_rows import keeps_order
from retexo.models.stage import OutputHeads, Stage
from retexo.results.prediction_state import (
    NO_NUMBER,
    DamagedState,
    StateWriter,
    find_numbers,
    open_kept,
)
from retexo.trainers.context import Context
from retexo.trainers.incremental import ChangedNodes, FormerPrediction
from retexo.trainers.lazy import InferenceResult

logger = logging.getLogger(__name__)
REASONS = (
    "",
    "no earlier prediction is kept on every worker",
    "what is kept there is damaged",
    "what is kept there is of another model, other edge columns or another number of partitions",
    "the nodes of a partition have another order than before",
)
"""Why everything is computed, by the number that workers send."""
NONCE_BITS = 31


def infer_changed(
    context: Context, stages: Sequence[Stage], heads: OutputHeads, folder: Path
) -> tuple[InferenceResult, dict[str, Any]]:
    """The prediction, and at rank 0 what predictions.json says of it; all workers call it.

    folder: of predict.state.
    """
    comm, part = context.comm, folder / f"part{context.comm.rank}"
    data = (context.edges.weight, context.edges.edge_feat, context.edge_means)
    identity = {
        "model": _digest(stages, heads),
        "num_parts": comm.world_size,
        "rank": comm.rank,
        "edge_columns": [None if each is None else list(each.shape[1:]) for each in data],
    }
    number, new_number = _agree_on_number(comm, find_numbers(part))
    former, reason = _open_former(part, number, identity, context)
    reasons = comm.all_gather(torch.tensor([reason]), SETUP)[:, 0]
    worst = int(reasons.argmax())
    if reasons[worst]:
        former = _empty_former(context)
    writer = StateWriter(part, new_number)
    changed = ChangedNodes(context, former, writer)
    inferred = changed.run(stages, heads)
    counts = _gather_counts(comm, changed, writer.num_bytes)
    kept = former.kept
    totals = counts if kept is None or not kept.totals else kept.totals
    writer.commit(identity, totals)
    comm.all_gather(torch.tensor([new_number]), SETUP)  # all have committed
    writer.remove_former()
    if comm.rank != 0:
        return inferred, {}
    return inferred, {
        "state": str(folder),
        "why_everything": f"rank {worst}: {REASONS[reasons[worst]]}" if kept is None else None,
        "num_layers": len(stages),
        "nodes_of_graph": sum(context.graph_info.part_sizes),
        **counts,
        "last_full": totals,
    }


def _digest(stages: Sequence[Stage], heads: OutputHeads) -> str:
    """Return the sha256 (hex) of a trained network: its stages, parameters and output heads."""
    digest = hashlib.sha256(repr(asdict(heads)).encode())
    for stage in stages:
        digest.update(repr(stage).encode())
        for name, parameter in stage.named_parameters():
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def _agree_on_number(comm: Communicator, numbers: Sequence[int]) -> tuple[int, int]:
    """The newest number that all workers have, or NO_NUMBER, and a new, larger one.

    numbers: of this worker, the newest first; two at most are left by a killed command.
    """
    newest = [*numbers[:2], NO_NUMBER, NO_NUMBER][:2]
    sent = torch.tensor([*newest, secrets.randbits(NONCE_BITS)])
    rows = comm.all_gather(sent, SETUP).tolist()
    known = [{*row[:2]} - {NO_NUMBER} for row in rows]
    sequence = max((max(each) for each in known if each), default=-1) >> NONCE_BITS
    common = set.intersection(*known)
    new = (sequence + 1 << NONCE_BITS) + rows[0][2]
    return max(common, default=NO_NUMBER), new


def _open_former(
    part: Path, number: int, identity: dict[str, Any], context: Context
) -> tuple[FormerPrediction, int]:
    """Open the kept prediction with this number. Return it, or an empty one, and the index in
    REASONS why it cannot be used, 0 if it can.
    """
    nothing = _empty_former(context)
    if number == NO_NUMBER:
        return nothing, 1
    try:
        kept = open_kept(part, number)
    except DamagedState as error:
        logger.warning("%s; it is left unused", error)
        return nothing, 2
    if dict(kept.identity) != identity:
        return nothing, 3
    nodes = find_positions(kept.arrays["node_ids"], context.partition.node_ids.numpy())
    return (FormerPrediction(kept, nodes), 0) if keeps_order(nodes) else (nothing, 4)


def _empty_former(context: Context) -> FormerPrediction:
    """Return a former prediction that knows no node."""
    return FormerPrediction(None, np.full(context.partition.num_inner, -1))


def _gather_counts(comm: Communicator, changed: ChangedNodes, num_bytes: int) -> dict[str, Any]:
    """At rank 0 the sums over all workers; elsewhere nothing."""
    work = changed.work
    own = [*work.nodes, *work.rows, *work.bytes, changed.num_boundary_rows, num_bytes]
    rows = comm.gather(torch.tensor(own), MessageTag("metrics"))
    if not len(rows):
        return {}
    *counts, boundary, state_bytes = rows.sum(dim=0).tolist()
    steps = len(work.nodes)
    return {
        "nodes": counts[:steps],
        "rows": counts[steps : 2 * steps],
        "bytes": counts[2 * steps :],
        "boundary_rows": boundary,
        "state_bytes": state_bytes,
    }
