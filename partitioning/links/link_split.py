"""A split of a graph's pairs of nodes, without a leak from those that are held out.

A pair is two nodes with an edge between them, in either direction; it counts once, however many edges it has. With a
pair that validates or is tested all of its edges leave the graph that messages pass along.

N nodes, E directed edges, P pairs; n rows of a set: edges without duplicates, both directions of undirected ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.graph_data import SEPARATOR, GraphData, HeteroGraphData, first_nodes
from partitioning.links.adamic_adar import weighted_neighbours
from partitioning.links.id_files import make_id_keys, find_positions, read_ids
from partitioning.links.spectral_embedding import best_spectral
from partitioning.node_names import Names, hash_names
from partitioning.node_split import PARTS, index_file
from partitioning.partition_settings import SplitSettings

Ints = NDArray[np.int64]
SHARES = (0.85, 0.05, 0.1)
MAX_POOL = 4096
"""Nodes that every worker has the inputs of, and draws negatives from."""
TRIES = 100
"""Draws of all negatives that are still missing, before the graph counts as complete."""


@dataclass(frozen=True, eq=False)
class LinkSplit:
    """What links are learned from; nodes are positions in the source, and a row is source, destination."""

    graph: GraphData
    """Without the edges of held-out pairs."""
    rows: dict[str, Ints]
    """int64 [n, 2] by set: train, val, test; val_neg and test_neg: fixed pairs without an edge."""
    pool: Ints
    """int64 [M, 2] random nodes, and how many training rows each is the destination of."""
    description: dict[str, Any]
    """What meta.json says of it, JSON-able."""
    spectral: NDArray[np.float32]
    """[N, K] partitioning.links.spectral_embedding."""
    neighbours: Ints
    """[E, 3] partitioning.links.adamic_adar."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a partition directory holds of it."""
        return {
            **self.rows,
            "pool": self.pool,
            "spectral": self.spectral,
            "neighbours": self.neighbours,
        }

    def known(self) -> tuple[Ints, Ints]:
        """Sources and destinations of all rows of all sets, and of all edges that are left."""
        rows = np.concatenate([self.rows[part] for part in PARTS])
        return np.append(rows[:, 0], self.graph.src), np.append(rows[:, 1], self.graph.dst)


def split_links(
    graph: GraphData, settings: SplitSettings, width: int = 0, *, paths: bool = False
) -> LinkSplit:
    """Split the pairs by the settings; InputError where that leaves no training edge.

    width: of `spectral`, at most. paths: whether `neighbours` are made.
    """
    num_nodes, rng = graph.num_nodes, np.random.default_rng(settings.seed)
    src, dst = graph.src.astype(np.int64), graph.dst.astype(np.int64)
    edge_pair = np.where(src == dst, -1, _pair(np.stack((src, dst), axis=1), num_nodes))
    learned = np.ones(len(src), np.bool_) if graph.relation is None else graph.relation["edges"]
    directed = np.unique((src * num_nodes + dst)[learned & (src != dst)])
    whole = np.stack(np.divmod(directed, max(num_nodes, 1)), axis=1)
    undirected = np.array_equal(np.unique(whole[:, 1] * num_nodes + whole[:, 0]), directed)
    given = _given(graph, settings)
    if given:
        both = (
            undirected and given.get("evaluator") != "mrr"
        )  # whose fixed pairs go by the order of the others
        rows = {
            part: _both_ways(given[part]) if both else given[part]
            for part in PARTS
            if part in given
        }
        kind: dict[str, Any] = {"kind": "files" if settings.kind == "files" else "given"}
    else:
        of_learned = np.where(learned, edge_pair, -1)
        drawn, kind = _drawn(graph, settings, of_learned, rng)
        of_rows = drawn[
            np.searchsorted(np.unique(of_learned[of_learned >= 0]), _pair(whole, num_nodes))
        ]
        rows = {part: whole[of_rows == number] for number, part in enumerate(PARTS)}
    pairs = {part: np.unique(_pair(listed, num_nodes)) for part, listed in rows.items()}
    held = np.union1d(pairs["val"], pairs["test"])
    if kind["kind"] != "given":
        _check_apart(pairs, num_nodes, graph)
    elif "train" in rows:  # two authors may write together again in the years that are tested
        rows["train"] = rows["train"][~np.isin(_pair(rows["train"], num_nodes), held)]
        pairs["train"] = np.unique(_pair(rows["train"], num_nodes))
    kept = ~np.isin(edge_pair, held)
    left = without_edges(graph, kept)
    if "train" not in rows:
        rows["train"] = whole[~np.isin(_pair(whole, num_nodes), held)]
        pairs["train"] = np.unique(_pair(rows["train"], num_nodes))
    if not len(rows["train"]) or not kept[edge_pair >= 0].any():
        raise InputError(
            f"{graph.name}: the split leaves no training edge of {len(directed)}; give it a larger split.edges"
        )
    known = np.unique(np.concatenate((edge_pair[edge_pair >= 0], *pairs.values())))
    every = np.arange(num_nodes)
    ends = [
        every if graph.relation is None else every[graph.relation[name]]
        for name in ("sources", "destinations")
    ]
    for part in ("val", "test"):
        fixed = (given or {}).get(f"{part}_neg")
        rows[f"{part}_neg"] = (
            _negatives(len(rows[part]), ends, num_nodes, known, rng) if fixed is None else fixed
        )
    pool = rng.permutation(ends[1])[:MAX_POOL]
    rows["candidates"] = np.stack((ends[1], ends[1]), axis=1)[
        : 0 if graph.relation is None else None
    ]
    counts = np.bincount(rows["train"][:, 1], minlength=num_nodes)[pool]
    described = {
        **kind,
        "undirected": undirected,
        "pairs": {part: len(each) for part, each in pairs.items()},
        "rows": {part: len(each) for part, each in rows.items()},
        "edges_removed": int((~kept).sum()),
        "evaluator": (given or {}).get("evaluator", ""),
        "relations": [] if graph.relation is None else graph.relation["names"],
    }
    spectral, chosen = best_spectral(rows, num_nodes, width)
    neighbours = weighted_neighbours(left, rows["train"] if paths else rows["train"][:0])
    return LinkSplit(
        left, rows, np.stack((pool, counts), axis=1), described | chosen, spectral, neighbours
    )


def without_edges(graph: GraphData, kept: NDArray[np.bool_]) -> GraphData:
    """The graph with some of its edges alone, bool [E]."""
    data: dict[str, Any] = {name: each[kept] for name, each in graph.edge_data.items()}
    return replace(
        graph, src=graph.src[kept], dst=graph.dst[kept], edge_time=None, relation=None, **data
    )


def _pair(rows: Ints, num_nodes: int) -> Ints:
    """A number for the two nodes of each row, [n, 2], the same in both directions."""
    low, high = rows.min(axis=1), rows.max(axis=1)
    return np.asarray(low * num_nodes + high)


def _both_ways(rows: Ints) -> Ints:
    return np.unique(np.concatenate((rows, rows[:, ::-1])), axis=0)


def _drawn(
    graph: GraphData, settings: SplitSettings, edge_pair: Ints, rng: np.random.Generator
) -> tuple[NDArray[np.int8], dict[str, Any]]:
    """The set of each pair, ascending by number, int8 [P]; and how it was made."""
    pairs, first = np.unique(edge_pair, return_index=True)
    first = first[pairs >= 0]
    shares = settings.edges or SHARES
    if len(shares) != len(PARTS) or min(shares) < 0 or sum(shares) > 1 + 1e-9:
        raise InputError(
            f"split.edges={list(shares)}: three shares of training, validation and test, 1 together at most"
        )
    order = rng.permutation(len(first))
    kind = {"kind": "edges", "seed": settings.seed, "edges": list(shares), "by": settings.by}
    if settings.by == "source":
        return _by_source(graph.src[first], order, shares), kind
    if settings.by == "time":
        if graph.edge_time is None:
            raise InputError(
                f"split.by=time: {graph.name} has no times of edges; give columns.time=NAME of its table"
            )
        earliest = np.full(len(first), np.inf)
        np.minimum.at(
            earliest,
            np.searchsorted(pairs[pairs >= 0], edge_pair[edge_pair >= 0]),
            graph.edge_time[edge_pair >= 0],
        )
        order = np.argsort(earliest, kind="stable")
    elif settings.by is not None:
        raise InputError(f"split.by={settings.by}: choose source or time, or leave it out")
    sets = np.full(len(first), -1, np.int8)
    ends = np.rint(np.cumsum(shares) * len(first)).astype(np.int64)
    for number, some in enumerate(np.split(order, ends)[:3]):
        sets[some] = number
    return sets, kind


def _by_source(source: NDArray[Any], order: Ints, shares: tuple[float, ...]) -> NDArray[np.int8]:
    """The shares of each source's pairs, rounded; `order` is random, int64 [P]."""
    by_source = order[np.argsort(source[order], kind="stable")]
    _, starts, counts = np.unique(source[by_source], return_index=True, return_counts=True)
    place = np.arange(len(source)) - np.repeat(starts, counts)
    used, test, val = (
        np.rint(counts * share).astype(np.int64) for share in (sum(shares), shares[2], shares[1])
    )
    sets = np.full(len(source), -1, np.int8)
    for number, end in ((0, np.maximum(used, test + val)), (1, test + val), (2, test)):
        sets[by_source[place < np.repeat(end, counts)]] = number
    return sets


def _check_apart(pairs: Mapping[str, Ints], num_nodes: int, graph: GraphData) -> None:
    names = sorted(pairs)
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            both = np.intersect1d(pairs[one], pairs[other])
            if len(both):
                ends = [graph.shown_ids[end] for end in divmod(int(both[0]), num_nodes)]
                raise InputError(
                    f"{graph.name}: {len(both)} pairs are in {one} and in {other}, the first is "
                    f"{ends[0]}, {ends[1]}; take it out of one"
                )


def _negatives(
    count: int, ends: list[Ints], num_nodes: int, known: Ints, rng: np.random.Generator
) -> Ints:
    """Random pairs of possible sources and destinations that are not known, int64 [count, 2]."""
    found = np.zeros((0, 2), np.int64)
    for _ in range(TRIES):
        if len(found) == count:
            return found
        drawn = np.stack([rng.choice(each, 2 * (count - len(found)) + 8) for each in ends], axis=1)
        apart = (drawn[:, 0] != drawn[:, 1]) & ~np.isin(_pair(drawn, num_nodes), known)
        found = np.concatenate((found, drawn[apart]))[:count]
    raise InputError(
        f"negatives are asked for where none exist: nearly all pairs of {num_nodes} nodes have an edge; "
        "give a graph with fewer, or val_neg and test_neg beside the files of the split"
    )


# --- given files -----------------------------------------------------------------------------------------------------


def _given(graph: GraphData, settings: SplitSettings) -> Mapping[str, Any] | None:
    """The rows of the files of the settings, or that the data set came with; None where they are drawn."""
    if settings.kind != "files":
        return None if settings.edges or settings.by else graph.links
    found: dict[str, Any] = {}
    for part in PARTS:
        path = index_file(part, settings)
        if path is not None:
            found[part] = read_pairs(path, graph, f"split.{part}")
        elif part != "train":
            raise InputError(
                f"split=files needs split.{part}=PATH (npy or csv of pairs of ids), or split.dir=FOLDER"
            )
    return found


def read_pairs(path: Path, graph: GraphData, setting: str) -> Ints:
    """Positions of the nodes of a file of pairs, int64 [n, 2]; by the ids that the data set gives them."""
    pairs = read_ids(path, setting, 2)
    keys = make_id_keys(pairs, named=graph.node_names is not None, where=f"{setting}={path}")
    place = find_positions(graph.node_ids, keys)
    if (place < 0).any():
        row = int((place < 0).any(axis=1).argmax())
        unknown = pairs[row][place[row] < 0][0]
        raise InputError(
            f"{setting}={path}: row {row} has the id {unknown}, which is no node's; correct it"
        )
    _check_ends(place, graph, f"{setting}={path}", pairs)
    return place


def _check_ends(place: Ints, graph: GraphData, where: str, pairs: NDArray[Any]) -> None:
    """InputError for a pair that cannot be one; place: int64 [n, 2] positions of the ids in `pairs`."""
    wrong = {"is a node with itself; take it out": place[:, 0] == place[:, 1]}
    if graph.relation is not None:
        of_relation = (
            graph.relation["sources"][place[:, 0]] & graph.relation["destinations"][place[:, 1]]
        )
        wrong[
            "is no source and destination of task.relation; give them in that order"
        ] = ~of_relation
    for what, rows in wrong.items():
        if rows.any():
            row = int(rows.argmax())
            raise InputError(f"{where}: row {row}, {pairs[row, 0]} and {pairs[row, 1]}, {what}")


def find_relation(graph: HeteroGraphData, name: str | None) -> str:
    """SOURCE__RELATION__DESTINATION of a relation by that name, or by RELATION where no other is called so."""
    relations = [SEPARATOR.join(each) for each in graph.relations]
    called_so = [full for full in relations if is_relation(name, full)]
    if len(called_so) == 1:
        return called_so[0]
    choices = ", ".join(called_so or relations)
    raise InputError(f"task.relation={name}: {graph.name} has the relations {choices}; choose one")


def is_relation(name: str | None, full: str) -> bool:
    """Whether a name, in full or RELATION alone, can mean SOURCE__RELATION__DESTINATION."""
    return name == full or f"{SEPARATOR}{name}{SEPARATOR}" in full


def of_relation(graph: HeteroGraphData, name: str) -> GraphData:
    """A heterogeneous graph as a plain one, whose links of one relation are learned; its nodes are called TYPE:ID.

    name: SOURCE__RELATION__DESTINATION.
    """
    relations = {SEPARATOR.join(each): each for each in graph.relations}
    source, _, destination = relations[name]
    count = sum(table.num_nodes for table in graph.nodes.values())
    sizes = [relation.num_edges for relation in graph.relations.values()]
    of_edge = np.repeat(np.arange(len(sizes)), sizes) == list(relations).index(name)
    masks: dict[str, Any] = {"names": list(relations)}
    for end, kind in (("sources", source), ("destinations", destination)):
        masks[end] = np.zeros(count, np.bool_)
        first = first_nodes(graph)[kind]
        masks[end][first : first + graph.nodes[kind].num_nodes] = True
    names = []
    for kind, table in graph.nodes.items():
        ids: list[Any] = (
            table.node_ids.tolist() if table.node_names is None else table.node_names.tolist()
        )
        names += [f"{kind}:{node}" for node in ids]
    return replace(
        graph.to_homogeneous(),
        features=_side_by_side(graph),
        labels=np.full(count, -1, np.int64),
        num_classes=0,
        node_ids=hash_names(np.array(names, dtype=object)),
        node_names=Names.of(names),
        relation={"edges": of_edge, **masks},
        edge_feat=np.repeat(np.arange(len(sizes), dtype=np.float32), sizes)[:, None],
    )


def _side_by_side(graph: HeteroGraphData) -> Any:
    """The features of each type in columns of their own, and a column for each type that says which it is."""
    tables = list(graph.nodes.values())
    own = sp.block_diag([sp.csr_array(table.features) for table in tables], format="csr")
    types: Any = sp.block_diag(
        [np.ones((table.num_nodes, 1), np.float32) for table in tables], format="csr"
    )
    return sp.csr_array(sp.hstack([own, types]).astype(np.float32))
