"""The random graph has what was asked for: counts, homophily, distinct edges, a heavy tail, the
same for a seed.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioning.datasets import synthetic_hetero
from partitioning.datasets.synthetic import generate
from partitioning.errors import InputError
from partitioning.partition_settings import SyntheticSettings


def asked(nodes=500, edges=2000, features=8, classes=5, homophily=0.8, seed=0):
    return SyntheticSettings(nodes, edges, features, classes, homophily, seed, 5, 6)


def assert_simple(graph, wanted):
    """Each of the undirected edges once in both directions, no self loops."""
    pairs = set(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    assert graph.num_edges == len(pairs) == 2 * wanted.edges
    assert all((b, a) in pairs and a != b for a, b in pairs)
    same = graph.labels[graph.src] == graph.labels[graph.dst]
    assert same.sum() == 2 * round(wanted.homophily * wanted.edges)


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
    wanted = asked(nodes, edges, 2, classes, homophily, seed)
    if classes > nodes:
        with pytest.raises(InputError, match="every class needs a node"):
            generate(wanted)
        return
    class_sizes = np.bincount(
        generate(asked(nodes, 0, 2, classes, homophily, seed)).labels, minlength=classes
    )
    assert class_sizes.min() >= 1
    inside = int((class_sizes * (class_sizes - 1) // 2).sum())
    between = nodes * (nodes - 1) // 2 - inside
    kept = round(homophily * edges)
    if kept > inside or edges - kept > between:
        with pytest.raises(InputError, match="do not fit"):
            generate(wanted)
        return
    graph = generate(wanted)
    assert_simple(graph, wanted)
    assert graph.num_classes == classes


def test_a_complete_graph_can_be_reached():
    wanted = asked(nodes=20, edges=190, classes=1, homophily=1.0)
    assert_simple(generate(wanted), wanted)


def test_a_seed_fixes_the_graph_and_features_do_not_move_the_edges():
    first, again, other = generate(asked()), generate(asked()), generate(asked(seed=1))
    wider = generate(asked(features=9))
    for name in ("src", "dst", "labels", "features"):
        assert (getattr(first, name) == getattr(again, name)).all()
    assert (first.src == wider.src).all()
    assert (first.labels == wider.labels).all()
    assert (first.src != other.src).any()


def test_degrees_have_a_heavy_tail():
    degrees = np.bincount(generate(asked(nodes=20_000, edges=100_000)).src)
    # a Poisson graph of mean degree 10 has no node above 40
    assert degrees.max() > 200
    assert np.median(degrees) < 10


def test_what_does_not_fit_is_named():
    with pytest.raises(InputError, match=r"synthetic.classes=9: there are only synthetic.nodes=8"):
        generate(asked(nodes=8, classes=9))
    with pytest.raises(
        InputError, match=r"synthetic.edges=100, .*20 edges between classes do not fit"
    ):
        generate(asked(nodes=50, edges=100, classes=1))


def test_the_heterogeneous_graph_is_as_asked():
    wanted = dataclasses.replace(asked(nodes=3000, edges=6000, features=9), types=4, relations=5)
    graph = synthetic_hetero.generate(wanted)
    assert [table.features.shape for table in graph.nodes.values()] == [
        (750, 9),
        (750, 4),
        (750, 3),
        (750, 9),
    ]
    assert [each[::2] for each in graph.relations] == [
        ("type1", "target"),
        ("type2", "target"),
        ("type3", "type1"),
        ("target", "target"),
        ("target", "type1"),
    ]
    assert [relation.num_edges for relation in graph.relations.values()] == [1200] * 5
    cites = graph.relations["target", "relation3", "target"]
    same = (graph.labels[cites.src] == graph.labels[cites.dst]).mean()
    assert abs(same - 0.84) < 0.05  # .8, and a fifth of the rest
    assert np.bincount(cites.src).max() > 4 * np.bincount(cites.dst).mean()
    again = synthetic_hetero.generate(wanted)
    for each, relation in graph.relations.items():
        assert np.array_equal(relation.src, again.relations[each].src)
        assert relation.src.max() < graph.nodes[each[0]].num_nodes
    with pytest.raises(InputError, match="20 together"):
        synthetic_hetero.generate(dataclasses.replace(wanted, nodes=19))
