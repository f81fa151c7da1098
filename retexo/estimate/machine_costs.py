"""What one unit of each kind of work takes on this machine, measured alone: never taken from a training run."""

import json
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retexo.exchange.coding.elias_fano import read_ascending, write_ascending
from retexo.exchange.coding.rows import RowFormat, decode_into, encode, row_sizes
from retexo.exchange.cover import MATCHING_LIMIT, minimum_cover
from retexo.exchange.plan import renumbered
from retexo.exchange.selection import DENSE, LocalRows
from retexo.nn.block import InEdges
from retexo.nn.matrix import dense, drop, row_sums
from retexo.nn.stage import Architecture, build_stage
from retexo.training.task import NodeClassification

UnitCosts = dict[str, float]
"""CPU seconds of one core for one unit of each kind of work, by its name."""
MAX_AT_ONCE = 8
"""Processes that measure at a time; each takes about 1 GiB."""


def measure(process: int = 0) -> UnitCosts:
    """CPU seconds of a core for one unit of each kind of work."""
    torch.set_num_threads(1)
    rng, found = np.random.default_rng(0), {}
    n, width, many = 40_000, 256, 1_000_000  # rows of more than the C library keeps, as those of a large graph
    rows, weight = torch.randn(n, width), torch.randn(width, width)
    found["flop"] = _each(2 * 20_000 * width**2, lambda: rows[:20_000] @ weight)
    found["copy_byte"] = _each(rows.nbytes, lambda: rows.clone())
    found["socket_byte"] = _each(rows.nbytes, lambda: _to_itself(rows.numpy().data.cast("B")))
    found["dropout_value"] = _each(rows.numel(), lambda: drop(rows, 0.5))
    norm, labels = torch.nn.LayerNorm(width), torch.randint(47, (n,))
    hidden, logits = rows.clone().requires_grad_(), torch.randn(n, 47, requires_grad=True)
    ones, task = torch.ones_like(rows), NodeClassification(47, False)
    found["norm_value"] = _each(rows.numel(), lambda: torch.relu(norm(hidden + 1)).backward(ones))  # type: ignore[no-untyped-call]
    with torch.no_grad():
        found["norm_forward_value"] = _each(rows.numel(), lambda: torch.relu(norm(rows + 1)))
    loss = torch.nn.functional.cross_entropy
    found["loss_value"] = _each(logits.numel(), lambda: loss(logits, labels).backward())  # type: ignore[no-untyped-call]
    found["count_value"] = _each(logits.numel(), lambda: task.counts(logits.detach(), labels))
    found["round"] = _round_of_few_rows()
    source, target = torch.randint(200_000, (many,)), torch.arange(many) // 25
    degree, factor = torch.full((many // 25,), 25), torch.rand(200_000)
    in_edges, nodes = InEdges.build(source, target, degree, factor, torch.float32), torch.arange(many // 25)
    place, row_ptr = torch.arange(200_000, dtype=torch.int32), torch.arange(0, many + 1, 25, dtype=torch.int32)

    def look_up() -> None:
        row = place.index_select(0, in_edges.in_edges_of(nodes)[0])
        there = row >= 0
        there.cumsum(0, dtype=torch.int32)
        np.compress(there.numpy(), row.numpy())

    found["index_edge"] = _each(many, look_up)

    def bag(width: int) -> float:
        table = torch.randn(200_000, width)

        def add_up() -> torch.Tensor:
            return row_sums(table, source.int(), row_ptr, factor.index_select(0, source))

        with torch.no_grad():
            return _each(many, add_up)

    ends = source.numpy(), np.sort(rng.integers(40_000, size=many))

    def partial(width: int) -> float:
        owned = LocalRows(torch.randn(200_000, width), None, dense, width, "full")
        return _each(many, lambda: owned.add_up(*ends, 40_000, DENSE), 3)

    found["bag_edge"], found["bag_value"] = _line(bag)
    found["sum_value"] = _each(rows.numel(), lambda: torch.zeros(n, width).index_add_(0, target[:n], rows[labels]))
    found["partial_edge"], found["partial_value"] = _line(partial)
    keys = rng.integers(200_000 * 40_000, size=many)
    found["sort_edge"] = _each(many, lambda: np.divmod(np.sort(keys), 40_000))
    found["renumber_end"] = _each(many, lambda: renumbered(ends[0]))
    used = np.ones(40_000, np.uint8)
    found["scan_edge"] = _each(many, lambda: np.flatnonzero((ends[0] >= 9) & (ends[0] < 99) & (used[ends[1]] > 0)))
    keys.sort()
    code = write_ascending(keys, 200_000 * 40_000)
    found["write_edge"] = _each(many, lambda: write_ascending(keys, 200_000 * 40_000), 1)
    found["read_edge"] = _each(many, lambda: read_ascending(code, many, 200_000 * 40_000), 1)
    found["cover_small"] = _cover(rng, 300_000, 1)
    found["cover_flow"] = _cover(rng, 300_000, 100)
    found["cover_large"] = _cover(rng, MATCHING_LIMIT + 400_000, 1)
    embedded, zeros = rows.relu(), RowFormat("sparse")
    found["size_value"] = _each(rows.numel(), lambda: row_sizes(embedded, zeros), 1)
    found["sparse_value"] = _each(rows.numel(), lambda: decode_into(rows, encode(embedded, zeros), zeros), 1)
    found["code_byte"] = _each(rows.nbytes, lambda: decode_into(rows, encode(rows, RowFormat()), RowFormat()))
    return found


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


def _cover(rng: np.random.Generator, num_edges: int, spread: int) -> float:
    """Seconds an edge for a cover of a random boundary; rows weigh 500 and up to `spread` more, sums,
    unless all are alike, twice as much."""
    count = num_edges // 6
    left, right = np.divmod(np.sort(rng.integers(count**2, size=num_edges)), count)  # in the order of a plan
    weights = 500 + rng.integers(spread, size=count), (500 if spread == 1 else 1000) + rng.integers(spread, size=count)
    return _each(num_edges, lambda: minimum_cover(left, right, *weights), 1)


def _each(units: int, work: Callable[[], Any], repeats: int = 5) -> float:
    """CPU seconds of one unit; the least of several, for other work on the machine only adds."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken) / units


def _line(of_width: Callable[[int], float]) -> tuple[float, float]:
    """Seconds an edge, and a value more, through what rows of 100 and of 256 take."""
    narrow, wide = of_width(100), of_width(256)
    slope = max(0.0, (wide - narrow) / 156)
    return max(0.0, narrow - 100 * slope), slope


def _round_of_few_rows() -> float:
    """Seconds of a round that has next to nothing to compute."""
    stage = build_stage(Architecture("gcn", 2, 256, 1, 0.5, "mean", "mean", 100, 47), 0, 0)
    parameters = list(stage.parameters())
    optimizer, rows = torch.optim.Adam(parameters), torch.randn(8, 100)
    norm, head = torch.nn.LayerNorm(256), torch.nn.Linear(256, 47)

    def steps() -> None:
        for _ in range(50):
            out = drop(rows, 0.5) @ stage.conv.neighbour_weight
            loss = torch.nn.functional.cross_entropy(head(torch.relu(norm(out))), torch.zeros(8, dtype=torch.int64))
            torch.autograd.backward(loss)
            optimizer.step()

    return _each(50, steps)


def unit_costs(file: Path | None) -> UnitCosts:
    """Those of the file; measured, and kept there, if there is none. ValueError where it holds something else."""
    if file and file.exists():
        kept: UnitCosts = json.loads(file.read_text())
        if not isinstance(kept, dict) or not kept or not all(isinstance(value, float) for value in kept.values()):
            raise ValueError("holds other things than constants")
        return kept
    processes = min(MAX_AT_ONCE, len(os.sched_getaffinity(0)))
    with multiprocessing.get_context("spawn").Pool(processes) as pool:  # so that they share what cores share
        each = pool.map(measure, range(processes))
    found = {name: sum(one[name] for one in each) / processes for name in each[0]}
    if file:
        file.write_text(json.dumps(found, indent=1))
    return found
