"""`partition_method=km1`: few halo rows, by hypergraph partitioning with mt-KaHyPar.

Every node u has a net: u and its distinct out-neighbours. A part that holds a pin of u's net without owning u needs the
row of u. So a net whose pins lie in c parts costs c - 1 rows an exchange, and the connectivity metric, km1, which is
the sum of c - 1 over all nets, is the number of halo rows, exactly (Catalyurek and Aykanat 1999, "Hypergraph-
partitioning-based decomposition for parallel sparse-matrix vector multiplication"). Edge cuts only approximate it.
mt-KaHyPar: Gottesbueren, Heuer, Maas, Sanders and Schlag 2024, "Scalable high-quality hypergraph partitioning".

N nodes and nets (net u is that of node u), P parts, M nodes in question.
"""

import math
import os
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from partitioning.errors import InputError
from partitioning.graph_data import GraphData

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

TOLERANCE = 0.05
"""No part has more than this over its even share of the nodes, nor of the training nodes where these are balanced."""

_LIBRARY_TOLERANCE = 0.03
"""What mt-KaHyPar may use of it, for nodes alone. The rest is left for the training nodes to move."""

_MAX_TRIES = 10
_EFFORT = 2_000_000
"""Edges and nodes times parts, over all tries. A small graph is tried several times and the fewest halo rows are kept:
there, chance makes 10 %, and a try takes a second at most. Luck evens out on larger ones, which get one try."""


def library() -> Any:
    """Import mt-KaHyPar, which is an extra; InputError says how to get it."""
    try:
        import mtkahypar
    except ImportError:
        raise InputError(
            "partition_method=km1 needs mt-KaHyPar: pip install -e '.[km1]' -c constraints.txt, "
            "or choose partition_method=metis"
        ) from None
    return mtkahypar


def limit(count: int, num_parts: int) -> int:
    """How many of `count` nodes one part may have: TOLERANCE over the even share, but at least that rounded up."""
    return max(math.ceil(count / num_parts), math.floor((1 + TOLERANCE) * count / num_parts))


def partition(
    graph: GraphData,
    train_mask: Mask | None,
    num_parts: int,
    rng: np.random.Generator,
    types: Ints | None = None,
) -> Ints:
    """Assign each node to a part so that few halo rows are needed; int64 [N] in [0, P).

    No part has more than limit(N, P) nodes. With a train_mask, bool [N], no part has more than limit(T, P) of the T
    training nodes either; with types, a number of each node, int64 [N], the first holds for the nodes of each type.
    There is no lower bound: a part can lack training nodes, or with many parts be empty.
    mt-KaHyPar balances one weight per node, so it balances the nodes, and `balance` then moves what has to move.

    Depends on the state of rng, and on the versions of NumPy and mt-KaHyPar, not on the number of threads.
    """
    one_try = (graph.num_nodes + graph.num_edges) * num_parts
    tries = max(1, min(_MAX_TRIES, _EFFORT // max(1, one_try)))
    types = np.zeros(graph.num_nodes, np.int64) if types is None else types
    attempts = [
        _attempt(graph, train_mask, types, num_parts, rng.permutation(graph.num_nodes))
        for _ in range(tries)
    ]
    return min(attempts, key=lambda attempt: attempt[0])[1]


def _attempt(
    graph: GraphData, train_mask: Mask | None, types: Ints, num_parts: int, renumber: Ints
) -> tuple[int, Ints]:
    """Return the halo rows and the assignment for one numbering of the nodes, int64 [N].

    The deterministic presets of mt-KaHyPar take no notice of its seed, so the numbering takes its place.
    """
    nets = make_nets(renumber[graph.src], renumber[graph.dst], graph.num_nodes)
    training = np.zeros(graph.num_nodes, dtype=np.bool_)
    if train_mask is not None:
        training[renumber] = train_mask
    # Nothing to choose where each node gets a part of its own, or has no neighbour.
    trivial = graph.num_nodes <= num_parts or nets.nnz == graph.num_nodes
    parts = np.arange(graph.num_nodes) % num_parts if trivial else _few_halo_rows(nets, num_parts)
    renumbered = np.empty_like(types)
    renumbered[renumber] = types
    balance(parts, nets, training, num_parts, renumbered)
    return halo_rows(nets, parts, num_parts), parts[renumber]


def make_nets(src: Ints, dst: Ints, num_nodes: int) -> csr_array:
    """Return the nets, int32 [N, N]: entry (u, v) is 1 if v is u or an out-neighbour of u. src, dst int64 [E]."""
    everyone = np.arange(num_nodes)
    rows, columns = np.concatenate([src, everyone]), np.concatenate([dst, everyone])
    nets = csr_array(
        (np.ones(len(rows), dtype=np.int32), (rows, columns)), shape=(num_nodes, num_nodes)
    )
    nets.sum_duplicates()
    nets.data[:] = 1
    return nets


def halo_rows(nets: csr_array, parts: Ints, num_parts: int) -> int:
    """Return km1, the sum over the nets of the parts they touch, less one; parts int64 [N]."""
    return int((_pins_in_parts(nets, parts, num_parts) > 0).sum()) - nets.shape[0]


def _pins_in_parts(nets: csr_array, parts: Ints, num_parts: int) -> NDArray[np.int32]:
    """How many pins each net has in each part, int32 [N, P]."""
    return np.asarray(nets @ np.eye(num_parts, dtype=np.int32)[parts])


def _few_halo_rows(nets: csr_array, num_parts: int) -> Ints:
    """Run mt-KaHyPar on the nets; no part is more than _LIBRARY_TOLERANCE over its even share of the nodes."""
    mtkahypar = library()
    # May be called again in one process: the threads of the first call stay, and the warning is switched off.
    kahypar = mtkahypar.initialize(len(os.sched_getaffinity(0)), print_warnings=False)
    # Other presets depend on the number of threads, or (DETERMINISTIC) end with more halo rows after as much time.
    context = kahypar.context_from_preset(mtkahypar.PresetType.DETERMINISTIC_QUALITY)
    context.set_partitioning_parameters(num_parts, _LIBRARY_TOLERANCE, mtkahypar.Objective.KM1)
    context.logging = False
    lists = pin_lists(nets)
    hypergraph = kahypar.create_hypergraph(context, nets.shape[0], len(lists), lists)
    return np.array(hypergraph.partition(context).get_partition(), dtype=np.int64)


def pin_lists(nets: csr_array) -> list[list[int]]:
    """Return the pins of each net of two pins or more; one pin lies in one part whatever happens."""
    pins = nets.indices.tolist()
    return [pins[first:end] for first, end in pairwise(nets.indptr.tolist()) if end - first > 1]


def balance(
    parts: Ints, nets: csr_array, training: Mask, num_parts: int, types: Ints | None = None
) -> None:
    """Move nodes, int64 [N], until no part is above its limit of training nodes, nor of nodes of a type. Changes parts.

    Training nodes move first; then other nodes alone, so that the first result stays. The second step never lacks
    nodes to move: a part has at most limit(T, P) <= limit(N, P) training nodes by then.
    """
    types = np.zeros(len(parts), np.int64) if types is None else types
    _shed(parts, nets, num_parts, counted=training, movable=training)
    for each in range(int(types.max(initial=-1)) + 1):
        _shed(parts, nets, num_parts, counted=types == each, movable=(types == each) & ~training)


def _shed(parts: Ints, nets: csr_array, num_parts: int, *, counted: Mask, movable: Mask) -> None:
    """Move movable nodes, bool [N], out of parts with too many counted ones, the cheapest first. Changes parts.

    Each pass takes half of the fullest part's surplus to where there is room, and then looks at the costs anew. It
    ends because each pass moves a node out of a surplus and makes none: some part has room while another has too many.
    """
    most = limit(int(counted.sum()), num_parts)
    nets_of = nets.T.tocsr()
    while True:
        room = most - np.bincount(parts[counted], minlength=num_parts)
        fullest = int(room.argmin())
        if room[fullest] >= 0:
            return
        nodes = np.flatnonzero(movable & (parts == fullest))
        cost = np.where(
            room > 0, added_rows(nets, nets_of[nodes], parts, fullest, num_parts), np.inf
        )
        target = cost.argmin(axis=1)
        first = np.argsort(cost.min(axis=1), kind="stable")[: (1 - room[fullest]) // 2]
        for part in np.unique(target[first]):
            going = first[target[first] == part]
            parts[nodes[going[: room[part]]]] = part


def added_rows(
    nets: csr_array, nets_of: csr_array, parts: Ints, source: int, num_parts: int
) -> NDArray[np.int32]:
    """How many halo rows more there are when a node of part `source` moves to each part, int32 [M, P].

    nets_of int32 [M, N]: the nets of each node in question.
    """
    pins = _pins_in_parts(nets, parts, num_parts)
    added = nets_of @ (pins == 0).astype(np.int32)
    saved = nets_of @ (pins[:, source] == 1).astype(np.int32)
    return np.asarray(added - saved[:, None])
