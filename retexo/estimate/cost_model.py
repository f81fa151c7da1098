"""What training will take, from sizes alone: operations, memory and seconds of a worker on a random graph.

The letters are those of retexo.estimate.random_graph, P parameters of a stage and R rounds besides.

Seconds are those of the mean worker, all of them alike: work times a constant (retexo.estimate.machine_costs), over the
cores that a worker has; what NumPy and SciPy do runs on one, but in blocks (partitioning.threads) on a few. What leaves
a node goes at the bandwidth; nothing but the exchange overlaps.
"""

import math
from dataclasses import dataclass
from typing import Self

from partitioning.threads import AT_LOCK
from retexo.estimate.memory import FLOAT, peak_memory
from retexo.estimate.random_graph import (
    Case,
    Wave,
    layer_work,
    needed_cut_edges,
    score_of_row,
    sent,
    step_of_row,
    waves,
)
from retexo.exchange.cover import EXACT_LIMIT, MATCHING_LIMIT
from retexo.exchange.flows import BLOCK_EDGES, MOST_BLOCKS
from retexo.exchange.layer_exchange import peers_per_batch, pieces_per_message


def operations(case: Case, layer: int) -> tuple[float, float, float]:
    """Floating-point operations of a worker in one layer: in a round to train and to score, and in the embedding."""
    (num_in, num_out), (train, val) = case.widths(layer), case.of_round
    nodes = sum(wave.nodes for wave in waves(case) if wave.layer == layer) * case.inner
    (step, _), (score, _) = _of_row(case, layer)
    return train * step, val * score, 2 * num_in * num_out * case.num_inputs * nodes


def _of_row(case: Case, layer: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Operations and values of a row that trains, and of one that scores."""
    sizes, is_last = (*case.widths(layer), case.classes, case.num_inputs), layer == case.layers - 1
    return step_of_row(*sizes, is_last=is_last), score_of_row(*sizes, is_last=is_last)


def memory(case: Case) -> float:
    """Private bytes of a worker, by the steps of retexo.estimate.memory."""
    return peak_memory([layer_work(case, layer) for layer in range(case.layers)], case.stages)


def pieces(case: Case, num_in: int) -> tuple[int, int]:
    """In how many pieces rows come in a wave, and the peers of a piece."""
    sizes = round(case.inner), FLOAT * num_in
    group = peers_per_batch(*sizes)
    return math.ceil((case.workers - 1) / group) * pieces_per_message(*sizes), group


# --- seconds ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """What a worker has of its node."""

    many: float
    """Cores."""
    blocks: float
    """Of them, for what is done in blocks."""
    single: float
    """Of one core, for what runs on one."""
    out: float
    """Seconds of the network for a byte that each worker sends."""
    hop: float
    one: dict[str, float]
    """Seconds of a core for one of each kind of work."""

    @classmethod
    def of(cls, case: Case, one: dict[str, float]) -> Self:
        cores, away = (
            case.cores / case.per_node,
            (case.workers - case.per_node) / max(1, case.workers - 1),
        )
        out = case.per_node * away / (case.bandwidth * 1e9 / 8)
        hop = case.latency * (case.workers > 1)
        many = math.floor(cores) if cores >= 1 else cores
        return cls(many, min(many, AT_LOCK), min(1.0, cores), out, hop, one)


def seconds(case: Case, one: dict[str, float]) -> dict[str, float]:
    """Of a worker, by phase."""
    speed, found = Speed.of(case, one), waves(case)
    rounds = [number * _round(case, layer, speed) for layer, number in enumerate(case.rounds)]
    nodes = case.inner * (case.labelled + case.test)
    embedded = [
        _add_up(case, wave, speed) + _embed(case, wave, speed) for wave in found if wave.embed
    ]  # one a layer
    # Who has embedded the last layer first waits in the evaluation; other waits are in what they end in.
    waited = one["waiting"] * embedded[-1] * (case.workers > 1)
    return {
        "load": _load(case, speed),
        "plan": _plan(case, speed),
        "exchange": sum(
            _exchange(case, wave, speed, any(_same_edges(wave, other) for other in found[:place]))
            for place, wave in enumerate(found)
        ),
        "aggregate": sum(_add_up(case, wave, speed) for wave in found if not wave.embed),
        "rounds": sum(rounds),
        "embed": sum(embedded),
        "evaluate": nodes * case.classes * one["score_value"] / speed.many + waited,
    }


def checksums(case: Case, one: dict[str, float]) -> float:
    """Seconds of the command before its workers: ends of edges, int32, and features come from the disk while others
    are hashed, a file in a thread."""
    ends, features = 4 * case.edges / case.workers, FLOAT * case.inner * case.features
    part = case.per_node * (2 * ends + features)
    hashed = max(part / case.cores, ends, features) * one["hash_byte"]
    return max(part / (case.disk * 1e9), hashed)


def _load(case: Case, speed: Speed) -> float:
    """Each edge and value checked, half of that in all threads: 8 of them on 16 cores took .59 of the time of one."""
    edges, values = case.edges / case.workers, case.inner * case.features
    work = edges * speed.one["load_edge"] + values * speed.one["load_value"]
    return (work / speed.single + work / speed.many) / 2


def _plan(case: Case, speed: Speed) -> float:
    """Look at all edges once a layer and once more; find, number, write and read those that are cut; send them.

    Between nodes what came is kept for a run that goes on while it is read.
    """
    one, edges, cut, peers = (
        speed.one,
        case.edges / case.workers,
        needed_cut_edges(case),
        max(1, case.workers - 1),
    )
    coded = one["find_edge"] + one["write_edge"] + one["read_edge"] - one["alone_edge"]
    work = cut * (
        coded / speed.blocks + one["alone_edge"] / min(speed.many, peers)
    )  # a peer in a thread
    work += edges * one["scan_edge"] / speed.blocks
    work += edges * ((case.layers + 1) * one["scan_edge"] + one["build_edge"]) / speed.many
    message = sent(case)["setup"] / case.workers
    noted = one["log_byte"] * (case.per_node == case.workers)
    work += message * (noted + 2 * one["page_byte"]) / speed.single
    work += message * (one["copy_byte"] + one["socket_byte"]) / speed.many
    return work + speed.out * message + 3 * speed.hop


def _same_edges(wave: Wave, other: Wave) -> bool:
    return (wave.embed, wave.edges, wave.open_edges) == (other.embed, other.edges, other.open_edges)


def _cover(num_edges: float, speed: Speed, exact: str, limit: int) -> float:
    """Seconds of one core for an edge; of more edges than the limit, passes run in threads."""
    if num_edges <= limit:
        return speed.one[exact]
    threads = max(1, min(speed.many, MOST_BLOCKS, num_edges / BLOCK_EDGES))
    return speed.one["cover_large"] + speed.one["cover_passes"] / threads


def _exchange(case: Case, wave: Wave, speed: Speed, known: bool) -> float:
    """Find the rows of the wave's edges, as sender and receiver, number the edges, cover them, unless a cover of the
    same edges is known, add up sums, write, send and read.

    On one node who is done first waits, at each message. Between nodes the messages to one batch of peers are chosen
    while those before are on their way, the next piece of one is written, and the one before is read and kept for a run
    that goes on.
    """
    one, peers, num_in = speed.one, case.workers - 1, case.widths(wave.layer)[0]
    cover = _cover(wave.open_edges, speed, "cover_small", MATCHING_LIMIT)
    in_wave = case.edges / case.workers * case.cut * wave.edges
    summed, width = (
        peers * (wave.open_edges - wave.by_rows),
        min(case.widths(wave.layer)) if wave.embed else num_in,
    )
    added = one["bag_edge"] + width * one["bag_value"]
    in_blocks = in_wave * (2 * one["occurring_end"] + one["renumber_end"])
    alone = in_wave * one["scan_edge"]
    alone += peers * wave.open_edges * cover * (not known) + summed * one["partial_edge"]
    shared = case.inner * num_in * one["size_value"] * (not wave.embed)  # once a layer
    if wave.tries_zeros:
        weighted = _cover(wave.open_edges, speed, "cover_flow", EXACT_LIMIT)
        alone += peers * wave.open_edges * (one["partial_edge"] + weighted)
        shared += peers * (wave.open_edges * added + wave.targets * num_in * one["size_value"])
    chosen = alone / speed.single + in_blocks / speed.blocks + shared / speed.many
    message = peers * wave.num_bytes
    copies = message * (one["copy_byte"] + one["socket_byte"])
    copies += peers * wave.vectors * num_in * one["sparse_value"] * wave.leaves_zeros_out
    copies += summed * added
    written = copies / speed.many  # into memory that pieces before have left
    noted = message * one["log_byte"] / speed.single
    batches, group = pieces(case, num_in)
    hops = 2 * batches * speed.hop
    if case.per_node == case.workers:
        return (chosen + written + noted) * (1 + one["waiting"]) + hops
    first = chosen * min(1.0, group / max(1, peers))
    return first + max(chosen - first + written, speed.out * message, noted) + hops


def _add_up(case: Case, wave: Wave, speed: Speed) -> float:
    """Rows along the edges, looked up among own rows and those that come; and sums, of which training and validation
    nodes pick theirs."""
    one, peers, (num_in, num_out) = speed.one, case.workers - 1, case.widths(wave.layer)
    added = min(num_in, num_out) if wave.embed else num_in
    edges = case.edges / case.workers * wave.edges
    by_rows = edges * (1 - case.cut) + peers * wave.by_rows
    tables = 1 + (wave.vectors > wave.sums)
    share = "most" if wave.embed else "some"
    work = tables * edges * one[f"{share}_edge"] + by_rows * added * one[f"{share}_value"]
    return (work + peers * wave.sums * added * (2 - wave.embed) * one["sum_value"]) / speed.many


def _round(case: Case, layer: int, speed: Speed) -> float:
    """Steps and scores; the message and the optimiser; and what a round of no nodes takes."""
    one, size = speed.one, FLOAT * case.parameters(layer)
    (train, val), stage = case.of_round, "hidden" if layer < case.layers - 1 else "last"
    trained, scored, _ = operations(case, layer)
    (_, step_values), (_, score_values) = _of_row(case, layer)
    work = (trained + scored) * one["flop"]
    work += train * step_values * one[f"{stage}_value"] + val * score_values * one[f"{stage}_score"]
    if case.is_batched:  # whose rows are picked out
        work += (
            2 * FLOAT * (train + val) * case.widths(layer)[0] * case.num_inputs * one["copy_byte"]
        )
    message = 2 * (case.workers - 1) / case.workers * size
    work += message * one["socket_byte"]
    work += (4 * message + 12 * size) * one[
        "copy_byte"
    ]  # cut, added up and put together; the optimiser
    return one["round"] / speed.single + work / speed.many + speed.out * message + 2 * speed.hop


def _embed(case: Case, wave: Wave, speed: Speed) -> float:
    """The product and the norm of all nodes that the layer works for."""
    hidden = case.hidden * (wave.layer < case.layers - 1)
    values = case.inner * (wave.nodes + case.labelled) * hidden * speed.one["norm_forward_value"]
    output = FLOAT * case.inner * case.widths(wave.layer)[1] * speed.one["put_byte"]
    return (operations(case, wave.layer)[2] * speed.one["flop"] + values + output) / speed.many
