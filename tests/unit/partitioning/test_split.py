"""Splits of pairs: of a pair that is held out no edge is left; what scores pairs untrained."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import scipy.sparse as sp
from graph_files import write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    dataset_settings,
    make_graph,
    random_graph,
    run_main,
    save_npz,
    split_settings,
    with_arrays,
)

from partitioning.datasets import load_graph
from partitioning.directory.read_directory import find_partition_directory
from partitioning.errors import InputError
from partitioning.features.kinds import with_features
from partitioning.graph.graph_data import GraphData
from partitioning.graph.node_names import Names, hash_names
from partitioning.links import link_baselines, score_ranks, spectral_embedding
from partitioning.links.adamic_adar import ONE, weighted_neighbours
from partitioning.links.link_split import (
    LinkSplit,
    find_relation,
    read_pairs,
    split_links,
    to_graph_of_relation,
)
from partitioning.links.score_names import OF_LISTS
from partitioning.links.spectral_embedding import choose_spectral_embedding, decompose

PARTS = ("train", "val", "test")
LINKS = (
    "app=partition_data",
    "task=link_prediction",
    "dataset_name=file",
    "num_partitions=2",
    "partition_dir=.",
)


def pairs_of(rows: np.ndarray) -> set[tuple[int, int]]:
    return {(min(row), max(row)) for row in rows.tolist()}


def edges_of(graph: GraphData) -> set[tuple[int, int]]:
    return pairs_of(np.stack((graph.edges.src, graph.edges.dst), axis=1))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_edge_of_a_pair_that_is_held_out_is_left_in_either_direction(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(4, 12))
    node = st.integers(0, count - 1)
    edges = data.draw(st.lists(st.tuples(node, node), min_size=3, max_size=40))
    both = data.draw(st.booleans())
    edges = edges + [(v, u) for u, v in edges] if both else edges
    times = np.arange(len(edges), dtype=float)
    graph = with_arrays(make_graph(edges, np.zeros((count, 1)), [0] * count), edge_time=times)
    by = data.draw(st.sampled_from([None, "source", "time"]))
    try:
        seed = data.draw(st.integers(0, 5))
        split = split_links(graph, split_settings(edges=(0.5, 0.2, 0.3), by=by, seed=seed))
    except InputError as error:
        if "no training edge" in str(error) or "no negatives found" in str(error):
            return
        raise
    train, val, test = (pairs_of(split.rows[part]) for part in PARTS)
    proper = {pair for pair in edges_of(graph) if pair[0] != pair[1]}
    assert not (val | test) & edges_of(split.graph)
    assert train | val | test == proper  # nothing lost, and each once
    assert len(train) + len(val) + len(test) == len(proper)
    for part in PARTS:
        assert len(np.unique(split.rows[part], axis=0)) == len(split.rows[part])
        assert set(map(tuple, split.rows[part].tolist())) <= set(edges)
        assert split.description["pairs"][part] == len(pairs_of(split.rows[part]))
    for part in ("val_neg", "test_neg"):
        assert not pairs_of(split.rows[part]) & proper
        assert (split.rows[part][:, 0] != split.rows[part][:, 1]).all()
    if by == "time":  # the first edge of a pair says when it was
        either = [(min(edge), max(edge)) for edge in edges]
        times = [[either.index(pair) for pair in pairs] for pairs in (train, val, test)]
        assert max(times[0]) < min(times[1] + times[2], default=99)
        assert max(times[1], default=-1) < min(times[2], default=99)


def test_the_latest_pairs_of_a_relation_are_the_test(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Dates of the relation that is learned; the tables of others need none."""
    days = [3, 1, 4, 5, 9, 2, 6, 8, 7]
    rows = [f"{'ab'[item % 2]},i{item},2024-01-0{day}\n" for item, day in enumerate(days)]
    files = {
        "nodes/user.csv": "id\na\nb\n",
        "nodes/item.csv": "id\n" + "".join(f"i{item}\n" for item in range(9)),
        "edges/user__buys__item.csv": "src,dst,day\n" + "".join(rows),
        "edges/user__knows__user.csv": "src,dst,weight\na,b,2\n",
    }
    folder = str(write_files(tmp_path, files))
    read = load_graph(
        dataset_settings("file", folder, task="link_prediction", columns={"time": "day"})
    )
    graph = to_graph_of_relation(read, "user__buys__item")
    assert "the weights of user__knows__user, user__rev_knows__user are left out" in caplog.text
    split = split_links(graph, split_settings(edges=(0.34, 0.33, 0.33), by="time"))
    items = [name.removeprefix("item:i") for name in graph.target_nodes.node_names.tolist()]
    days_by_part = [
        sorted(days[int(items[item])] for item in split.rows[part][:, 1]) for part in PARTS
    ]
    assert days_by_part == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_of_each_source_its_share_is_held_out() -> None:
    edges = [(u, 10 + v) for u in range(4) for v in range(10 * (u + 1))]
    graph = make_graph(edges, np.zeros((60, 1)), [0] * 60)
    split = split_links(graph, split_settings(edges=(0.8, 0.1, 0.1), by="source"))
    for part in ("val", "test"):
        assert np.bincount(split.rows[part][:, 0], minlength=4).tolist()[:4] == [1, 2, 3, 4]


@pytest.mark.parametrize("by", [None, "source"])
def test_pairs_in_no_set_keep_their_edges_and_are_no_negatives(by: str | None) -> None:
    graph = random_graph(30, 150)
    split = split_links(graph, split_settings(edges=(0.4, 0.1, 0.2), by=by))
    learned = set().union(*(pairs_of(split.rows[part]) for part in PARTS))
    proper = {pair for pair in edges_of(graph) if pair[0] != pair[1]}
    assert 0.6 < len(learned) / len(proper) < 0.8
    assert proper - learned < edges_of(split.graph)
    assert proper - learned < pairs_of(np.stack(split.known(), axis=1))
    assert not pairs_of(np.concatenate([split.rows["val_neg"], split.rows["test_neg"]])) & proper


@pytest.mark.parametrize(
    ("edges", "fields", "message"),
    [
        ([(0, 1), (1, 0)], {"edges": (0.0, 0.5, 0.5)}, "no training edge"),
        ([(0, 1), (1, 2), (0, 2)], {"edges": (0.4, 0.3, 0.3)}, "no negatives found"),
        ([(0, 1), (1, 2)], {"edges": (0.9, 0.9, 0.3)}, "split.edges"),
        ([(0, 1), (1, 2)], {"by": "time"}, "columns.time"),
    ],
)
def test_what_cannot_be_split_is_refused(edges: Any, fields: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        split_links(make_graph(edges, np.zeros((3, 1)), [0] * 3), split_settings(**fields))


@pytest.mark.parametrize("power", [0.25, 0.5])
def test_spectral_products_are_those_of_the_largest_eigenvalues(power: float) -> None:
    blocks = [
        (range(10), range(30, 40)),
        (range(10, 18), range(40, 46)),
        (range(18, 30), range(46, 50)),
    ]
    pairs = np.array(
        [(u, v) for users, items in blocks for u in users for v in items if (u + v) % 7]
    )
    matrix = np.zeros((50, 50))
    matrix[tuple(pairs.T)] = 1
    matrix += matrix.T
    scale = np.maximum(matrix.sum(axis=1), 1) ** -power
    values, vectors = np.linalg.eigh(matrix * scale * scale[:, None])
    best = (vectors[:, -3:] * values[-3:] ** 2) @ vectors[:, -3:].T
    rows = decompose(pairs, 50, 3, power).embed(3, 0.0, 2.0)
    np.testing.assert_allclose(rows @ rows.T, best, atol=1e-3)
    degrees = np.maximum(matrix.sum(axis=1), 1) ** power
    weighted = decompose(pairs, 50, 3, power).embed(3, 1.0, 1.0)
    best = (vectors[:, -3:] * values[-3:]) @ vectors[:, -3:].T * degrees * degrees[:, None]
    np.testing.assert_allclose(weighted @ weighted.T, best, atol=1e-3)
    assert decompose(np.array([[0, 1]]), 2, 4, power).embed(4, 0.0, 2.0).shape == (2, 4)


def test_filters_find_the_eigenvectors_of_a_flat_spectrum() -> None:
    """Of a graph that is not bipartite, with three separate parts, so of equal eigenvalues."""
    rng = np.random.default_rng(0)
    ends = rng.integers(200, size=(2, 3, 1000)) + 200 * np.arange(3)[:, None]
    pairs = ends.reshape(2, -1).T
    adjacency = np.zeros((600, 600))
    adjacency[tuple(pairs.T)] = adjacency[tuple(pairs[:, ::-1].T)] = 1
    degrees = np.maximum(adjacency.sum(axis=1), 1)
    matrix = adjacency / np.sqrt(degrees * degrees[:, None])
    spectrum = decompose(pairs, 600, 8, 0.5)
    eigenvalues = np.linalg.eigvalsh(matrix)[::-1][:8]
    np.testing.assert_allclose(spectrum.values, eigenvalues, atol=1e-4)
    residual = matrix @ spectrum.vectors - spectrum.vectors * spectrum.values
    assert np.abs(np.linalg.norm(residual, axis=0)).max() < 5e-3


def test_fewer_eigenvalues_than_columns_are_found() -> None:
    """Two groups of users buy all items of their group; all other eigenvalues are 0."""
    users, items = np.divmod(np.arange(600 * 300), 300)
    pairs = np.stack((users, 600 + items + 300 * (users >= 300)), axis=1)
    spectrum = decompose(pairs, 1200, 4, 0.5)
    np.testing.assert_allclose(spectrum.values, [1, 1, 0, 0], atol=1e-3)
    products = spectrum.embed(4, 0.0, 1.0) @ spectrum.vectors.T
    expected = np.zeros((1200, 1200))
    expected[tuple(pairs.T)] = 1 / 600
    np.testing.assert_allclose(products[:600, 600:], expected[:600, 600:], atol=1e-4)


@pytest.mark.parametrize("metric", ["mrr", "auc", "recall@20"])
@pytest.mark.parametrize("of_relation", [False, True])
def test_a_metric_chooses_the_spectral_embedding(metric: str, of_relation: bool) -> None:
    rng = np.random.default_rng(1)
    pairs = np.stack((rng.integers(40, size=900), 40 + rng.zipf(1.3, size=900) % 60), axis=1)
    train, val, test, negatives = np.split(np.unique(pairs, axis=0), [200, 260, 300])
    ends = np.arange(40, 100) if of_relation else np.arange(0)
    rows = {"train": train, "val": val, "test": test, "val_neg": negatives}
    rows["candidates"] = np.stack((ends, ends), axis=1)
    tried = {
        name: choose_spectral_embedding(rows, 100, 8, name)
        for name in ("auto", "mrr", "auc", "recall@20")
    }

    def measure(embedding: np.ndarray) -> float:
        own, other = (np.einsum("nk,nk->n", *embedding[pairs.T]) for pairs in (val, negatives))
        if metric == "auc":
            return score_ranks.auc(own, other)
        every = np.concatenate((train, val, test)).T
        known = sp.csr_array((np.ones(every.shape[1], bool), tuple(every)), shape=(100, 100))
        nodes = score_ranks.possible_destinations(rows, 100)
        ranks, *_ = score_ranks.rank_rows(
            lambda users: embedding[users] @ embedding[nodes].T, val, known, nodes
        )
        return score_ranks.measure_ranks(val[:, 0], ranks)[metric]

    scores = {name: measure(embedding) for name, (embedding, *_) in tried.items()}
    _, refitted, chosen = tried[metric]
    assert chosen["spectral_metric"] == metric
    assert chosen["spectral_score"] == pytest.approx(scores[metric], abs=1e-6)
    plain = decompose(train, 100, 8, 0.5).embed(8, 0.0, 2.0)  # a choice that is always tried
    assert scores[metric] >= max(*scores.values(), measure(plain)) - 0.02
    power, share = chosen["spectral_power"], chosen["spectral_degree_power"]
    known = np.concatenate((train, val))  # what test pairs are scored by
    again = decompose(known, 100, chosen["spectral"], power).embed(
        chosen["spectral"], share / power, chosen["spectral_eigenvalue_power"]
    )
    products, expected = refitted @ refitted.T, again @ again.T
    mean = expected[tuple(known.T)].mean()
    np.testing.assert_allclose(products, expected / mean, atol=1e-4 * abs(products).max())


def test_fewer_pairs_are_ranked_in_a_larger_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank_rows(scores: Any, pairs: np.ndarray, *others: Any) -> Any:
        numbers.append(len(pairs))
        return link_ranks(scores, pairs, *others)

    numbers: list[int] = []
    link_ranks = spectral_embedding.rank_rows  # type: ignore[attr-defined]
    monkeypatch.setattr(spectral_embedding, "rank_rows", rank_rows)
    monkeypatch.setattr(spectral_embedding, "MAX_SCORES", 2 * 10)
    pairs = np.stack((np.arange(9), np.arange(1, 10)), axis=1)
    rows = dict.fromkeys(("train", "val", "test", "val_neg"), pairs)
    rows["candidates"] = pairs[::-1]
    embedding, *_ = spectral_embedding.choose_spectral_embedding(rows, 10, 20)
    assert set(numbers) == {3}
    assert embedding.shape[1] <= 10  # eigenvectors of ten nodes


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_weights_of_neighbours_add_up_to_networkx_adamic_adar(data: st.DataObject) -> None:
    networkx = pytest.importorskip("networkx")
    node = st.integers(0, 9)
    edges = data.draw(st.lists(st.tuples(node, node), min_size=1, max_size=40))
    neighbours = weighted_neighbours(
        make_graph(edges, np.zeros((10, 1)), [0] * 10), np.array(edges)
    )
    nx_graph = networkx.Graph(pair for pair in edges if pair[0] != pair[1])
    nx_graph.add_nodes_from(range(10))
    every = [(u, v) for u in range(10) for v in range(10) if u != v]
    adamic_adar = {(u, v): score for u, v, score in networkx.adamic_adar_index(nx_graph, every)}
    mean = np.mean(
        [
            adamic_adar.get(
                pair,
                sum(
                    1 / np.log(nx_graph.degree(z))
                    for z in nx_graph[pair[0]]
                    if nx_graph.degree(z) > 1
                ),
            )
            for pair in edges
        ]
    )
    weight, near = (
        {z: w for _, z, w in neighbours.tolist()},
        [set(neighbours[neighbours[:, 0] == v, 1].tolist()) for v in range(10)],
    )
    for (u, v), score in adamic_adar.items():
        total = sum(weight[z] for z in near[u] & near[v])
        assert total / ONE == pytest.approx(score / mean if mean else 0, abs=1e-4)


def test_users_and_items_alone_have_no_neighbours_to_send() -> None:
    """A user and an item have no common neighbour, so Adamic and Adar's score is always 0."""
    edges = [(0, 3), (1, 3), (1, 4), (2, 4)]
    assert not len(
        weighted_neighbours(make_graph(edges, np.zeros((5, 1)), [0] * 5), np.array(edges))
    )


def test_files_of_pairs_are_read_by_the_nodes_ids(tmp_path: Path) -> None:
    files = {"test.npy": np.array([[1001, 1000]]), "val.csv": "src,dst\n1003,1002\n"}
    asked = split_settings("files", dir=str(write_files(tmp_path, files)))
    split = split_links(random_graph(), asked)
    assert [pairs_of(split.rows[part]) for part in ("val", "test")] == [{(2, 3)}, {(0, 1)}]
    assert not {(0, 1), (2, 3)} & edges_of(split.graph)


NAMES = ["007", "7", "NA"]
HALF = np.arange(40) < 3
OF_RELATION = {
    "edges": np.ones(165, bool),
    "sources": HALF,
    "destinations": ~HALF,
    "names": ["a"],
}


def test_pairs_are_named_as_the_nodes_are(tmp_path: Path) -> None:
    keys = hash_names(np.array(NAMES, object))
    graph = with_arrays(random_graph(3, 4), node_ids=keys, node_names=Names.of(NAMES))
    path = write_files(tmp_path, {"val.csv": "src,dst\n007,7\nNA,007\n"}) / "val.csv"
    assert read_pairs(path, graph, "split.val").tolist() == [[0, 1], [2, 0]]


@pytest.mark.parametrize(
    ("files", "fields", "message"),
    [
        ({"test.npy": np.array([[1001, 17]])}, {}, "row 0 has the id 17, which is no node's"),
        (
            {"test.npy": np.array([[1004, 1005], [1001, 1001]])},
            {},
            "row 1, 1001 and 1001, is a node with itself",
        ),
        (
            {},
            {"relation": OF_RELATION},
            "row 0, 1003 and 1002, is no source and destination",
        ),
        ({"val.csv": "src,dst\n1003.5,1002\n"}, {}, "ids that are no integers"),
        ({"test.npy": np.array([[1002, 1003]])}, {}, "in test and in val, the first is 1002, 1003"),
        ({"test.npy": np.array([1002, 1003])}, {}, r"test\.npy: .*shape"),
    ],
)
def test_a_wrong_file_of_pairs_is_named(
    tmp_path: Path, files: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    written = {"test.npy": np.array([[1001, 1000]]), "val.csv": "src,dst\n1003,1002\n"} | files
    asked = split_settings("files", dir=str(write_files(tmp_path, written)))
    with pytest.raises(InputError, match=message):
        split_links(replace(random_graph(), **fields), asked)


def test_ranks_and_areas_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    split = split_links(random_graph(30, 120), split_settings(edges=(0.6, 0.1, 0.3)))
    scores_by_method = link_baselines.baselines(split)
    monkeypatch.setattr(score_ranks, "MAX_SCORES", 40)  # a row at a time
    assert link_baselines.baselines(split) == scores_by_method
    expected = by_loops(split)
    for name, scores in expected.items():
        assert scores_by_method["common neighbours"][name] == pytest.approx(scores), name
    monkeypatch.setattr(link_baselines, "MAX_SCORES", 5 * 30)  # ranks of five sources, areas of all
    for name, scores in link_baselines.baselines(split).items():
        assert scores["auc"] == pytest.approx(scores_by_method[name]["auc"]), name
        assert scores["mrr"] != scores_by_method[name]["mrr"], name


def test_baselines_of_users_and_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Item-kNN beside loops; what is 0 for every pair of a user and an item is left out."""
    users, items, rng = 20, 15, np.random.default_rng(0)
    bought = rng.random((users, items)) < 0.4
    pairs = np.argwhere(bought) + np.array([0, users])
    is_user = np.arange(users + items) < users
    relation = {"edges": np.ones(len(pairs), bool), "sources": is_user, "destinations": ~is_user}
    features = np.stack((is_user, ~is_user), axis=1)
    graph = make_graph(pairs.tolist(), features, np.zeros(len(features), np.int64))
    graph = replace(graph, relation=relation | {"names": ["a"]})
    split = split_links(graph, split_settings(edges=(0.6, 0.1, 0.3)))
    scores_by_method = link_baselines.baselines(split)
    assert set(scores_by_method) == {"popularity", "item-kNN"}
    monkeypatch.setattr(link_baselines, "MAX_PRODUCTS", 0)  # products of a block at a time
    again = link_baselines.baselines(split)["item-kNN"]
    assert again == pytest.approx(scores_by_method["item-kNN"])
    rows = np.zeros((users, items))
    rows[tuple((split.rows["train"] - [0, users]).T)] = 1
    unit = rows / np.sqrt(np.maximum(rows.sum(axis=0), 1))
    scores = rows @ (unit.T @ unit)
    own, other = (scores[tuple((split.rows[k] - [0, users]).T)] for k in ("test", "test_neg"))
    assert scores_by_method["item-kNN"]["auc"] == pytest.approx(score_ranks.auc(own, other))


def test_scores_of_lists_are_those_by_hand() -> None:
    sources, places = np.array([0, 1, 0]), np.array([4, 30, 1])
    own, other = score_ranks.score_lists(sources, places)
    scores = dict(zip(OF_LISTS, zip(own, other, strict=True), strict=True))
    assert scores["recall@10"] == (1, 0)
    assert scores["precision@10"] == (0.2, 0)
    assert scores["map@10"] == ((1 + 2 / 4) / 2, 0)
    assert scores["ndcg@10"][0] == pytest.approx((1 + 1 / np.log2(5)) / (1 + 1 / np.log2(3)))
    assert scores["recall@50"] == (1, 1)
    assert scores["ndcg@50"][1] == pytest.approx(1 / np.log2(31))


def lists_by_sorting(
    split: LinkSplit, matrix: np.ndarray, part: str, known: set[tuple[int, int]]
) -> dict[str, float]:
    """Recall and NDCG of 20 from dense scores without ties; only the part's own rows stay known."""
    rows = split.rows[part].tolist()
    recall, gains = [], []
    for source in sorted({u for u, _ in rows}):
        own = {v for u, v in rows if u == source}
        left_out = {v for u, v in known if u == source} - own | {source}
        order = [v for v in (-matrix[source]).argsort().tolist() if v not in left_out][:20]
        hits = [place for place, v in enumerate(order) if v in own]
        best = range(min(20, len(own)))
        recall.append(len(hits) / len(own))
        gains.append(sum(1 / np.log2(2 + p) for p in hits) / sum(1 / np.log2(2 + p) for p in best))
    return {"recall@20": float(np.mean(recall)), "ndcg@20": float(np.mean(gains))}


def test_lists_are_those_of_sorting_dense_scores() -> None:
    split = split_links(random_graph(60, 400), split_settings(edges=(0.6, 0.1, 0.3)))
    known = set(zip(*(ends.tolist() for ends in split.known()), strict=True))
    matrix = np.random.default_rng(1).standard_normal((60, 60))
    pairs = sp.csr_array((np.ones(len(known)), np.array(sorted(known)).T), shape=(60, 60))
    rows = split.rows["test"]
    ranks, *_ = score_ranks.rank_rows(
        lambda nodes: matrix[nodes].copy(), rows, pairs, split.destinations
    )
    scores = score_ranks.measure_ranks(rows[:, 0], ranks)
    for name, value in lists_by_sorting(split, matrix, "test", known).items():
        assert scores[name] == pytest.approx(value), name


def by_loops(split: LinkSplit) -> dict[str, float]:
    near: dict[int, set[int]] = {node: set() for node in range(30)}
    for u, v in edges_of(split.graph):
        near[u].add(v)
        near[v].add(u)
    near = {node: others - {node} for node, others in near.items()}
    known = set(zip(*(ends.tolist() for ends in split.known()), strict=True))
    ranks, wins = [], []
    for u, v in split.rows["test"].tolist():
        own = len(near[u] & near[v])
        others = [len(near[u] & near[w]) for w in range(30) if w != u and (u, w) not in known]
        ranks.append(
            1 + sum(score > own for score in others) + sum(score == own for score in others) / 2
        )
        drawn = [len(near[a] & near[b]) for a, b in split.rows["test_neg"].tolist()]
        wins += [(own > other) + (own == other) / 2 for other in drawn]
    return {
        "mrr": np.mean(1 / np.array(ranks)),
        "hits@10": np.mean(np.array(ranks) <= 10),
        "auc": np.mean(wins),
    }


def test_a_directory_of_links_is_read_as_written_without_a_leak(tmp_path: Path) -> None:
    save_npz(tmp_path / "g.npz", random_graph())
    ended = run_main(*LINKS, "dataset_file=g.npz", "features=[given,degree]", cwd=tmp_path)
    assert "Adamic-Adar" in ended.stdout
    directory = find_partition_directory([tmp_path / "g-links-random-vol-2"], 2)
    parts = [directory.read_part(part) for part in range(2)]
    ids = np.concatenate([part.node_ids.numpy() for part in parts]) - 1000
    split = split_links(random_graph(), split_settings(seed=42))
    for name, rows in split.rows.items():
        stored = np.concatenate([part.links[name].numpy() for part in parts if part.links])
        assert sorted(ids[stored].tolist()) == sorted(rows.tolist()), name
    assert np.array_equal(ids[parts[0].links["pool"][:, 0].numpy()], split.pool[:, 0])
    # the degrees do not know the pairs that are held out
    features = with_features(split.graph, ("given", "degree")).features
    assert np.array_equal(np.concatenate([part.features for part in parts]), features[ids])
    assert not any((part.train_mask | part.val_mask | part.test_mask).any() for part in parts)
    for part in parts:  # no held-out pair has an edge
        held_out = np.concatenate([part.links["val"], part.links["test"]])
        edges, nodes = part.edges, part.target_nodes
        own = edges.src < nodes.num_inner
        ends = np.stack([edges.src[own], edges.dst[own]], axis=1) + part.first_id
        assert not {*map(tuple, ends.tolist())} & {*map(tuple, held_out.tolist())}


def graph_of_relations(*relations: tuple[str, str, str]) -> GraphData:
    return cast(GraphData, SimpleNamespace(name="g", relations=dict.fromkeys(relations)))


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        ("rates", "task.relation=rates: g has the relations user__rates__movie, movie__rates"),
        ("hates", "task.relation=hates: .*user__rates__movie"),
        (None, "task.relation: g has the relations user__rates__movie, movie__rates"),
    ],
)
def test_a_name_of_several_relations_or_none_is_refused(relation: str | None, message: str) -> None:
    graph = graph_of_relations(("user", "rates", "movie"), ("movie", "rates", "user"))
    assert find_relation(graph, "user__rates__movie") == "user__rates__movie"
    with pytest.raises(InputError, match=message):
        find_relation(graph, relation)


def test_the_only_relation_beside_its_reverse_needs_no_name() -> None:
    graph = graph_of_relations(("user", "rates", "movie"), ("movie", "rev_rates", "user"))
    assert find_relation(graph, None) == "user__rates__movie"


@pytest.mark.parametrize("kind", ["integers", "names", "full"])
def test_files_of_pairs_of_a_relation_have_the_ids_of_its_tables(tmp_path: Path, kind: str) -> None:
    prefix = "" if kind == "integers" else "u"
    user, item = ("user:u", "item:u") if kind == "full" else (prefix, prefix)
    lines = "".join(f"{prefix}{row},{prefix}{(row + 1) % 9}\n" for row in range(9))
    ids = "id\n" + "".join(f"{prefix}{row}\n" for row in range(9))
    files = {
        "g/nodes/user.csv": ids,
        "g/nodes/item.csv": ids,
        "g/edges/user__buys__item.csv": f"src,dst\n{lines}",
        "val.csv": f"src,dst\n{user}0,{item}1\n",
        "test.csv": f"src,dst\n{user}1,{item}2\n",
    }
    write_files(tmp_path, files)
    command = (*LINKS, "dataset_file=g", "features=degree", "split=files", "split.dir=.")
    for relation in ("buys", "user__buys__item"):  # the second time the directory is there
        ended = run_main(*command, f"task.relation={relation}", cwd=tmp_path)
        assert (
            "note: links of user__buys__item are predicted, by task.relation=buys" in ended.stdout
        )
    write_files(tmp_path, {"val.csv": f"src,dst\n{user}0,{item}77\n"})
    ended = run_main(*command, "task.relation=buys", "overwrite=true", cwd=tmp_path, rc=2)
    assert f"row 0 has the id {item}77, which is no node's" in ended.output


def test_links_of_one_relation_leave_all_relations_and_have_its_types_as_ends(
    tmp_path: Path,
) -> None:
    """An edge of another relation, and a reverse one, go with a pair that is held out."""
    rng = np.random.default_rng(0)
    pairs = list(zip(rng.integers(12, size=90), rng.integers(20, size=90), strict=True))
    files = {
        "nodes/user.csv": "id\n" + "".join(f"{user}\n" for user in range(12)),
        "nodes/artist.csv": "id\n" + "".join(f"{artist}\n" for artist in range(20)),
        "edges/user__listens__artist.csv": "src,dst\n" + "".join(f"{u},{v}\n" for u, v in pairs),
        "edges/user__tags__artist.csv": "src,dst\n" + "".join(f"{u},{v}\n" for u, v in pairs[:40]),
    }
    folder = str(write_files(tmp_path, files))
    read = load_graph(
        dataset_settings("file", folder, task="link_prediction", features=("degree",))
    )
    graph = to_graph_of_relation(read, "user__listens__artist")
    split = split_links(graph, split_settings(edges=(0.7, 0.1, 0.2), by="source"))
    names = np.array(graph.target_nodes.node_names.tolist())
    rows = {part: set(map(tuple, names[pairs].tolist())) for part, pairs in split.rows.items()}
    listened = {(f"user:{u}", f"artist:{v}") for u, v in pairs}
    held_out = rows["val"] | rows["test"]
    assert held_out | rows["train"] == listened
    assert all(u.startswith("user") and v.startswith("artist") for u, v in rows["test_neg"])
    assert rows["candidates"] == {(f"artist:{v}", f"artist:{v}") for v in range(20)}
    edges = set(zip(names[split.graph.edges.src], names[split.graph.edges.dst], strict=True))
    assert not edges & (held_out | {(v, u) for u, v in held_out})
    assert {(v, u) for u, v in rows["train"]} <= edges


def test_a_further_column_of_edges_is_kept_with_the_edges_of_a_split_of_pairs(
    tmp_path: Path,
) -> None:
    rows = "".join(f"u{n},u{n * 7 % 40},{n / 8}\n" for n in range(40))
    write_files(tmp_path, {"g/edges.csv": f"src,dst,amount\n{rows}"})
    run_main(*LINKS, "dataset_file=g", "features=random", cwd=tmp_path)
    assert len([*tmp_path.rglob("edge_feat.npy")]) == 2
