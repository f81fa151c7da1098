"""The worker of app=update on several machines: it changes its own partition.

Workers tell each other which nodes they delete, how many new ones they have, and the numbers of the
sources of new edges that they own; then each renews its halo list and its out-degrees.

Messages, all of kind setup, in bytes over all W workers: counts, 24 W (W - 1) for each type of
nodes; 8 (W - 1) for each deleted node, and twice that for each new node and each source on another
machine that a partition asks for; out-degrees as compute_global_out_degree sends them; the
description of each partition, W - 1 times.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partitioning.directory.npy_files import read_edges, read_nodes
from partitioning.directory.partition import Partition
from partitioning.errors import InputError
from partitioning.graph_data import PLAIN_RELATION, PLAIN_TYPE
from partitioning.update.own_part import OwnPart
from partitioning.update.update_directory import describe_part
from partitioning.update.update_part import OUT_DEGREES, PartUpdater
from partitioning.update_settings import UpdateSettings
from retexo.arrays import IntArray
from retexo.comm.collectives import Communicator
from retexo.comm.received import check_announced
from retexo.comm.socket_transport import Streams
from retexo.comm.traffic_meter import SETUP
from retexo.comm.transport import PeerLost
from retexo.exchange.exchange_plan import compute_global_out_degree
from retexo.launch.heartbeat import Progress
from retexo.worker.process import Job, configure, serve

MAX_MESSAGE = 1 << 31
"""Most elements of a list that a peer announces."""


@dataclass(frozen=True)
class UpdateJob(Job):
    """A worker's part of app=update."""

    update: UpdateSettings
    path: Path
    """The directory that is changed."""
    unfinished: Path
    """The new one."""


def main(rank: int, job: UpdateJob, parent: Connection, streams: Streams | None) -> None:
    """Entry of a worker process: call `run` and send its result, or its error, to the parent."""
    serve(run, rank, job, parent, streams)


def run(
    rank: int, job: UpdateJob, streams: Streams | None, progress: Progress | None = None
) -> dict[str, Any]:
    """Read the tables, join the group, and update the partition."""
    configure(rank, job.settings)
    ranks = job.settings.cluster.local_ranks
    own = OwnPart.read(job.path, ranks, rank, job.update)
    if progress is not None:
        progress.enter("rendezvous")
    with job.connected(rank, streams) as transport:
        return update_own(own, job.communicator(transport), job.unfinished)


def update_own(own: OwnPart, comm: Communicator, folder: Path) -> dict[str, Any]:
    """Write a partition's new folder; return `parts`, `bytes` and `notes`.

    These are the description of each partition (describe_part), the bytes that all workers sent,
    and remarks on the own tables.

    All workers call it.
    """
    names = list(own.held.types)
    counts = np.array(
        [
            [len(own.deleted(name)), len(own.new_ids(name)), len(own.sources_elsewhere(name))]
            for name in names
        ]
    )
    everyone = comm.all_gather(torch.from_numpy(counts), SETUP).numpy()  # [W, types, 3]
    deleted, num_new, resolved = {}, {}, {}
    for place, name in enumerate(names):
        of_type = everyone[:, place]
        num_new[name] = of_type[:, 1]
        deleted[name] = np.concatenate(
            _share(own.deleted(name), of_type[:, 0].tolist(), comm, "deleted nodes")
        )
        resolved[name] = _resolve(own, name, of_type, deleted[name], comm)
    held, change, numbers = own.finish(deleted, num_new, resolved)
    made = PartUpdater(held, change, numbers, folder).update(own.part)
    if PLAIN_RELATION in held.relations:
        bounds = numbers[PLAIN_TYPE].bounds
        _write_degrees(folder / f"part{own.part}", bounds, own, comm)
    row = describe_part(held, change, numbers, made, own.part, folder)
    row["bytes"] = sum(comm.meter.entries.values())
    rows = _gather_json(row, comm)
    return {"parts": rows, "bytes": sum(each["bytes"] for each in rows), "notes": change.notes}


def _share(values: IntArray, sizes: list[int], comm: Communicator, what: str) -> list[IntArray]:
    """Send a list to all others, and return those of all workers; `sizes` are their lengths."""
    for peer, size in enumerate(sizes):
        check_announced(peer, what, size, MAX_MESSAGE)
    tensor = torch.from_numpy(np.ascontiguousarray(values, np.int64))
    received = comm.all_to_all([tensor] * comm.world_size, sizes, SETUP)
    return [each.numpy() for each in received]


def _resolve(
    own: OwnPart, name: str, counts: IntArray, deleted: IntArray, comm: Communicator
) -> IntArray:
    """Ask the others for the numbers of sources that they own, and which ids are new here.

    Return the numbers of OwnPart.elsewhere, -1 where none was asked for.

    Raises:
        InputError: a source is nowhere or deleted, or a new id is there already.
    """
    places = own.sources_elsewhere(name)
    asked, new = own.elsewhere[name][places], own.new_ids(name)
    sizes = (counts[:, 1] + counts[:, 2]).tolist()
    wanted = _share(np.concatenate((asked, new)), sizes, comm, "ids")
    before = int(counts[: comm.rank, 1].sum())
    first_new = int(own.bounds[name][-1]) + before
    answers = [torch.from_numpy(own.find(name, ids, first_new)) for ids in wanted]
    received = comm.all_to_all(answers, [len(asked) + len(new)] * comm.world_size, SETUP)
    found = np.stack([each.numpy() for each in received])
    found[comm.rank, len(asked) :] = -1  # its own new nodes
    limit = int(own.bounds[name][-1]) + int(counts[:, 1].sum())
    if (found >= limit).any():
        raise PeerLost("a peer answered with the number of a node that is not there")
    owner = found.max(axis=0)
    resolved = np.full(len(own.elsewhere[name]), -1)
    resolved[places] = owner[: len(asked)]
    problem = _find_problem(own, name, owner[: len(asked)], owner[len(asked) :], deleted)
    if problem is not None:
        with suppress(PeerLost):  # the others end as soon as they know
            comm.all_gather(torch.tensor([1]), SETUP)
        raise InputError(problem)
    wrong = comm.all_gather(torch.tensor([0]), SETUP)
    if bool(wrong.any()):
        ranks = wrong[:, 0].nonzero()[:, 0].tolist()
        raise PeerLost(f"the change of partition {ranks[0]} does not fit; its message says why")
    return resolved


def _find_problem(
    own: OwnPart, name: str, sources: IntArray, new: IntArray, deleted: IntArray
) -> str | None:
    """Say which source is nowhere or deleted, or which new node is on another machine already."""
    of_type = f" of type {name}" if name else ""
    ids = own.elsewhere[name][own.sources_elsewhere(name)]
    for wrong, why in (
        (sources < 0, "no machine has it"),
        (np.isin(sources, deleted), "another machine deletes it"),
    ):
        if wrong.any():
            node = _describe_id(own, name, int(ids[int(wrong.argmax())]))
            return (
                f"{int(wrong.sum())} edges of the change begin at a node{of_type} that is not"
                f" there, {node} for instance: {why}; leave them out"
            )
    if (new >= 0).any():
        node = _describe_id(own, name, int(own.new_ids(name)[int((new >= 0).argmax())]))
        return (
            f"update.new_nodes: node {node}{of_type} is in another partition already; leave it out"
        )
    return None


def _describe_id(own: OwnPart, name: str, node: int) -> str:
    """Return a node's id for a message, or its hash where ids are names."""
    return f"one whose name has the hash {node}" if own.held.types[name].named else str(node)


def _write_degrees(folder: Path, bounds: IntArray, own: OwnPart, comm: Communicator) -> None:
    """Count the out-degrees of inner and halo nodes in the whole graph, and write them."""
    nodes = read_nodes(folder, bounds, own.part, own.meta.num_features)
    edges = read_edges(folder, nodes, nodes)
    none = torch.zeros(0)
    partition = Partition(
        rank=own.part,
        num_parts=comm.world_size,
        num_inner=nodes.num_inner,
        num_halo=nodes.num_halo,
        src=edges["src"],
        dst=edges["dst"],
        features=nodes.features,
        labels=none,
        train_mask=none,
        val_mask=none,
        test_mask=none,
        node_ids=nodes.node_ids,
        halo_owner=nodes.halo_owner,
        halo_index=nodes.halo_index,
        in_degree=none,
        out_degree=None,
        self_loops=0,
        edge_weight=edges.get("edge_weight"),
    )
    degree = compute_global_out_degree(partition, tuple(np.diff(bounds).tolist()), comm)
    np.save(folder / OUT_DEGREES, degree.numpy())


def _gather_json(value: dict[str, Any], comm: Communicator) -> list[dict[str, Any]]:
    """Return the JSON objects of all workers, by rank."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = comm.all_gather(torch.tensor([len(text)]), SETUP)[:, 0].tolist()
    for peer, size in enumerate(sizes):
        check_announced(peer, "description", size, MAX_MESSAGE)
    tensor = torch.from_numpy(text.copy())
    received = comm.all_to_all([tensor] * comm.world_size, sizes, SETUP)
    return [json.loads(each.numpy().tobytes()) for each in received]
