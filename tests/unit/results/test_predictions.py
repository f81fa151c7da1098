"""Predictions as tables and files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from retexo.errors import TrainingError
from retexo.results.predictions import (
    Predictions,
    merge,
    read_table,
    write_part,
    write_table,
)

LOGITS = torch.tensor([[0.0, 1.0, -1.0], [2.0, 0.5, 1.9]])
ROWS = torch.tensor([[0.1, 0.2], [0.3, 0.4]])


def make_predictions(ids: list[int], *, multilabel: bool = False) -> Predictions:
    logits = LOGITS[: len(ids)]
    predicted = logits > 0 if multilabel else logits.argmax(dim=1)
    return Predictions.of(np.array(ids, np.int64), logits, ROWS[: len(ids)], predicted, [])


def known(ids: list[int]) -> Any:
    """Ids below 10 have no known label; the others are test nodes of the class id // 100."""
    number = torch.tensor(ids, dtype=torch.int64)
    labels = torch.where(number < 10, -1, number // 100)
    return make_predictions(ids).known_columns(labels, [], {"test": labels >= 0})


def test_labels_each_by_itself() -> None:
    columns = make_predictions([7, 5], multilabel=True).columns()
    assert list(columns) == ["id", "label0", "label1", "label2", "p0", "p1", "p2"]
    assert [columns[f"label{place}"].tolist() for place in range(3)] == [[0, 1], [1, 1], [0, 1]]
    np.testing.assert_allclose(columns["p1"], 1 / (1 + np.exp([-1, -0.5])), rtol=1e-6)


def test_a_csv_keeps_ids_and_float32(tmp_path: Path) -> None:
    columns = make_predictions([2**62 + 1, -3]).columns()
    write_table(tmp_path / "table.csv", columns)
    header, *lines = (tmp_path / "table.csv").read_text().splitlines()
    assert header == "id,class,p0,p1,p2"
    cells = [line.split(",") for line in lines]
    assert [int(cell[0]) for cell in cells] == [2**62 + 1, -3]
    assert np.float32([cell[2] for cell in cells]).tolist() == columns["p0"].tolist()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "predictions").write_text("")
    with pytest.raises(TrainingError, match=r"predictions/part0\.csv: "):
        write_part(tmp_path, 0, make_predictions([1]), "csv", {}, embeddings=False)


@pytest.mark.parametrize("kind", ["parquet", "npy", "csv"])
def test_parts_become_one_file_sorted_by_id(tmp_path: Path, kind: str) -> None:
    for part, ids in enumerate(([30, 4], [], [100])):
        write_part(tmp_path, part, make_predictions(ids), kind, known(ids), embeddings=True)
    assert merge(tmp_path, 3, kind) == []
    for name in ("predictions", "embeddings"):
        path = tmp_path / f"{name}.{kind}"
        table = pd.read_csv(path) if kind == "csv" else read_table(path)
        assert table["id"].tolist() == [4, 30, 100]
        if name == "predictions":
            missing = [-1, ""] if kind == "npy" else [None, None]
            cells = table[["known_class", "split"]].astype(object)
            rows = cells.where(cells.notna(), None).to_numpy().tolist()
            assert rows == [missing, [0, "test"], [1, "test"]]
    np.testing.assert_allclose(table["e0"], [0.3, 0.1, 0.1], rtol=1e-6)


def test_ids_that_read_as_missing_are_kept(tmp_path: Path) -> None:
    ids = ["null", "NA"]
    predictions = replace(make_predictions([1, 2]), ids=np.array(ids, object))
    write_part(tmp_path, 0, predictions, "csv", {}, embeddings=False)
    merge(tmp_path, 1, "csv")
    assert read_table(tmp_path / "predictions.csv")["id"].tolist() == sorted(ids)
    lines = (tmp_path / "predictions.csv").read_text().splitlines()[1:]
    assert [line.split(",")[0] for line in lines] == sorted(ids)


def test_parts_that_are_elsewhere_are_named(tmp_path: Path) -> None:
    assert merge(tmp_path, 2, "npy") == []  # nothing was predicted here
    write_part(tmp_path, 1, make_predictions([1]), "npy", known([1]), embeddings=False)
    assert merge(tmp_path, 4, "npy") == [0, 2, 3]
    assert read_table(tmp_path / "predictions.npy")["id"].tolist() == [1]
    assert not (tmp_path / "embeddings.npy").exists()
