"""Small graphs for same_results.py, drawn by numpy with fixed seeds and written into input/."""

from pathlib import Path
from typing import Any

import numpy as np

INPUT = Path("input")


def draw_blocks(
    nodes: int = 400, classes: int = 4, width: int = 12, degree: int = 4, seed: int = 0
) -> dict[str, Any]:
    """Draw a stochastic block model whose features hint at the class, as arrays of an npz file.

    Edges have both directions. Two nodes are isolated, one edge occurs twice, and ids are not
    sorted. Half of the nodes train, a quarter each validate and test, but for some in no split.
    """
    rng = np.random.default_rng(seed)
    label = rng.integers(classes, size=nodes)
    order = np.argsort(label, kind="stable")
    starts = np.searchsorted(label[order], np.arange(classes + 1))
    src = rng.integers(nodes, size=nodes * degree)
    inside = order[rng.integers(starts[label[src]], starts[label[src] + 1])]
    dst = np.where(rng.random(len(src)) < 0.75, inside, rng.integers(nodes, size=len(src)))
    ends = np.unique(np.sort(np.stack([src, dst], axis=1), axis=1), axis=0)
    ends = ends[(ends[:, 0] != ends[:, 1]) & (ends[:, 0] > 1)]
    ends = np.concatenate([ends, ends[:1]])
    feat = rng.standard_normal((nodes, width)) + 1.2 * np.eye(classes, width)[label]
    feat[rng.random((nodes, width)) < 0.4] = 0
    place = rng.permutation(nodes)
    return {
        "src": np.concatenate([ends[:, 0], ends[:, 1]]),
        "dst": np.concatenate([ends[:, 1], ends[:, 0]]),
        "feat": feat.astype(np.float32),
        "label": label,
        "node_id": rng.permutation(10 * nodes)[:nodes],
        "train_mask": place < nodes // 2,
        "val_mask": (place >= nodes // 2) & (place < nodes * 3 // 4),
        "test_mask": (place >= nodes * 3 // 4) & (place < nodes - 20),
    }


def _both_ways(values: np.ndarray) -> np.ndarray:
    return np.concatenate([values, values])


def save(graph: dict[str, Any], name: str = "graph.npz") -> None:
    np.savez(INPUT / name, **graph)


def plain() -> None:
    save(draw_blocks())


def weighted() -> None:
    graph = draw_blocks(seed=1)
    rng = np.random.default_rng(11)
    weight = rng.integers(1, 5, len(graph["src"]) // 2) / 2
    save(graph | {"edge_weight": _both_ways(weight)})


def with_edge_features() -> None:
    graph = draw_blocks(seed=2)
    rng = np.random.default_rng(12)
    rows = rng.standard_normal((len(graph["src"]) // 2, 3)).astype(np.float32)
    save(graph | {"edge_feat": _both_ways(rows)})


def several_labels() -> None:
    graph = draw_blocks(classes=5, seed=3)
    rng = np.random.default_rng(13)
    label = (np.eye(5)[graph["label"]] + (rng.random((400, 5)) < 0.2)).clip(max=1)
    save(graph | {"label": label.astype(np.float32)})


def rare_class() -> None:
    graph = draw_blocks(seed=4, classes=8)
    save(graph | {"label": (graph["label"] == 0).astype(np.int64)})


def regression() -> None:
    graph = draw_blocks(seed=5)
    rng = np.random.default_rng(15)
    target = 3.0 * graph["label"] + graph["feat"][:, 0] + 0.1 * rng.standard_normal(400)
    second = 100 - graph["label"] + graph["feat"][:, 5]
    save(graph | {"label": np.stack([target, second], axis=1)})


def without_features() -> None:
    graph = draw_blocks(seed=6)
    del graph["feat"]
    save(graph)


def new_graph() -> None:
    """The plain graph, and one of the same kind to predict."""
    plain()
    graph = draw_blocks(nodes=250, seed=7)
    unknown = ("label", "train_mask", "val_mask", "test_mask")
    save({name: array for name, array in graph.items() if name not in unknown}, "new.npz")


def assigned() -> None:
    """The plain graph, and a file with the partition of each node; one partition trains nothing."""
    graph = draw_blocks()
    save(graph)
    parts = np.random.default_rng(16).integers(3, size=len(graph["label"]))
    parts[~graph["train_mask"] & (parts == 2)] = 3
    np.save(INPUT / "assignment.npy", parts)
