"""Predictions as tables, the files of the parts, and the one file that they become."""

from pathlib import Path

import numpy as np
import pytest
import torch

from retexo.results.predictions import Predictions, merge, read_table, write_part, write_table

LOGITS = torch.tensor([[0.0, 1.0, -1.0], [2.0, 0.5, 1.9]])
ROWS = torch.tensor([[0.1, 0.2], [0.3, 0.4]])


def found(ids: list[int], *, multilabel: bool = False) -> Predictions:
    logits = LOGITS[: len(ids)]
    predicted = logits > 0 if multilabel else logits.argmax(dim=1)
    return Predictions.of(torch.tensor(ids), logits, ROWS[: len(ids)], predicted)


def test_labels_each_by_itself() -> None:
    columns = found([7, 5], multilabel=True).columns()
    assert list(columns) == ["id", "label0", "label1", "label2", "p0", "p1", "p2"]
    assert [columns[f"label{place}"].tolist() for place in range(3)] == [[0, 1], [1, 1], [0, 1]]
    np.testing.assert_allclose(columns["p1"], 1 / (1 + np.exp([-1, -0.5])), rtol=1e-6)


def test_a_csv_keeps_ids_and_float32(tmp_path: Path) -> None:
    columns = found([2**62 + 1, -3]).columns()
    write_table(tmp_path / "table.csv", columns)
    header, *lines = (tmp_path / "table.csv").read_text().splitlines()
    assert header == "id,class,p0,p1,p2"
    cells = [line.split(",") for line in lines]
    assert [int(cell[0]) for cell in cells] == [2**62 + 1, -3]
    assert np.float32([cell[2] for cell in cells]).tolist() == columns["p0"].tolist()


@pytest.mark.parametrize("kind", ["parquet", "npy", "csv"])
def test_parts_become_one_file_sorted_by_id(tmp_path: Path, kind: str) -> None:
    for part, ids in enumerate(([30, 4], [], [100])):
        write_part(tmp_path, part, found(ids), kind, embeddings=True)
    assert merge(tmp_path, 3, kind) == []
    for name in ("predictions", "embeddings"):
        path = tmp_path / f"{name}.{kind}"
        table = (
            np.genfromtxt(path, delimiter=",", names=True) if kind == "csv" else read_table(path)
        )
        assert table["id"].tolist() == [4, 30, 100]
    np.testing.assert_allclose(table["e0"], [0.3, 0.1, 0.1], rtol=1e-6)


def test_parts_that_are_elsewhere_are_named(tmp_path: Path) -> None:
    assert merge(tmp_path, 2, "npy") == []  # nothing was predicted here
    write_part(tmp_path, 1, found([1]), "npy", embeddings=False)
    assert merge(tmp_path, 4, "npy") == [0, 2, 3]
    assert read_table(tmp_path / "predictions.npy")["id"].tolist() == [1]
    assert not (tmp_path / "embeddings.npy").exists()
