"""One node a client: counts by hand, and that a client computes from what it was sent alone."""

import sys

import numpy as np
import pytest
import torch
from support import ROOT

from partitioning import datasets, node_split
from partitioning.graph_data import GraphData
from retexo.settings.compose import compose

sys.path.append(str(ROOT / "scripts"))
import one_node_a_client as one


def load() -> tuple[GraphData, node_split.Split]:
    settings = compose(["dataset_name=cora"]).partition.dataset
    graph = datasets.load(settings)
    return graph, node_split.draw(graph, settings.split, datasets.recipe(settings.name).split)


def sizes_of(graph: GraphData, **changes: int) -> one.Clients:
    degree = torch.bincount(one.neighbours(graph)[0], minlength=graph.num_nodes).numpy()
    given = {
        "nodes": graph.num_nodes,
        "features": graph.num_features,
        "classes": graph.num_classes,
        "train": 602,
    }
    return one.Clients(
        degree, **{**given, "hidden": 4, "stages": 2, "rounds": 3, "group": 5, **changes}
    )  # type: ignore[arg-type]


@pytest.mark.timeout(60)
def test_cora_by_hand() -> None:
    graph, split = load()
    sizes = sizes_of(graph)
    assert int(sizes.rows(7).sum()) == 2 * 10_556 * 7 * 4 == 591_136
    # A stage on 1,433 features, 4 wide: matrix, bias, LayerNorm (2 x 4), a head of 4 x 7 + 7; later
    # ones read 7 more.
    weights = 3 * (1433 * 4 + 4 + 8 + 35) + 2 * 7 * 4
    assert sizes.agreed(7) == (4 * 3 * 5 * weights, 4 * 3 * 5 * weights + 4 * 2708 * weights)
    rows, both = (
        sizes.full_graph()
    )  # features once; 4 wide, forth and back in 3 rounds, and forth at the end
    assert rows == 4 * 10_556 * (1433 + 7 * 4)
    assert both == 4 * (2867 * 4 + 9 * 7) * (2 * 3 * 602 + 2708)
    found, sent = one.simulate(
        graph, split, sizes, scores=True, offline=0.0, seed=0, rate=0.01, dropout=0.5
    )
    assert sent == 591_136
    assert len(found) == 3
    assert (
        one.simulate(graph, split, sizes, scores=True, offline=1.0, seed=0, rate=0.01, dropout=0.5)[
            1
        ]
        == 0
    )


def test_a_client_computes_from_what_it_was_sent() -> None:
    rng = np.random.default_rng(0)
    src, dst = torch.from_numpy(rng.integers(0, 9, (2, 40)))
    rows, online = torch.randn(9, 3), torch.from_numpy(rng.random(9) < 0.6)
    boxes: list[list[torch.Tensor]] = [[] for _ in range(9)]
    for sender, receiver in zip(src.tolist(), dst.tolist(), strict=True):
        if online[sender] and online[receiver]:
            boxes[receiver].append(rows[sender])
    wanted = torch.stack([torch.stack(box).mean(dim=0) if box else torch.zeros(3) for box in boxes])
    torch.testing.assert_close(one.received(rows, src, dst, online), wanted)
    assert not online.all()
