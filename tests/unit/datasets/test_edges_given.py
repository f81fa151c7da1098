"""Weights and features of edges in the graphs that users give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import dgl

from partitioning.datasets import load
from partitioning.errors import InputError
from partitioning.graph_data import GraphData
from retexo.settings.compose import compose

SRC, DST = np.array([0, 1, 1, 3, 2]), np.array([1, 0, 2, 3, 1])
GRAPH: dict[str, Any] = {"src": SRC, "dst": DST, "feat": np.eye(4), "label": np.array([0, 1, 0, 1])}
WEIGHT, FEAT = np.array([0.5, 2, 0, 4, 7]), np.arange(10.0).reshape(5, 2)


def loaded(path: Path, *more: str) -> GraphData:
    return load(compose(["dataset_name=file", f"dataset_file={path}", *more]).partition.dataset)


def from_npz(folder: Path, *more: str, **edges: Any) -> GraphData:
    np.savez(folder / "g.npz", **GRAPH, **edges)
    return loaded(folder / "g.npz", *more)


def test_they_come_with_the_edges(tmp_path: Path) -> None:
    graph = from_npz(tmp_path, edge_weight=WEIGHT, edge_feat=FEAT)
    assert (graph.edge_weight.dtype, graph.edge_feat.dtype) == (np.float32, np.float32)  # type: ignore[union-attr]
    np.testing.assert_array_equal(graph.edge_weight, WEIGHT)
    np.testing.assert_array_equal(graph.edge_feat, FEAT)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (
            {"edge_weight": np.array([1, -2, 1, 1, 1])},
            "`edge_weight`: row 1 is -2.0; expected 0, or a weight from",
        ),
        (
            {"edge_weight": np.array([1, 1, 1e30, 1, 1])},
            "`edge_weight`: row 2 is .*; expected 0, or a weight from",
        ),
        (
            {"edge_weight": np.array([1, 1, 1, np.nan, 1])},
            "`edge_weight`: row 3, .* is nan; expected a finite",
        ),
        (
            {"edge_weight": np.ones(4)},
            r"`edge_weight` has shape \(4,\); expected \[5\], a weight per edge",
        ),
        ({"edge_weight": np.array(list("abcde"))}, "`edge_weight` has dtype <U1; expected numbers"),
        (
            {"edge_feat": np.ones((4, 2))},
            r"`edge_feat` has shape \(4, 2\); expected \[5, features\], a row per edge",
        ),
        (
            {"edge_feat": np.full((5, 2), np.inf)},
            "`edge_feat`: row 0, column 0 is inf; expected a finite",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, edges: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_npz(tmp_path, **edges)


def test_a_reverse_edge_has_those_of_its_edge(tmp_path: Path) -> None:
    """1 -> 2 and back are both there, 0 and 1 too; of 3 -> 0, twice, both are added."""
    src, dst = np.array([3, 0, 1, 3, 1, 2]), np.array([0, 1, 0, 0, 2, 1])
    weight = np.array([5.0, 1, 2, 6, 3, 4])
    np.savez(
        tmp_path / "g.npz",
        **{**GRAPH, "src": src, "dst": dst},
        edge_weight=weight,
        edge_feat=-weight,
    )
    graph = loaded(tmp_path / "g.npz", "symmetrize=true")
    added = sorted(zip(graph.src[6:], graph.dst[6:], graph.edge_weight[6:], strict=True))  # type: ignore[index]
    assert added == [(0, 3, 5), (0, 3, 6)]
    np.testing.assert_array_equal(graph.edge_feat, -graph.edge_weight[:, None])  # type: ignore[index]


def test_edata_of_dgl(tmp_path: Path) -> None:
    graph = dgl.graph((torch.from_numpy(SRC), torch.from_numpy(DST)))
    graph.ndata.update({name: torch.from_numpy(GRAPH[name]) for name in ("feat", "label")})
    graph.edata.update({"w": torch.from_numpy(WEIGHT), "feat": torch.from_numpy(FEAT)})
    dgl.save_graphs(str(tmp_path / "g.bin"), [graph])
    read = loaded(tmp_path / "g.bin")
    np.testing.assert_array_equal(read.edge_weight, WEIGHT)
    np.testing.assert_array_equal(read.edge_feat, FEAT)
