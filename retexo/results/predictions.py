"""Predictions for nodes and their files.

RUN_DIR/
    predictions/part0.parquet ...   one partition: id, class (multi-label: label0 ...), p0 ...
                                    p(C-1); regression: id, value (several targets: value_NAME ...)
    embeddings/part0.parquet ...    on request: id, e0 ... e(D-1)
    predictions.parquet             all partitions, sorted by id; embeddings.parquet likewise

npy files hold a structured array with these columns. n nodes, C classes, embeddings of width D.
"""

import csv
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.file_io import load_npy, open_regular
from retexo.results.atomic_write import atomic_write

logger = logging.getLogger(__name__)

Columns = dict[str, NDArray[Any]]
KINDS = ("predictions", "embeddings")


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions for n nodes."""

    ids: NDArray[Any]
    """[n] ids of the data set: int64, or objects of str."""
    classes: NDArray[Any]
    """[n] predicted class, int64 or name; multi-label: [n, C] 1 for predicted labels, else 0."""
    probabilities: NDArray[np.float32]
    """[n, C]; multi-label: an independent probability per label."""
    embeddings: NDArray[np.float32]
    """[n, D] input of the last layer."""
    values: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    """[n, T] of a regression, in the units of the data; classes and probabilities are [n, 0]."""
    target_names: Sequence[str | int] = ()

    @classmethod
    def of(cls, ids: Tensor, logits: Tensor, embeddings: Tensor, predicted: Tensor) -> Self:
        """Make predictions.

        Args:
            ids: int64 [n].
            logits: [n, C].
            embeddings: [n, D].
            predicted: classes, int64 [n], or bool [n, C] for multi-label nodes, or values, float64
                [n, T].
        """
        if predicted.is_floating_point():
            nothing = np.empty((len(ids), 0), np.float32)
            rows = embeddings.float().numpy()
            return cls(ids.numpy(), nothing, nothing, rows, predicted.numpy())
        multilabel = predicted.ndim == 2
        probabilities = torch.sigmoid(logits) if multilabel else torch.softmax(logits, dim=1)
        return cls(
            ids.numpy(),
            predicted.to(torch.int64).numpy(),
            probabilities.float().numpy(),
            embeddings.float().numpy(),
        )

    def named(
        self, node_names: Sequence[str] | None, class_names: Sequence[str | int]
    ) -> "Predictions":
        """Return the predictions with names instead of numbers, if there are names."""
        named = (
            self if node_names is None else replace(self, ids=np.array(node_names, dtype=object))
        )
        if class_names and self.classes.ndim == 1:
            named = replace(named, classes=np.array(class_names)[self.classes])
        return replace(named, target_names=class_names) if self.values.shape[1] else named

    def take(self, indices: NDArray[np.int64]) -> "Predictions":
        """Return the predictions at indices of `ids`."""
        return replace(
            self,
            ids=self.ids[indices],
            classes=self.classes[indices],
            probabilities=self.probabilities[indices],
            embeddings=self.embeddings[indices],
            values=self.values[indices] if self.values.shape[1] else self.values,
        )

    def columns(self) -> Columns:
        """Return the columns id, class (or label0 ...), p0 ...; or id, value."""
        if self.values.shape[1]:
            return {"id": self.ids, **self._value_columns()}
        classes = (
            {"class": self.classes}
            if self.classes.ndim == 1
            else _numbered_columns("label", self.classes)
        )
        return {"id": self.ids, **classes, **_numbered_columns("p", self.probabilities)}

    def _value_columns(self) -> Columns:
        if self.values.shape[1] == 1:
            return {"value": self.values[:, 0]}
        names = self.target_names or range(self.values.shape[1])
        return {f"value_{name}": each for name, each in zip(names, self.values.T, strict=True)}

    def embedding_columns(self) -> Columns:
        """Return the columns id, e0 ..."""
        return {"id": self.ids, **_numbered_columns("e", self.embeddings)}


def _numbered_columns(prefix: str, matrix: NDArray[Any]) -> Columns:
    """Return the columns of a matrix by name: prefix and index."""
    return {f"{prefix}{index}": column for index, column in enumerate(matrix.T)}


# --- files ----------


def write_part(
    run_dir: Path, part: int, found: Predictions, kind: str, *, embeddings: bool
) -> None:
    """Write the files of one partition; TrainingError if that fails."""
    write_table(run_dir / "predictions" / f"part{part}.{kind}", found.columns())
    if embeddings:
        write_table(run_dir / "embeddings" / f"part{part}.{kind}", found.embedding_columns())


def merge(run_dir: Path, num_parts: int, suffix: str) -> list[int]:
    """Merge the partitions' files of predictions, and those of embeddings, each sorted by id.

    Returns:
        The partitions without a file.
    """
    missing: set[int] = set()
    for name in KINDS:
        if not (run_dir / name).is_dir():
            continue
        paths = {part: run_dir / name / f"part{part}.{suffix}" for part in range(num_parts)}
        found = [path for path in paths.values() if path.is_file()]
        missing |= {part for part, path in paths.items() if not path.is_file()}
        if not found:
            continue
        if suffix == "csv":
            _merge_lines(run_dir / f"{name}.csv", found)
        else:
            _merge_tables(run_dir / f"{name}.{suffix}", found)
    return sorted(missing)


def _merge_tables(target: Path, paths: list[Path]) -> None:
    """Merge parquet or npy files, sorted by id, and for one id from the highest score down."""
    tables = [read_table(path) for path in paths]
    keys = [np.concatenate([table["id"] for table in tables])]
    if "score" in tables[0]:  # of links
        keys.insert(0, -np.concatenate([table["score"] for table in tables]))
    order = np.lexsort(keys)
    write_table(
        target,
        {name: np.concatenate([table[name] for table in tables])[order] for name in tables[0]},
    )


def _merge_lines(target: Path, paths: list[Path]) -> None:
    """Merge csv files in the order of _merge_tables, as text: only ids and scores are parsed."""
    header: list[str] = []
    rows: list[list[str]] = []
    for path in paths:
        with open_regular(path, "r", newline="") as file:
            header, *rest = csv.reader(file)
        rows += rest
    if header[-1:] == ["score"]:
        rows.sort(key=lambda row: -float(row[-1]))
    try:
        rows.sort(key=lambda row: int(row[0]))
    except ValueError:
        rows.sort(key=lambda row: row[0])
    with atomic_write(target) as unfinished, open_regular(unfinished, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def write_table(path: Path, columns: Columns) -> None:
    """Write a parquet, npy or csv file atomically; TrainingError if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished:
        {".parquet": _write_parquet, ".npy": _write_npy, ".csv": _write_csv}[path.suffix](
            unfinished, columns
        )


def read_table(path: Path) -> Columns:
    """Read the columns of a parquet or npy file."""
    if path.suffix == ".parquet":
        import pandas as pd

        with open_regular(path) as file:
            frame = pd.read_parquet(file)
        return {name: frame[name].to_numpy() for name in frame.columns}
    rows = load_npy(path)
    return {name: rows[name] for name in rows.dtype.names}


def _write_parquet(path: Path, columns: Columns) -> None:
    import pandas as pd

    texts = {name: "str" for name, column in columns.items() if column.dtype == object}
    pd.DataFrame(columns).astype(texts).to_parquet(path, index=False)


def _write_npy(path: Path, columns: Columns) -> None:
    """Write columns as one structured array; texts have the width of the longest one."""
    columns = {
        name: column.astype(np.str_) if column.dtype == object else column
        for name, column in columns.items()
    }
    rows = np.empty(
        len(columns["id"]), dtype=[(name, column.dtype) for name, column in columns.items()]
    )
    for name, column in columns.items():
        rows[name] = column
    np.save(path, rows, allow_pickle=False)


def _write_csv(path: Path, columns: Columns) -> None:
    """Write floats with 9 digits, which restore a float32 exactly."""

    def as_text(column: NDArray[Any]) -> list[str]:
        return [
            f"{value:.9g}" if column.dtype.kind == "f" else str(value) for value in column.tolist()
        ]

    with open_regular(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*map(as_text, columns.values()), strict=True))
