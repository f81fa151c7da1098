"""What one unit of each kind of work takes on this machine: measured by calling the program, never taken from a run.

As in training several processes share a core meanwhile, and what a host, caches and memory take from them counts.
"""

import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partitioning.directory.read import PartitionDirectory, find
from partitioning.directory.write import write
from partitioning.graph_data import MASKS, GraphData
from partitioning.threads import blocks
from retexo.arrays import ByteArray
from retexo.comm.replay_log import ReplayLog, checksum
from retexo.estimate.boundary_costs import of_boundary
from retexo.estimate.memory import FLOAT
from retexo.estimate.random_graph import score_of_row, step_of_row
from retexo.estimate.timing import (
    NARROW,
    PER_CORE,
    SLOWEST,
    WIDE,
    UnitCosts,
    join,
    line,
    measuring,
    own_seconds_of,
    seconds_of,
)
from retexo.exchange.coding.rows import RowFormat, decode, encode, row_sizes
from retexo.nn.accumulate import Accumulator
from retexo.nn.block import HaloRows, InEdges, Sources
from retexo.nn.fused import ROWS_AT_ONCE, drop, relu_of_norm
from retexo.nn.linear import NOT_PROJECTED, LinearConvolution
from retexo.nn.matrix import product, row_sums
from retexo.nn.registry import default_model
from retexo.nn.stage import Architecture, Stage, build_stages
from retexo.trainers.layerwise import NODES_AT_ONCE
from retexo.training.objective import LabelledNodes
from retexo.training.task import NodeClassification
from retexo.worker.process import keep_freed_memory

WIDTH, EDGES = 256, 1_000_000
MANY = 8
"""Times as many edges where what is made is as large as the C library does not keep when it is freed."""
ROWS = 12 * ROWS_AT_ONCE
TABLE = 300_000
"""Rows that are added up: many more than caches hold, as a part has."""
TURNS = 2
"""Times that each of them measures everything: a machine is not always as fast."""
MAX_AT_ONCE = 8
"""Processes that measure at a time; each takes about 2 GiB."""
HELD = 1 << 30
"""Bytes that each holds when it measures what more memory takes: a virtual machine may have to get it from its host."""


def measure_together(turn: int) -> UnitCosts:
    """As measure, while other processes do; nothing where one of those failed."""
    with measuring():
        return measure()
    return {}


def measure() -> UnitCosts:
    """Seconds of a core for one unit of each kind of work."""
    torch.set_num_threads(1)
    keep_freed_memory()
    rng = np.random.default_rng(0)
    rows = torch.randn(40_000, WIDTH)  # more than the C library keeps, as those of a large graph
    found = {**_rounds(rows[:ROWS_AT_ONCE]), **_messages(rows)}
    found |= {
        **_embedding(rows, found["flop"]),
        **_training(found["flop"]),
        **_sums_of_neighbours(rows),
    }
    del rows
    return {**found, **of_boundary(rng, MANY * EDGES), **_added_up(), **_reading(rng)}


def _rounds(rows: Tensor) -> UnitCosts:
    """Products, copies, and the socket."""
    weight = torch.randn(WIDTH, WIDTH)
    return {
        "flop": seconds_of(2 * rows.numel() * WIDTH, lambda: product(rows, weight)),
        "copy_byte": seconds_of(rows.nbytes, lambda: rows.clone()),
        "socket_byte": seconds_of(rows.nbytes, lambda: _to_itself(rows.numpy().data.cast("B"))),
        "round": _round_of_few_rows(),
    }


def _embedding(rows: Tensor, flop: float) -> UnitCosts:
    """The norm of embeddings; and what this and products at `flop` leave of putting them into more memory."""
    weight, norm = torch.randn(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH)
    chunks, places = blocks(len(rows), NODES_AT_ONCE), np.arange(len(rows))
    held = [torch.ones(HELD, dtype=torch.uint8)]

    def embed() -> None:
        held.append(torch.empty_like(rows))
        for some in chunks:
            held[-1].numpy()[places[some]] = relu_of_norm(norm, product(rows[some], weight)).numpy()

    with torch.no_grad():
        embedded = seconds_of(rows.numel(), embed, HELD // rows.nbytes // 2, fresh=True)
        normed = seconds_of(
            rows.numel(), lambda: [relu_of_norm(norm, rows[some]) for some in chunks]
        )
    put = max(0.0, embedded - 2 * WIDTH * flop - normed)
    return {"norm_forward_value": normed, "put_byte": put / FLOAT}


def _training(flop: float) -> UnitCosts:
    """Rows that train and rows that score a hidden stage and the last: of each value that is dropped, normalised or
    compared with a label, what their products at `flop` leave."""
    task, labels = NodeClassification(47, False), torch.randint(47, (ROWS,))
    hidden, last = build_stages(
        Architecture(replace(default_model("gcn", 2, WIDTH), dropout=0.5), 100, 47), 0
    )

    def values(stage: Stage, width: int) -> tuple[float, float]:
        """Seconds, of training and of scores."""
        assert isinstance(stage.conv, LinearConvolution)
        inputs = stage.conv.inputs(None, torch.randn(ROWS, width), NOT_PROJECTED)
        nodes = LabelledNodes.of(torch.arange(ROWS), labels, inputs)

        def train() -> None:
            for place in nodes.chunks:
                task.loss_sum(stage.logits(nodes.inputs(place)), labels[place]).backward()  # type: ignore[no-untyped-call]

        @torch.no_grad()
        def score() -> None:
            for place in nodes.chunks:
                task.totals(stage.logits(nodes.inputs(place)), labels[place])

        def value(work: Callable[[], None], operations: int, values: int) -> float:
            return max(0.0, seconds_of(ROWS, work, 3) - flop * operations) / values

        sizes = width, stage.output_dim, 47
        trained = value(train, *step_of_row(*sizes, is_last=stage.is_last))
        stage.eval()
        return trained, value(score, *score_of_row(*sizes, is_last=stage.is_last))

    (hidden_value, hidden_score), (last_value, last_score) = (
        values(hidden, 100),
        values(last, WIDTH),
    )
    return {
        "hidden_value": hidden_value,
        "hidden_score": hidden_score,
        "last_value": last_value,
        "last_score": last_score,
    }


def _sums_of_neighbours(rows: Tensor) -> UnitCosts:
    """Rows looked up and added up along a million edges, 25 of a target."""
    source, factor = torch.randint(TABLE, (EDGES,)), torch.rand(TABLE)
    row_ptr = torch.arange(0, EDGES + 1, 25, dtype=torch.int32)
    total, target_of_row = torch.zeros_like(rows), torch.randperm(len(rows)).sort().values

    def bag(width: int) -> float:
        table = torch.randn(TABLE, width)
        with torch.no_grad():
            return seconds_of(
                EDGES,
                lambda: row_sums(table, source.int(), row_ptr, factor.index_select(0, source)),
            )

    bag_edge, bag_value = line(bag)
    return {
        "bag_edge": bag_edge,
        "bag_value": bag_value,
        "sum_value": seconds_of(rows.numel(), lambda: total.index_add_(0, target_of_row, rows)),
    }


def _added_up() -> UnitCosts:
    """Rows added up along the in-edges of a tenth of the nodes, and of all, whose sources are own and received; and the
    scores of all."""
    num_inner, num_edges = TABLE, 4 * EDGES
    source, target = (
        torch.randint(2 * num_inner, (num_edges,), dtype=torch.int32),
        torch.arange(num_edges) // 20,
    )
    degree, nodes = torch.bincount(target, minlength=num_inner), torch.unique(target)
    edges = InEdges.build(source, target, degree, torch.full((2 * num_inner,), 20), torch.float32)

    def build() -> InEdges:
        return InEdges.build(source, target.int(), degree, edges.out_degree, torch.float32)

    def taking(step: int, width: int, repeats: int) -> tuple[float, float]:
        """Seconds of an edge of every step-th node, and the share more that the others take."""
        (stage,) = build_stages(Architecture(default_model("gcn", 1, WIDTH), width, 47), 0)
        assert isinstance(stage.conv, LinearConvolution)
        own, here = torch.randn(num_inner, width), nodes[::step]
        none = HaloRows.none(num_inner, width, torch.float32)
        received = Sources(
            replace(none, values=torch.randn(num_inner, width), halo=torch.arange(num_inner)), none
        )

        def add_up() -> None:
            assert isinstance(stage.conv, LinearConvolution)
            sums = Accumulator(stage.conv, edges, here, own, None, torch.device("cpu"))
            sums.add(received)
            sums.inputs()

        seconds, waits = zip(
            *(own_seconds_of(num_edges // step, add_up) for _ in range(repeats)), strict=True
        )
        return statistics.fmean(seconds), statistics.fmean(waits)

    some = {width: taking(10, width, 4) for width in (NARROW, WIDE)}
    some_edge, some_value = line(lambda width: some[width][0])
    most_edge, most_value = line(lambda width: taking(1, width, 3)[0])
    logits, labels = torch.randn(num_edges // 8, 47), torch.randint(47, (num_edges // 8,))
    task, drawn = NodeClassification(47, False), torch.rand(len(labels))
    masks = drawn < 0.08, (drawn >= 0.08) & (drawn < 0.1), drawn >= 0.1

    def score() -> list[Tensor]:
        predicted = task.predictions(logits)
        return [task.counts(predicted[mask], labels[mask]) for mask in masks]

    return {
        "some_edge": some_edge / 2,  # which is looked up in two tables
        "some_value": some_value,
        "most_edge": most_edge / 2,
        "most_value": most_value,
        "waiting": statistics.fmean(
            share for _, share in some.values()
        ),  # of tenths of a second, as between messages
        "score_value": own_seconds_of(logits.numel(), score)[0],
        "build_edge": seconds_of(num_edges, build, 1, fresh=True),
    }


def _reading(rng: np.random.Generator) -> UnitCosts:
    """A part of a partition directory read and checked: of many edges, and of many features."""
    many, num_parts = 2 * MANY * EDGES, 4
    num_nodes = many // 50

    def reading(
        num_edges: int, num_nodes: int, width: int, use: Callable[[PartitionDirectory], Any]
    ) -> float:
        """Seconds."""
        (src, dst), numbers = rng.integers(num_nodes, size=(2, num_edges)), np.arange(num_nodes)
        masks = {name: numbers % len(MASKS) == place for place, name in enumerate(MASKS)}
        graph = GraphData(
            "random", src, dst, np.ones((num_nodes, width), np.float32), numbers % 2, 2, numbers
        )
        made_by: dict[str, Any] = {"request": {}, "split": {}, "versions": {}}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "parts"
            write(
                path,
                graph,
                masks,
                numbers % num_parts,
                num_parts=num_parts,
                provenance=made_by,
                overwrite=False,
            )
            directory = find([path], num_parts)
            return own_seconds_of(1, lambda: use(directory))[0]

    opened = reading(50, 50, 1, lambda directory: directory.read(0))  # files, whatever is in them
    edges = reading(many, num_nodes, 1, lambda directory: directory.read(0)) - opened
    values = reading(num_nodes, num_nodes, WIDTH, lambda directory: directory.read(0)) - opened
    hashed = reading(num_nodes, num_nodes, WIDTH, lambda directory: directory.verify([0]))
    per_part = WIDTH * num_nodes // num_parts
    return {
        "load_edge": max(0.0, edges) / (many // num_parts),
        "load_value": max(0.0, values) / per_part,
        "hash_byte": hashed / per_part / FLOAT,
    }


def _messages(rows: Tensor) -> UnitCosts:
    """Rows written as bytes, and read."""
    embedded, zeros = rows.relu(), RowFormat("sparse")
    like = (len(rows), WIDTH), rows.dtype
    return {
        "size_value": seconds_of(rows.numel(), lambda: row_sizes(embedded, zeros), 1),
        "sparse_value": seconds_of(
            rows.numel(), lambda: decode(encode(embedded, zeros), *like, zeros), 1
        ),
        # As much as the C library does not keep when it is freed.
        "page_byte": seconds_of(1 << 26, lambda: torch.ones(1 << 26, dtype=torch.uint8)),
        "log_byte": _log_of(rows.numpy().view(np.uint8).ravel()),
    }


def _log_of(rows: ByteArray) -> float:
    """Seconds a byte of what comes, to be kept for a run that goes on."""
    with tempfile.TemporaryDirectory() as folder:
        log = ReplayLog(Path(folder) / "log", "00")
        return seconds_of(rows.nbytes, lambda: log.append(checksum([rows]), [rows]))


def _to_itself(message: memoryview) -> None:
    """Send a message through the kernel, as between two workers of a node."""
    room = memoryview(bytearray(len(message)))
    sender, receiver = socket.socketpair()
    with sender, receiver:
        thread = threading.Thread(target=sender.sendall, args=(message,))
        thread.start()
        place = 0
        while place < len(message):
            place += receiver.recv_into(room[place:])
        thread.join()


def _round_of_few_rows() -> float:
    """Seconds of a round that has next to nothing to compute."""
    stage = build_stages(Architecture(default_model("gcn", 2, 256), 100, 47), 0)[0]
    parameters = list(stage.parameters())
    optimizer, rows = torch.optim.Adam(parameters), torch.randn(8, 100)
    norm, head = torch.nn.LayerNorm(256), torch.nn.Linear(256, 47)

    def steps() -> None:
        for _ in range(50):
            out = drop(rows, 0.5) @ stage.conv.neighbour_weight
            loss = torch.nn.functional.cross_entropy(
                head(relu_of_norm(norm, out)), torch.zeros(8, dtype=torch.int64)
            )
            torch.autograd.backward(loss)
            optimizer.step()

    return seconds_of(50, steps)


def mean_of(measured: list[UnitCosts]) -> UnitCosts:
    """Of several measurements, by name."""
    return {name: statistics.fmean(one[name] for one in measured) for name in measured[0]}


def unit_costs(file: Path | None) -> UnitCosts:
    """Those of the file; measured, and kept there, if there is none. ValueError where it holds something else."""
    if file and file.exists():
        kept: UnitCosts = json.loads(file.read_text(encoding="utf-8"))
        if (
            not isinstance(kept, dict)
            or not kept
            or not all(isinstance(value, float) for value in kept.values())
        ):
            raise ValueError("holds other things than constants")
        return kept
    processes = PER_CORE * min(MAX_AT_ONCE // PER_CORE, len(os.sched_getaffinity(0)))
    spawning = multiprocessing.get_context("spawn")
    together = spawning.Barrier(
        processes, timeout=SLOWEST
    )  # as workers do, which share what cores share
    with spawning.Pool(processes, join, (together,)) as pool:
        each = pool.map(measure_together, range(TURNS * processes), chunksize=1)
    if not all(each):
        raise TimeoutError(f"a measurement took longer than {SLOWEST:.0f} seconds")
    found = mean_of(each)
    if file:
        file.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found
