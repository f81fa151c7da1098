"""What one unit of work on a boundary takes on this machine; see retexo.estimate.machine_costs."""

import math

import numpy as np
import torch

from partitioning.directory.types import Partition
from retexo.arrays import Int32Array, IntArray, counted, occurring, sparse_matrix, taken
from retexo.estimate.timing import UnitCosts, seconds_of
from retexo.exchange.boundary import BoundaryCode, incoming_boundaries
from retexo.exchange.cover import minimum_cover
from retexo.exchange.flows import Blocks
from retexo.exchange.selection import DENSE, CutEdges, LocalRows, Selection, Vectors
from retexo.nn.matrix import dense

EXPONENT = 2.5
"""Of the power law of degrees; between 2 and 3 in most measured graphs."""
PEERS = 3
"""Times that a phase does what it does for each peer: those after the first find memory that the first has left."""


def of_boundary(rng: np.random.Generator, num_edges: int) -> UnitCosts:
    """Edges of a boundary, so many, found, written and read; looked at and numbered; covers, and sums."""
    num_halo = num_inner = num_edges // 12
    dst, halo = np.divmod(
        np.sort(rng.integers(num_inner * num_halo, size=num_edges)), num_halo
    )  # as in a directory
    part = _part(num_inner, num_halo, num_inner + halo, dst)
    required = np.where(np.arange(num_inner) % 10, 2, 3).astype(np.uint8)  # a tenth is labelled
    (boundary,) = incoming_boundaries(part, required, True)
    source, place = boundary.source, np.arange(num_halo, dtype=np.int32)
    code, numbers = BoundaryCode(num_edges, len(boundary.targets), num_halo, 2), np.arange(num_halo)
    written, occurs = code.write(boundary, numbers), numbers % 10 > 0

    def alone() -> None:
        """What of finding, writing and reading is not done in blocks."""
        np.repeat(np.arange(len(boundary.targets)), boundary.num_sources)
        torch.cat((written, written[:1]))
        for _ in range(2):
            source.max(), np.cumsum(occurs, dtype=np.int32), np.flatnonzero(occurs)

    return {
        "find_edge": seconds_of(
            num_edges, lambda: incoming_boundaries(part, required, True), PEERS, fresh=True
        ),
        "occurring_end": seconds_of(
            num_edges, lambda: occurring(source, num_halo), PEERS, fresh=True
        ),
        "renumber_end": seconds_of(num_edges, lambda: taken(place, source), PEERS, fresh=True),
        "scan_edge": seconds_of(
            num_edges, lambda: np.flatnonzero((source >= 9) & (source < 99)), PEERS, fresh=True
        ),
        "write_edge": seconds_of(
            num_edges, lambda: code.write(boundary, numbers), PEERS, fresh=True
        ),
        "read_edge": seconds_of(num_edges, lambda: code.read(written), PEERS, fresh=True),
        "alone_edge": seconds_of(num_edges, alone, PEERS, fresh=True),
        "cover_small": _cover(_ends(rng, 300_000, 1)),
        "cover_flow": _cover(_ends(rng, 300_000, 100)),
        **_large_cover(_ends(rng, num_edges, 1, EXPONENT)),
        "partial_edge": _partial_sums(rng, num_edges),
    }


def _part(num_inner: int, num_halo: int, src: IntArray, dst: IntArray) -> Partition:
    """Of which only the edges matter, with one owner of all halo nodes."""
    nodes, halo = (torch.zeros(count, dtype=torch.int64) for count in (num_inner, num_halo))
    return Partition(
        rank=0,
        num_parts=1,
        num_inner=num_inner,
        num_halo=num_halo,
        src=torch.from_numpy(src.astype(np.int32)),
        dst=torch.from_numpy(dst.astype(np.int32)),
        features=torch.zeros(num_inner, 0),
        labels=nodes,
        train_mask=nodes.bool(),
        val_mask=nodes.bool(),
        test_mask=nodes.bool(),
        node_ids=nodes,
        halo_owner=halo,
        halo_index=halo,
        in_degree=nodes,
        out_degree=None,
        self_loops=0,
    )


def _partial_sums(rng: np.random.Generator, num_edges: int) -> float:
    """Seconds an edge to get ready the sums of all targets of a boundary, 12 edges of each."""
    count = num_edges // 12
    source, target = (rng.integers(count, size=num_edges, dtype=np.int32) for _ in range(2))
    edges = CutEdges(np.arange(count, dtype=np.int32), source, np.sort(target), count)
    local = LocalRows(torch.zeros(count, 1), torch.rand(count), dense, 1, "full")
    every = Selection(DENSE, np.zeros(count, bool), np.ones(count, bool))
    return seconds_of(num_edges, lambda: Vectors.of(local, every, edges), PEERS, fresh=True)


_Ends = tuple[Int32Array, Int32Array, IntArray, IntArray]
"""As minimum_cover takes them."""


def _ends(
    rng: np.random.Generator, num_edges: int, spread: int, exponent: float = math.inf
) -> _Ends:
    """A random boundary of 11 edges a row, and a tenth fewer sums, with degrees by a power law, or nearly alike; rows
    weigh 500 and up to `spread` more, and sums twice as much if spread is above 1."""
    count = num_edges // 11

    def ends(vertices: int) -> Int32Array:
        tail = np.minimum(rng.random(vertices) ** (-1 / (exponent - 1)), math.sqrt(vertices) + 1)
        share = np.cumsum(tail)
        found: Int32Array = np.searchsorted(
            share, share[-1] * np.sort(rng.random(num_edges))
        ).astype(np.int32)
        return found

    rows = 500 + rng.integers(spread, size=count)
    sums = (500 if spread == 1 else 1000) + rng.integers(spread, size=count * 9 // 10)
    return rng.permutation(ends(count)), ends(count * 9 // 10), rows, sums


def _cover(ends: _Ends, at_least: int = 0) -> float:
    """Seconds an edge for a cover, where it is known what it weighs at least."""
    return seconds_of(
        len(ends[0]), lambda: minimum_cover(*ends, at_least=at_least), PEERS, fresh=True
    )


def _large_cover(ends: _Ends) -> UnitCosts:
    """Of an edge, what one thread does, and what others take part in: passes and degrees."""
    source, target, _, sums = ends
    whole, known = _cover(ends), _cover(ends, int(sums.sum()))
    graph = sparse_matrix(
        np.ones(len(source), np.float32), source, counted(target, len(sums)), len(ends[2])
    )
    degrees = seconds_of(len(source), lambda: Blocks.of(graph).degrees, PEERS, fresh=True)
    return {"cover_large": known - degrees, "cover_passes": whole - known + degrees}
