"""Splits the pairs of a graph into training, validation and test pairs for link prediction.

A pair is two nodes with an edge between them, in either direction; it counts once, however many
edges it has. All edges of validation and test pairs leave the graph, so that messages cannot leak
them.

N nodes, E directed edges, P pairs; n rows (source, destination) of one split. The rows are the
edges without duplicates: an undirected pair has a row in each direction.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.graph.graph_data import (
    PLAIN_RELATION,
    SEPARATOR,
    SPLITS,
    GraphData,
    NodeTable,
    first_nodes,
    is_relation,
)
from partitioning.graph.node_names import Names, hash_names
from partitioning.graph.reverse_relations import REVERSE
from partitioning.links.adamic_adar import weighted_neighbours
from partitioning.links.score_ranks import possible_destinations
from partitioning.links.spectral_embedding import choose_spectral_embedding
from partitioning.partition_settings import SplitSettings
from partitioning.read.id_files import find_ids, read_ids
from partitioning.read.index_files import index_file

log = logging.getLogger(__name__)

Ints = NDArray[np.int64]
SHARES = (0.85, 0.05, 0.1)
"""Default of split.edges."""
MAX_POOL = 4096
"""Nodes from which all workers draw negatives; each worker has their inputs."""
MAX_DRAWS = 100
"""Attempts to draw the missing negatives before the graph counts as complete."""


@dataclass(frozen=True, eq=False)
class LinkSplit:
    """A graph and its pairs; nodes are positions in the source."""

    graph: GraphData
    """Graph without the edges of validation and test pairs."""
    rows: dict[str, Ints]
    """int64 [n, 2] by name: train, val, test; val_neg and test_neg, pairs without an edge;
    candidates, possible destinations, each twice, empty where all nodes are."""
    pool: Ints
    """int64 [M, 2] random nodes, and the number of training rows that end at each."""
    description: dict[str, Any]
    """Field `links` of meta.json."""
    spectral_val: NDArray[np.float32]
    """[N, K] from training pairs, which scores the validation pairs."""
    spectral: NDArray[np.float32]
    """[N, K] from training and validation pairs, see spectral_embedding.py."""
    neighbours: Ints
    """[E, 3], see adamic_adar.py."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that a partition directory stores."""
        return {
            **self.rows,
            "pool": self.pool,
            "spectral_val": self.spectral_val,
            "spectral": self.spectral,
            "neighbours": self.neighbours,
        }

    @property
    def destinations(self) -> Ints:
        """Return the possible destinations, int64 [C]."""
        return possible_destinations(self.rows, self.graph.num_nodes)

    def known(self) -> tuple[Ints, Ints]:
        """Return sources and destinations of all rows of all splits, and of the graph's edges."""
        rows = np.concatenate([self.rows[split] for split in SPLITS])
        edges = self.graph.edges
        return np.append(rows[:, 0], edges.src), np.append(rows[:, 1], edges.dst)


@dataclass(frozen=True, eq=False)
class _Edges:
    """Edges of a graph and the pairs that they belong to."""

    pairs: Ints
    """[E] number of each edge's pair; -1 for self loops."""
    learned_pairs: Ints
    """[E] the same, and -1 for edges of relations that are not learned."""
    rows: Ints
    """[n, 2] the learned edges without duplicates and self loops."""
    is_undirected: bool
    """Whether each row has its reverse."""


def split_links(
    graph: GraphData,
    settings: SplitSettings,
    width: int = 0,
    *,
    metric: str = "auto",
    spectral_filter: Mapping[str, float] | None = None,
) -> LinkSplit:
    """Split the pairs as the settings say.

    Args:
        graph: with all its edges.
        settings: kind, shares or files, and seed.
        width: columns of the spectral embedding, at most.
        metric: by which the spectral embedding is chosen, see choose_spectral_embedding.
        spectral_filter: of a trained model, taken where there are no validation pairs.

    Raises:
        InputError: split.edges or split.by cannot be met, no training edge is left, a pair is in
            two splits, nearly all pairs have an edge, or a file of pairs is wrong.
    """
    num_nodes, rng = graph.num_nodes, np.random.default_rng(settings.seed)
    edges = _find_edges(graph)
    given = _read_given(graph, settings)
    if given:
        rows, kind = _take_given(given, settings, edges.is_undirected)
    else:
        rows, kind = _draw_rows(graph, settings, edges, rng)
    pairs = {
        split: np.unique(_number_pairs(split_rows, num_nodes)) for split, split_rows in rows.items()
    }
    held_out = np.union1d(pairs["val"], pairs["test"])
    if kind["kind"] != "given":
        _check_disjoint(pairs, num_nodes, graph)
    # In a published split a training pair can be a test pair: authors write together again.
    train = rows.get("train", edges.rows)
    if kind["kind"] == "given" or "train" not in rows:
        train = train[~np.isin(_number_pairs(train, num_nodes), held_out)]
    rows["train"], pairs["train"] = train, np.unique(_number_pairs(train, num_nodes))
    is_kept = ~np.isin(edges.pairs, held_out)
    if not len(train) or not is_kept[edges.pairs >= 0].any():
        raise InputError(
            f"{graph.name}: the split leaves no training edge of {len(edges.rows)}; give it a"
            " larger split.edges"
        )
    known = np.unique(np.concatenate((edges.pairs[edges.pairs >= 0], *pairs.values())))
    sources, destinations = _possible_ends(graph)
    for split in ("val", "test"):
        negatives = (given or {}).get(f"{split}_neg")
        if negatives is None:
            negatives = _draw_negatives(
                len(rows[split]), (sources, destinations), num_nodes, known, rng
            )
        rows[f"{split}_neg"] = negatives
    drawn = rng.permutation(destinations)[:MAX_POOL]
    pool = np.stack((drawn, np.bincount(train[:, 1], minlength=num_nodes)[drawn]), axis=1)
    candidates = destinations if graph.relation is not None else destinations[:0]
    rows["candidates"] = np.stack((candidates, candidates), axis=1)
    description = {
        **kind,
        "undirected": edges.is_undirected,
        "pairs": {name: len(split_pairs) for name, split_pairs in pairs.items()},
        "rows": {name: len(split_rows) for name, split_rows in rows.items()},
        "edges_removed": int((~is_kept).sum()),
        "evaluator": (given or {}).get("evaluator", ""),
        "relations": [] if graph.relation is None else graph.relation["names"],
        "types": list((graph.relation or {}).get("types", ())),
    }
    remaining = keep_edges(graph, is_kept)
    spectral_val, spectral, chosen = choose_spectral_embedding(
        rows, num_nodes, width, metric, spectral_filter
    )
    neighbours = weighted_neighbours(remaining, train)
    return LinkSplit(
        remaining, rows, pool, description | chosen, spectral_val, spectral, neighbours
    )


def _find_edges(graph: GraphData) -> _Edges:
    """Find the pairs of the graph's edges, -1 for self loops, and which of them can be learned."""
    num_nodes = graph.num_nodes
    src, dst = (ends.astype(np.int64) for ends in (graph.edges.src, graph.edges.dst))
    is_loop = src == dst
    pairs = np.where(is_loop, -1, _number_pairs(np.stack((src, dst), axis=1), num_nodes))
    is_learned = np.ones(len(src), np.bool_) if graph.relation is None else graph.relation["edges"]
    directed = np.unique((src * num_nodes + dst)[is_learned & ~is_loop])
    rows = np.stack(np.divmod(directed, max(num_nodes, 1)), axis=1)
    is_undirected = np.array_equal(np.unique(rows[:, 1] * num_nodes + rows[:, 0]), directed)
    return _Edges(pairs, np.where(is_learned, pairs, -1), rows, is_undirected)


def _possible_ends(graph: GraphData) -> tuple[Ints, Ints]:
    """Return the nodes that can be sources, and those that can be destinations, of a pair."""
    nodes = np.arange(graph.num_nodes)
    if graph.relation is None:
        return nodes, nodes
    return nodes[graph.relation["sources"]], nodes[graph.relation["destinations"]]


def keep_edges(graph: GraphData, is_kept: NDArray[np.bool_]) -> GraphData:
    """Return the graph with the edges of a mask, bool [E], without times and `relation`."""
    kept = graph.edges.take(np.flatnonzero(is_kept))
    return replace(graph, relations={PLAIN_RELATION: kept}, relation=None)


def _number_pairs(rows: Ints, num_nodes: int) -> Ints:
    """Return a number for the two nodes of each row, [n], the same in both directions."""
    low, high = rows.min(axis=1), rows.max(axis=1)
    return np.asarray(low * num_nodes + high)


def _take_given(
    given: Mapping[str, Any], settings: SplitSettings, is_undirected: bool
) -> tuple[dict[str, Ints], dict[str, Any]]:
    """Return the rows of a given split, and its kind for meta.json.

    Undirected pairs get a row in each direction, but not where MRR is computed from fixed
    negatives: these are in the order of the given rows.
    """
    rows = {split: given[split] for split in SPLITS if split in given}
    if is_undirected and given.get("evaluator") != "mrr":
        rows = {
            split: np.unique(np.concatenate((split_rows, split_rows[:, ::-1])), axis=0)
            for split, split_rows in rows.items()
        }
    return rows, {"kind": "files" if settings.kind == "files" else "given"}


def _draw_rows(
    graph: GraphData, settings: SplitSettings, edges: _Edges, rng: np.random.Generator
) -> tuple[dict[str, Ints], dict[str, Any]]:
    """Draw the split of each pair, with both its directions; return the rows of each split.

    Also returns the kind for meta.json. InputError for impossible shares or split.by.
    """
    shares = settings.edges or ((1.0, 0.0, 0.0) if settings.kind == "none" else SHARES)
    if len(shares) != len(SPLITS) or min(shares) < 0 or sum(shares) > 1 + 1e-9:
        raise InputError(
            f"split.edges={list(shares)}: three shares of training, validation and test, 1 together"
            " at most"
        )
    split_of_pair = _draw_splits(graph, settings.by, edges.learned_pairs, shares, rng)
    pairs = np.unique(edges.learned_pairs[edges.learned_pairs >= 0])
    row_pairs = _number_pairs(edges.rows, graph.num_nodes)
    split_of_row = split_of_pair[np.searchsorted(pairs, row_pairs)]
    rows = {split: edges.rows[split_of_row == number] for number, split in enumerate(SPLITS)}
    kind = {"kind": "edges", "seed": settings.seed, "edges": list(shares), "by": settings.by}
    return rows, kind


def _draw_splits(
    graph: GraphData,
    by: str | None,
    edge_pairs: Ints,
    shares: tuple[float, ...],
    rng: np.random.Generator,
) -> NDArray[np.int8]:
    """Draw the split of each pair.

    Args:
        by: setting split.by: "source", "time", or None for random; InputError where it is another
            one, or there are no times. A pair's time is that of its first edge.
        edge_pairs: int64 [E], the number of each edge's pair, or -1.
        shares: of training, validation and test pairs, at most 1 together.

    Returns:
        int8 [P], an index into SPLITS, or -1 for none; pairs ascending by number.
    """
    pairs, first_edge = np.unique(edge_pairs, return_index=True)
    first_edge = first_edge[pairs >= 0]
    order = rng.permutation(len(first_edge))
    if by == "source":
        return _draw_splits_by_source(graph.edges.src[first_edge], order, shares)
    if by == "time":
        if graph.edges.edge_time is None:
            raise InputError(
                f"split.by=time: {graph.name} has no times of edges; give columns.time=NAME of its"
                " table"
            )
        earliest = np.full(len(first_edge), np.inf)
        is_paired = edge_pairs >= 0
        position = np.searchsorted(pairs[pairs >= 0], edge_pairs[is_paired])
        np.minimum.at(earliest, position, graph.edges.edge_time[is_paired])
        order = np.argsort(earliest, kind="stable")
    elif by is not None:
        raise InputError(f"split.by={by}: choose source or time, or leave it out")
    splits = np.full(len(first_edge), -1, np.int8)
    ends = np.rint(np.cumsum(shares) * len(first_edge)).astype(np.int64)
    for number, chosen in enumerate(np.split(order, ends)[:3]):
        splits[chosen] = number
    return splits


def _draw_splits_by_source(
    source: NDArray[Any], order: Ints, shares: tuple[float, ...]
) -> NDArray[np.int8]:
    """Draw the split of each pair so that the shares hold, rounded, among the pairs of each source.

    Args:
        source: [P], the source node of each pair.
        order: int64 [P], a random permutation of the pairs.
        shares: of training, validation and test pairs.

    Returns:
        int8 [P], an index into SPLITS, or -1 for none.
    """
    by_source = order[np.argsort(source[order], kind="stable")]
    _, starts, counts = np.unique(source[by_source], return_index=True, return_counts=True)
    rank = np.arange(len(source)) - np.repeat(starts, counts)
    num_used, num_test, num_val = (
        np.rint(counts * share).astype(np.int64) for share in (sum(shares), shares[2], shares[1])
    )
    ends = np.maximum(num_used, num_test + num_val), num_test + num_val, num_test
    splits = np.full(len(source), -1, np.int8)
    for number, end in enumerate(ends):
        splits[by_source[rank < np.repeat(end, counts)]] = number
    return splits


def _check_disjoint(pairs: Mapping[str, Ints], num_nodes: int, graph: GraphData) -> None:
    """Raise InputError where a pair is in two splits.

    `pairs`: ascending numbers of pairs, by split.
    """
    for one, other in combinations(sorted(pairs), 2):
        both = np.intersect1d(pairs[one], pairs[other])
        if len(both):
            ends = [graph.target_nodes.shown_id(end) for end in divmod(int(both[0]), num_nodes)]
            raise InputError(
                f"{graph.name}: {len(both)} pairs are in {one} and in {other}, the first is "
                f"{ends[0]}, {ends[1]}; take it out of one"
            )


def _draw_negatives(
    count: int,
    ends: tuple[Ints, Ints],
    num_nodes: int,
    known: Ints,
    rng: np.random.Generator,
) -> Ints:
    """Draw pairs without an edge, int64 [count, 2]: no loops; a pair may be drawn twice.

    Args:
        ends: the nodes that can be sources, and those that can be destinations.
        known: int64, ascending numbers of the pairs with an edge in the graph or a split.

    Raises:
        InputError: nearly all pairs have an edge.
    """
    negatives = np.zeros((0, 2), np.int64)
    for _ in range(MAX_DRAWS):
        if len(negatives) == count:
            return negatives
        drawn = np.stack(
            [rng.choice(end, 2 * (count - len(negatives)) + 8) for end in ends], axis=1
        )
        is_loop = drawn[:, 0] == drawn[:, 1]
        is_negative = ~is_loop & ~np.isin(_number_pairs(drawn, num_nodes), known)
        negatives = np.concatenate((negatives, drawn[is_negative]))[:count]
    raise InputError(
        f"no negatives found: nearly all pairs of {num_nodes} nodes have an edge; "
        "give a graph with fewer, or val_neg and test_neg beside the files of the split"
    )


def _read_given(graph: GraphData, settings: SplitSettings) -> Mapping[str, Any] | None:
    """Return the rows of the user's files, or of the data set's own split.

    Returns None where they are drawn. InputError for a file that is missing or wrong.
    """
    if settings.kind == "none":
        return None
    if settings.kind != "files":
        return None if settings.edges or settings.by else graph.links
    pairs: dict[str, Any] = {}
    for split in SPLITS:
        path = index_file(split, settings)
        if path is not None:
            pairs[split] = read_pairs(path, graph, f"split.{split}")
        elif split != "train":
            raise InputError(
                f"split=files needs split.{split}=PATH (npy or csv of pairs of ids), or"
                " split.dir=FOLDER"
            )
    return pairs


def read_pairs(path: Path, graph: GraphData, setting: str) -> Ints:
    """Read a file of pairs of ids. Those of a relation may be the ids of its tables, or TYPE:ID.

    Returns:
        Positions of the nodes, int64 [n, 2].

    Raises:
        InputError: names the setting, the file and the row of an unknown id or an impossible pair.
    """
    where = f"{setting}={path}"
    pairs = read_ids(path, setting, 2)
    types, nodes = (graph.relation or {}).get("types", ()), graph.target_nodes
    named = nodes.node_names is not None
    positions = find_ids(nodes.node_ids, pairs, types, named=named, where=where)
    is_unknown = positions < 0
    if is_unknown.any():
        row = int(is_unknown.any(axis=1).argmax())
        raise InputError(
            f"{where}: row {row} has the id {pairs[row][is_unknown[row]][0]}, which is no node's;"
            " correct it"
        )
    wrong = {"is a node with itself; take it out": positions[:, 0] == positions[:, 1]}
    if graph.relation is not None:
        are_ends = (
            graph.relation["sources"][positions[:, 0]]
            & graph.relation["destinations"][positions[:, 1]]
        )
        wrong["is no source and destination of task.relation; give them in that order"] = ~are_ends
    for message, rows in wrong.items():
        if rows.any():
            row = int(rows.argmax())
            raise InputError(f"{where}: row {row}, {pairs[row, 0]} and {pairs[row, 1]}, {message}")
    return positions


def find_relation(graph: GraphData, name: str | None) -> str:
    """Return SOURCE__RELATION__DESTINATION of a relation, by this name or a unique RELATION.

    None names the only relation that is not an added reverse. InputError for none or several.
    """
    relations = [SEPARATOR.join(edge_type) for edge_type in graph.relations]
    added = f"{SEPARATOR}{REVERSE}"
    matching = [
        full for full in relations if (is_relation(name, full) if name else added not in full)
    ]
    if len(matching) == 1:
        return matching[0]
    choices = ", ".join(matching or relations)
    asked = "" if name is None else f"={name}"
    raise InputError(f"task.relation{asked}: {graph.name} has the relations {choices}; choose one")


def to_graph_of_relation(graph: GraphData, name: str) -> GraphData:
    """Return a heterogeneous graph as a plain one, in which the links of one relation are learned.

    The nodes of all types are named TYPE:ID. edge_feat has the number of each edge's relation;
    times of other relations are NaN. Weights are left out with a warning, and labels are gone.

    Args:
        name: SOURCE__RELATION__DESTINATION.
    """
    relations = {SEPARATOR.join(edge_type): edge_type for edge_type in graph.relations}
    source, _, destination = relations[name]
    weighted = [
        key
        for key, relation in relations.items()
        if graph.relations[relation].edge_weight is not None
    ]
    if weighted:
        log.warning(
            "%s: the weights of %s are left out: link prediction with several types reads none",
            graph.name,
            ", ".join(weighted),
        )
    sizes = [relation.num_edges for relation in graph.relations.values()]
    relation_of_edge = np.repeat(np.arange(len(sizes)), sizes)
    is_learned = relation_of_edge == list(relations).index(name)
    edge_time, learned_time = None, graph.relations[relations[name]].edge_time
    if learned_time is not None:
        edge_time = np.full(len(is_learned), np.nan)
        edge_time[is_learned] = learned_time
    names = [
        f"{node_type}:{node}"
        for node_type, table in graph.nodes.items()
        for node in table.given_ids.tolist()
    ]
    node_ids = hash_names(np.array(names, dtype=object))
    return GraphData.plain(
        graph.name,
        NodeTable(_combine_features(graph), node_ids, Names.of(names)),
        replace(
            graph.to_homogeneous().edges,
            edge_feat=relation_of_edge.astype(np.float32)[:, None],
            edge_time=edge_time,
        ),
        labels=np.full(graph.num_nodes, -1, np.int64),
        num_classes=0,
        relation={
            "names": list(relations),
            "types": (source, destination),
            "edges": is_learned,
            "sources": _mask_type(graph, source),
            "destinations": _mask_type(graph, destination),
        },
    )


def _mask_type(graph: GraphData, node_type: str) -> NDArray[np.bool_]:
    """Return bool [N], True for the nodes of one type."""
    mask = np.zeros(graph.num_nodes, np.bool_)
    first = first_nodes(graph)[node_type]
    mask[first : first + graph.nodes[node_type].num_nodes] = True
    return mask


def _combine_features(graph: GraphData) -> Any:
    """Return each type's features in columns of its own, and a one-hot column for each type."""
    tables = list(graph.nodes.values())
    features = sp.block_diag([sp.csr_array(table.features) for table in tables], format="csr")
    types: Any = sp.block_diag(
        [np.ones((table.num_nodes, 1), np.float32) for table in tables], format="csr"
    )
    return sp.csr_array(sp.hstack([features, types]).astype(np.float32))
