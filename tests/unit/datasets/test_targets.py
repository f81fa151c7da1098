"""Targets of a regression from the files of users, and what is refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import retexo
from partitioning import datasets
from partitioning.errors import InputError
from partitioning.graph_data import GraphData
from retexo.settings.compose import compose

PRICES = [120.5, None, 90.0, 310.25, 88.0, 140.0]


def write_houses(folder: Path, **columns: object) -> Path:
    frame = pd.DataFrame({"id": [f"h{row}" for row in range(6)], "rooms": [3, 4, 2, 6, 2, 3]})
    folder.mkdir()
    frame.assign(**columns).to_csv(folder / "nodes.csv", index=False)
    (folder / "edges.csv").write_text("src,dst\nh0,h1\nh1,h2\nh2,h3\n")
    return folder


def load(file: Path, *overrides: str) -> GraphData:
    data = ["dataset_name=file", f"dataset_file={file}", "task=node_regression", *overrides]
    return datasets.load(compose(data).partition.dataset)


def test_columns_are_targets_and_blank_cells_unknown(tmp_path: Path) -> None:
    folder = write_houses(tmp_path / "houses", price=PRICES, age=[1, 2, 3, -1, 5, 6])
    graph = load(folder, "columns.label=[price,age]")
    assert (graph.label_kind, graph.class_names) == ("regression", ("price", "age"))
    np.testing.assert_array_equal(graph.labels[:, 0], np.array(PRICES, float))
    np.testing.assert_array_equal(graph.labels[:, 1], [1, 2, 3, -1, 5, 6])
    assert graph.num_features == 1
    integers = load(folder, "columns.label=age")
    assert (integers.label_kind, integers.labels.shape) == ("regression", (6, 1))


def test_pyg_data_with_float_y(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data").Data
    torch = pytest.importorskip("torch")
    y = torch.tensor([[1.5], [2.25], [torch.nan]])
    made = data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 2]]), y=y)
    graph = load(Path(retexo.from_pyg(made, tmp_path / "graph.npz")))
    np.testing.assert_array_equal(graph.labels, y.double().numpy())
    assert graph.class_names is None


@pytest.mark.parametrize(
    ("prices", "overrides", "message"),
    [
        ([*PRICES[:3], "cheap", 1, 2], [], r"column `price`, row 3 is 'cheap'; expected a number"),
        ([*PRICES[:3], 1e20, 1, 2], [], r"row 3, column price is 1e\+20; expected a number below"),
        ([None] * 6, [], "column price is blank at every node"),
        (PRICES, ["labels=multiclass"], "labels=multiclass: says how classes are given"),
        (PRICES, ["task=node_classification"], "row 0 is 120.5; .*task=node_regression"),
    ],
)
def test_what_is_no_target_is_refused(
    prices: list[object], overrides: list[str], message: str, tmp_path: Path
) -> None:
    folder = write_houses(tmp_path / "houses", price=prices)
    with pytest.raises(InputError, match=message):
        load(folder, "columns.label=price", *overrides)


def test_many_numbers_as_classes_are_refused_with_the_remedy(tmp_path: Path) -> None:
    edges = {"src": np.array([0]), "dst": np.array([1])}
    np.savez(tmp_path / "graph.npz", label=np.arange(5000) * 7.0, feat=np.eye(5000, 2), **edges)
    with pytest.raises(InputError, match=r"5000 different labels .*task=node_regression"):
        load(tmp_path / "graph.npz", "task=node_classification")
    assert load(tmp_path / "graph.npz").labels.shape == (5000, 1)


def test_data_sets_of_classes_are_refused() -> None:
    with pytest.raises(InputError, match="task=node_regression: dataset_name=cora has classes"):
        datasets.load(compose(["dataset_name=cora", "task=node_regression"]).partition.dataset)
