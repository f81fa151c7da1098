"""`partition_method=km1`: minimises halo rows by hypergraph partitioning with mt-KaHyPar.

Every node u has a net: u and its distinct out-neighbours, the pins. A part with a pin of u's net
that does not own u needs the row of u. So a net with pins in c parts costs c - 1 rows per exchange,
and the connectivity metric km1, the sum of c - 1 over all nets, is exactly the number of halo rows
(Catalyurek and Aykanat 1999, "Hypergraph-partitioning-based decomposition for parallel
sparse-matrix vector multiplication"). Edge cuts only approximate it. mt-KaHyPar: Gottesbueren,
Heuer, Maas, Sanders and Schlag 2024, "Scalable high-quality hypergraph partitioning".

N nodes and nets (net u belongs to node u), P parts, M candidate nodes.
"""

import math
import os
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from partitioning.errors import require_packages
from partitioning.graph.graph_data import GraphData

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

TOLERANCE = 0.05
"""Limit of a part above its even share of the nodes and, where balanced, of the training nodes."""

_LIBRARY_TOLERANCE = 0.03
"""The part of it for mt-KaHyPar, which balances nodes alone; the rest lets training nodes move."""

_MAX_TRIES = 10
_EFFORT = 2_000_000
"""Edges and nodes times parts, over all tries. A small graph is partitioned several times and the
result
with the fewest halo rows is kept: results differ by 10 %, and a try takes at most a second. Larger
graphs differ less and get one try."""


def library() -> Any:
    """Import mt-KaHyPar, which is an extra; InputError says how to get it."""
    require_packages("partition_method=km1", "km1", "mtkahypar")
    import mtkahypar

    return mtkahypar


def limit(count: int, num_parts: int) -> int:
    """Return the most nodes of `count` in one part: TOLERANCE above the even share, rounded down.

    It is at least the even share rounded up.
    """
    return max(math.ceil(count / num_parts), math.floor((1 + TOLERANCE) * count / num_parts))


def partition(
    graph: GraphData, training: Mask, num_parts: int, rng: np.random.Generator, types: Ints
) -> Ints:
    """Assign each node to a part so that few halo rows are needed.

    mt-KaHyPar balances one weight per node: the nodes. `balance` then moves nodes to meet the other
    limits. There is no lower bound: a part can lack training nodes or, with many parts, be empty.

    Args:
        graph: plain, N nodes.
        training: bool [N]; no part gets more than limit(T, P) of the T training nodes.
        types: int64 [N], type of each node; no part gets more than limit(N_t, P) nodes of a type.

    Returns:
        int64 [N] in [0, P). It depends on the state of rng and the versions of NumPy and
        mt-KaHyPar, not on the number of threads.

    Raises:
        InputError: mt-KaHyPar is not installed.
    """
    one_try = (graph.num_nodes + graph.num_edges) * num_parts
    tries = max(1, min(_MAX_TRIES, _EFFORT // max(1, one_try)))
    attempts = [
        _attempt(graph, training, types, num_parts, rng.permutation(graph.num_nodes))
        for _ in range(tries)
    ]
    return min(attempts, key=lambda attempt: attempt[0])[1]


def _attempt(
    graph: GraphData, training: Mask, types: Ints, num_parts: int, renumber: Ints
) -> tuple[int, Ints]:
    """Return the number of halo rows and the part of each node, int64 [N], for one renumbering.

    The parts meet the limits of `partition`. renumber: int64 [N], the new number of each node.

    The deterministic presets of mt-KaHyPar ignore its seed, so the renumbering replaces it.
    """
    nets = make_nets(renumber[graph.edges.src], renumber[graph.edges.dst], graph.num_nodes)
    # Trivial: each node gets a part of its own, or no node has a neighbour.
    trivial = graph.num_nodes <= num_parts or nets.nnz == graph.num_nodes
    parts = np.arange(graph.num_nodes) % num_parts if trivial else _run_mt_kahypar(nets, num_parts)
    old_number = np.argsort(renumber)
    balance(parts, nets, training[old_number], num_parts, types[old_number])
    return halo_rows(nets, parts, num_parts), parts[renumber]


def make_nets(src: Ints, dst: Ints, num_nodes: int) -> csr_array:
    """Return the nets, int32 [N, N]: row u is the net of node u, with 1 for its pins.

    The pins are u and its out-neighbours. src, dst: int64 [E].
    """
    everyone = np.arange(num_nodes)
    rows, columns = np.concatenate([src, everyone]), np.concatenate([dst, everyone])
    nets = csr_array(
        (np.ones(len(rows), dtype=np.int32), (rows, columns)), shape=(num_nodes, num_nodes)
    )
    nets.sum_duplicates()
    nets.data[:] = 1
    return nets


def halo_rows(nets: csr_array, parts: Ints, num_parts: int) -> int:
    """Return km1: the sum over all nets of the number of parts with a pin, minus one.

    parts: int64 [N].
    """
    return int((count_pins(nets, parts, num_parts) > 0).sum()) - nets.shape[0]


def count_pins(nets: csr_array, parts: Ints, num_parts: int) -> NDArray[np.int32]:
    """Count the pins of each net in each part, int32 [N, P]."""
    return np.asarray(nets @ np.eye(num_parts, dtype=np.int32)[parts])


def _run_mt_kahypar(nets: csr_array, num_parts: int) -> Ints:
    """Return the part of each node, int64 [N], by mt-KaHyPar in a thread on each core.

    No part is more than _LIBRARY_TOLERANCE above its even share of nodes. InputError where the
    library is not installed.
    """
    mtkahypar = library()
    # Calls after the first keep its threads and would print a warning.
    kahypar = mtkahypar.initialize(len(os.sched_getaffinity(0)), print_warnings=False)
    # Other presets depend on the number of threads, or (DETERMINISTIC) find more halo rows in the
    # same time.
    context = kahypar.context_from_preset(mtkahypar.PresetType.DETERMINISTIC_QUALITY)
    context.set_partitioning_parameters(num_parts, _LIBRARY_TOLERANCE, mtkahypar.Objective.KM1)
    context.logging = False
    lists = pin_lists(nets)
    hypergraph = kahypar.create_hypergraph(context, nets.shape[0], len(lists), lists)
    return np.array(hypergraph.partition(context).get_partition(), dtype=np.int64)


def pin_lists(nets: csr_array) -> list[list[int]]:
    """Return the pins of each net with at least two pins; a net with one pin costs nothing."""
    pins = nets.indices.tolist()
    return [pins[first:end] for first, end in pairwise(nets.indptr.tolist()) if end - first > 1]


def balance(parts: Ints, nets: csr_array, training: Mask, num_parts: int, types: Ints) -> None:
    """Move nodes until no part exceeds its limits of training nodes and of nodes of a type.

    Training nodes move first, then other nodes alone, so that the first result stays. The second
    step always has nodes to move: a part then has at most limit(T, P) <= limit(N, P) training
    nodes.

    Args:
        parts: int64 [N], the part of each node; changed in place.
        nets: [N, N], see make_nets.
        training: bool [N], the training nodes.
        num_parts: P.
        types: int64 [N], type of each node.
    """
    pins, nets_of = count_pins(nets, parts, num_parts), nets.T.tocsr()
    _move_surplus(parts, pins, nets_of, counted=training, movable=training)
    for node_type in range(int(types.max(initial=-1)) + 1):
        of_type = types == node_type
        _move_surplus(parts, pins, nets_of, counted=of_type, movable=of_type & ~training)


def _move_surplus(
    parts: Ints, pins: NDArray[np.int32], nets_of: csr_array, *, counted: Mask, movable: Mask
) -> None:
    """Move nodes out of parts with too many counted nodes, the cheapest first.

    Changes `parts` and `pins`. Each pass moves half of the fullest part's surplus to parts with
    room; then the costs are computed again. It ends because each pass reduces a surplus and makes
    none.

    Args:
        parts: int64 [N], the part of each node.
        pins: int32 [N, P], the pins of each net in each part.
        nets_of: [N, N], 1 for the nets of which each node is a pin.
        counted: bool [N], the nodes whose number is limited.
        movable: bool [N], the nodes that may move.
    """
    num_parts = pins.shape[1]
    most = limit(int(counted.sum()), num_parts)
    is_absent = (pins == 0).astype(np.int32)
    while True:
        room = most - np.bincount(parts[counted], minlength=num_parts)
        fullest = int(room.argmin())
        if room[fullest] >= 0:
            return
        nodes = np.flatnonzero(movable & (parts == fullest))
        added = count_added_rows(is_absent, pins[:, fullest], nets_of[nodes])
        cost = np.where(room > 0, added, np.inf)
        target = cost.argmin(axis=1)
        first = np.argsort(cost.min(axis=1), kind="stable")[: (1 - room[fullest]) // 2]
        for part in np.unique(target[first]):
            parts[nodes[first[target[first] == part]][: room[part]]] = part
        moved = nodes[parts[nodes] != fullest]
        of_moved = nets_of[moved]
        rows, new = of_moved.indices, np.repeat(parts[moved], np.diff(of_moved.indptr))
        np.subtract.at(pins, (rows, fullest), 1)
        np.add.at(pins, (rows, new), 1)
        changed = np.unique(rows)
        is_absent[changed] = pins[changed] == 0


def count_added_rows(
    is_absent: NDArray[np.int32], pins_of_source: NDArray[np.int32], nets_of: csr_array
) -> NDArray[np.int32]:
    """Return the number of halo rows added when a node moves to each part, int32 [M, P].

    Args:
        is_absent: int32 [N, P], 1 where a net has no pin in a part.
        pins_of_source: int32 [N], the pins of each net in the part of all candidates.
        nets_of: int32 [M, N], 1 for the nets of which each candidate node is a pin.
    """
    saved = nets_of @ (pins_of_source == 1).astype(np.int32)
    return np.asarray(nets_of @ is_absent - saved[:, None])
