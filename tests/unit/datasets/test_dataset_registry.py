"""Names and recipes of data sets, and reverse edges.

And the random graph, which has what was asked for.
"""

from collections import Counter

import numpy as np
import pytest
from graph_files import assert_graph
from hypothesis import given
from hypothesis import strategies as st
from support import dataset_settings

from partitioning import datasets
from partitioning.datasets import synthetic_hetero
from partitioning.datasets.synthetic import generate
from partitioning.errors import InputError
from partitioning.graph.graph_data import GraphData, NodeTable, Relation
from partitioning.graph.symmetry import add_reverse_edges
from partitioning.partition_settings import SyntheticSettings


def asked(name, file=None, symmetrize=None):
    return dataset_settings(
        name,
        file,
        dir="nowhere",
        symmetrize=symmetrize,
        synthetic=SyntheticSettings(100, 300, 4, 3, 0.8, 0),
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coar", "dataset_name=coar: no such data set; did you mean cora"),
        ("OGBN-Arxiv", "did you mean ogbn-arxiv"),
        ("redit", "did you mean reddit"),
        ("roman_empire", "did you mean roman-empire"),
        ("wiki-cs", "did you mean wikics"),
        ("qqqqqq", "choose one of cora, .*file"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name, message):
    with pytest.raises(InputError, match=message):
        datasets.load_graph(asked(name))


def test_recipes_are_the_published_ones():
    recipes = {name: datasets.recipe(name) for name in datasets.NAMES}
    for name, counts in (
        ("cora", (86, 300, 1806)),
        ("citeseer_torch", (178, 357, 1902)),
        ("pubmed_torch", (1461, 2190, 13144)),
    ):
        split = recipes[name].split
        assert (split.kind, split.train, split.val, split.test) == ("per_class", *counts)
    one_way = [name for name in recipes if name.startswith("og") and recipes[name].symmetrize]
    assert one_way == ["ogbn-arxiv", "ogbn-papers100M"]


def multigraph(edges, num_nodes=5):
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    labels = np.zeros(num_nodes, dtype=np.int64)
    nodes = NodeTable(np.ones((num_nodes, 1), np.float32), np.arange(num_nodes))
    return GraphData.plain("toy", nodes, Relation(ends[:, 0], ends[:, 1]), labels, 1)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=30))
def test_symmetrized_has_each_edge_as_often_as_the_more_frequent_direction(edges):
    graph = add_reverse_edges(multigraph(edges))
    before = Counter(edges)
    after = Counter(zip(graph.edges.src.tolist(), graph.edges.dst.tolist(), strict=True))
    expected = {(a, b): max(before[a, b], before[b, a]) for a in range(5) for b in range(5)}
    assert after == Counter({pair: count for pair, count in expected.items() if count})
    # the source's own edges come first, in their order
    first_edges = list(zip(graph.edges.src.tolist(), graph.edges.dst.tolist(), strict=True))[
        : len(edges)
    ]
    assert first_edges == edges


def test_symmetrize_follows_the_setting():
    graph = datasets.load_graph(asked("synthetic", symmetrize=True))
    assert graph.num_edges == 600  # nothing was missing


def random_sizes(nodes=500, edges=2000, features=8, classes=5, homophily=0.8, seed=0):
    return SyntheticSettings(nodes, edges, features, classes, homophily, seed)


def assert_simple(graph, sizes):
    """Each of the undirected edges once in both directions, no self loops."""
    pairs = set(zip(graph.edges.src.tolist(), graph.edges.dst.tolist(), strict=True))
    assert graph.num_edges == len(pairs) == 2 * sizes.edges
    assert all((b, a) in pairs and a != b for a, b in pairs)
    same = graph.labels[graph.edges.src] == graph.labels[graph.edges.dst]
    assert same.sum() == 2 * round(sizes.homophily * sizes.edges)


@given(
    nodes=st.integers(1, 60),
    edges=st.integers(0, 300),
    classes=st.integers(1, 8),
    homophily=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    seed=st.integers(0, 3),
)
def test_any_small_graph_is_as_asked_or_refused_because_it_cannot_be(
    nodes, edges, classes, homophily, seed
):
    sizes = random_sizes(nodes, edges, 2, classes, homophily, seed)
    if classes > nodes:
        with pytest.raises(InputError, match="every class needs a node"):
            generate(sizes)
        return
    class_sizes = np.bincount(
        generate(random_sizes(nodes, 0, 2, classes, homophily, seed)).labels, minlength=classes
    )
    assert class_sizes.min() >= 1
    inside = int((class_sizes * (class_sizes - 1) // 2).sum())
    between = nodes * (nodes - 1) // 2 - inside
    num_inside = round(homophily * edges)
    if num_inside > inside or edges - num_inside > between:
        with pytest.raises(InputError, match="do not fit"):
            generate(sizes)
        return
    graph = generate(sizes)
    assert_simple(graph, sizes)
    assert graph.num_classes == classes


def test_a_seed_fixes_the_graph_and_features_do_not_move_the_edges():
    first = generate(random_sizes())
    again = {"src": first.edges.src, "dst": first.edges.dst, "labels": first.labels}
    assert_graph(generate(random_sizes()), features=first.features, **again)
    assert_graph(generate(random_sizes(features=9)), src=first.edges.src, labels=first.labels)
    assert (first.edges.src != generate(random_sizes(seed=1)).edges.src).any()


def test_degrees_have_a_heavy_tail():
    degrees = np.bincount(generate(random_sizes(nodes=20_000, edges=100_000)).edges.src)
    # a Poisson graph of mean degree 10 has no node above 40
    assert degrees.max() > 200
    assert np.median(degrees) < 10


@pytest.mark.parametrize(
    ("generate", "sizes", "message"),
    [
        (generate, {"nodes": 8, "classes": 9}, "classes=9: there are only synthetic.nodes=8"),
        (generate, {"nodes": 50, "edges": 100, "classes": 1}, "edges=100, .*20 edges between"),
        (synthetic_hetero.generate, {"nodes": 24}, "25 together"),
    ],
)
def test_what_does_not_fit_is_named(generate, sizes, message):
    with pytest.raises(InputError, match=message):
        generate(random_sizes(**sizes))


def test_the_heterogeneous_graph_is_as_asked():
    sizes = random_sizes(nodes=3000, edges=6000, features=9)
    graph = synthetic_hetero.generate(sizes)
    assert [table.features.shape for table in graph.nodes.values()] == [
        (600, 9),
        (600, 4),
        (600, 3),
        (600, 9),
        (600, 4),
    ]
    assert [edge_type[::2] for edge_type in graph.relations] == [
        ("type1", "target"),
        ("type2", "target"),
        ("type3", "type1"),
        ("type4", "type1"),
        ("target", "target"),
        ("target", "type1"),
    ]
    assert [relation.num_edges for relation in graph.relations.values()] == [1000] * 6
    cites = graph.relations["target", "relation4", "target"]
    same = (graph.labels[cites.src] == graph.labels[cites.dst]).mean()
    assert abs(same - 0.84) < 0.05  # .8, and a fifth of the rest
    assert np.bincount(cites.src).max() > 4 * np.bincount(cites.dst).mean()
    again = synthetic_hetero.generate(sizes)
    for edge_type, relation in graph.relations.items():
        assert_graph(again.relations[edge_type], src=relation.src, dst=relation.dst)
        assert relation.src.max() < graph.nodes[edge_type[0]].num_nodes
