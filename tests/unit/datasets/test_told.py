"""What of a user's graph is left out, or read otherwise than may be meant, is told.

What is refused has a remedy.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import dgl

from partitioning.datasets import load_graph
from partitioning.errors import InputError
from partitioning.graph_data import GraphData
from retexo.settings.compose import compose

pytestmark = pytest.mark.usefixtures("fork_server")
EDGES = np.array([[0, 1], [1, 2], [2, 3]])
GRAPH: dict[str, Any] = {
    "src": EDGES[:, 0],
    "dst": EDGES[:, 1],
    "feat": np.eye(4),
    "label": np.array([0, 1, 0, 1]),
}


def loaded(path: Path) -> GraphData:
    return load_graph(compose(["dataset_name=file", f"dataset_file={path}"]))


def save(path: Path, form: str, **changes: Any) -> Path:
    """GRAPH with some arrays changed (None: without them).

    Other names are columns of edges, or edata.
    """
    arrays = {name: array for name, array in {**GRAPH, **changes}.items() if array is not None}
    if form == "npz":
        np.savez(path / "g.npz", **arrays)
        return path / "g.npz"
    others = {name: array for name, array in changes.items() if name not in GRAPH}
    if form == "dgl":
        graph = dgl.graph((torch.from_numpy(arrays["src"]), torch.from_numpy(arrays["dst"])))
        graph.ndata.update({name: torch.from_numpy(arrays[name]) for name in ("feat", "label")})
        graph.ndata["colour"] = torch.zeros(4)
        graph.edata.update({name: torch.from_numpy(array) for name, array in others.items()})
        dgl.save_graphs(str(path / "g.bin"), [graph])
        return path / "g.bin"
    for name in ("feat", "label"):
        if name in arrays:
            np.save(path / f"{ {'feat': 'features', 'label': 'labels'}[name] }.npy", arrays[name])
    lines = [
        ",".join(["src", "dst", *others]),
        *(f"{src},{dst}" + ",0.5" * len(others) for src, dst in EDGES),
    ]
    (path / "edges.csv").write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("form", "changes", "told"),
    [
        ("npz", {"weight": np.ones(3)}, "weight"),
        ("dgl", {"shade": np.ones(3)}, "g.bin: edata: `shade`: left out"),
        (
            "npz",
            {"label": np.eye(4)[:, :2].repeat(2, 1)[:, [0, 3]][[0, 1, 0, 1]]},
            "read as multi-label",
        ),
        ("npz", {"label": np.array([0, 3, -1, 3])}, "2 of 4 classes have no node, the first is 1"),
    ],
)
def test_what_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str, changes: dict[str, Any], told: str
) -> None:
    loaded(save(tmp_path, form, **changes))
    assert told in caplog.text


def test_what_is_as_it_should_be_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    loaded(save(tmp_path, "npz", label=np.array([[1.0, 0], [np.nan, np.nan], [1, 1], [0, 0]])))
    (tmp_path / "tables").mkdir()
    loaded(save(tmp_path / "tables", "tables"))
    assert not caplog.text


def test_what_is_refused_has_a_remedy(tmp_path: Path) -> None:
    refused = {
        "of_pyg.npz": r"retexo\.from_pyg\(data\)",
        "of_pyg.pt": r"a \.pt is a pickle.*retexo\.from_pyg",
        "types.bin": "no type of nodes has labels",
        "bare.npz": "no node has features; set features=degree",
        "bare": "no node has features; set features=degree",
    }
    np.savez(tmp_path / "of_pyg.npz", x=np.eye(4), edge_index=EDGES.T, y=GRAPH["label"])
    torch.save({}, tmp_path / "of_pyg.pt")
    types = dgl.heterograph(
        {("user", "buys", "item"): ([0, 1], [1, 0]), ("item", "of", "user"): ([0, 1], [1, 0])}
    )
    dgl.save_graphs(str(tmp_path / "types.bin"), [types])
    save(tmp_path, "npz", feat=None).rename(tmp_path / "bare.npz")
    (tmp_path / "bare").mkdir()
    save(tmp_path / "bare", "tables", feat=None)
    for name, words in refused.items():
        with pytest.raises(InputError, match=words):
            loaded(tmp_path / name)
