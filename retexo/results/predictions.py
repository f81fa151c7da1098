"""Predictions for nodes and their files.

RUN_DIR/
    predictions/part0.parquet ...   one partition: id, class (multi-label: label0 ...), p0 ...
                                    p(C-1); regression: id, value (several targets: value_NAME ...);
                                    then known_class (known_label0 ..., known_value ...) and split
    embeddings/part0.parquet ...    on request: id, e0 ... e(D-1)
    predictions.parquet             all partitions, sorted by id; embeddings.parquet likewise

npy files hold a structured array with these columns. n nodes, C classes, embeddings of width D.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.files.file_io import load_npy, open_regular
from retexo.results.atomic_write import atomic_write

if TYPE_CHECKING:
    from pandas import DataFrame

Columns = dict[str, Any]
"""Arrays of numpy or pandas by name."""
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
    def of(
        cls,
        ids: NDArray[Any],
        logits: Tensor,
        embeddings: Tensor,
        predicted: Tensor,
        class_names: Sequence[str | int],
    ) -> Self:
        """Make predictions.

        Args:
            ids: int64 or objects of str [n].
            logits: [n, C].
            embeddings: [n, D].
            predicted: classes, int64 [n], or bool [n, C] for multi-label nodes, or values, float64
                [n, T].
            class_names: which replace the numbers of classes, or name the values; may be empty.
        """
        rows = embeddings.float().numpy()
        if predicted.is_floating_point():
            nothing = np.empty((len(ids), 0), np.float32)
            return cls(ids, nothing, nothing, rows, predicted.numpy(), class_names)
        classes: NDArray[Any] = predicted.to(torch.int64).numpy()
        if classes.ndim == 2:
            return cls(ids, classes, torch.sigmoid(logits).float().numpy(), rows)
        classes = np.array(class_names)[classes] if class_names else classes
        return cls(ids, classes, torch.softmax(logits, dim=1).float().numpy(), rows)

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
            return {"id": self.ids, **_value_columns("value", self.values, self.target_names)}
        classes = (
            {"class": self.classes}
            if self.classes.ndim == 1
            else _numbered_columns("label", self.classes)
        )
        return {"id": self.ids, **classes, **_numbered_columns("p", self.probabilities)}

    def embedding_columns(self) -> Columns:
        """Return the columns id, e0 ..."""
        return {"id": self.ids, **_numbered_columns("e", self.embeddings)}

    def known_columns(
        self, labels: Tensor, class_names: Sequence[str | int], masks: Mapping[str, Tensor]
    ) -> Columns:
        """Return the columns known_class (or known_label*, known_value*) and split, NA elsewhere.

        Args:
            labels: as `Partition` has them; of a graph without labels int64 [n] of -1.
            class_names: of these labels; empty for 0 ... C-1.
            masks: bool [n] by the name of the split.
        """
        import pandas as pd

        values, known = labels.numpy(), Columns()
        predicted = self.values if self.values.shape[1] else self.classes
        if values.ndim < predicted.ndim:  # there are no labels
            values = np.full(predicted.shape, np.nan)
        if predicted is self.values:
            known = _value_columns("known_value", values, self.target_names)
        elif values.ndim == 2:
            for name, column in _numbered_columns("known_label", values).items():
                known[name] = pd.array(column, dtype="Int64")
        else:
            kind = "string" if any(isinstance(name, str) for name in class_names) else "Int64"
            classes = np.array(class_names)[values] if class_names else values
            known["known_class"] = pd.Series(classes, dtype=kind).mask(values < 0)
        split = pd.Series(pd.NA, index=range(len(labels)), dtype="string")
        for name, mask in masks.items():
            split[mask.numpy()] = name
        return {**known, "split": split}


def _numbered_columns(prefix: str, matrix: NDArray[Any]) -> Columns:
    """Return the columns of a matrix by name: prefix and index."""
    return {f"{prefix}{index}": column for index, column in enumerate(matrix.T)}


def _value_columns(
    prefix: str, values: NDArray[np.float64], target_names: Sequence[str | int]
) -> Columns:
    """Return the columns of a regression, [n, T], by name; one target needs no name."""
    if values.shape[1] == 1:
        return {prefix: values[:, 0]}
    names = target_names or range(values.shape[1])
    return {f"{prefix}_{name}": column for name, column in zip(names, values.T, strict=True)}


# --- files ----------


def write_part(
    run_dir: Path,
    part: int,
    predictions: Predictions,
    kind: str,
    known: Columns,
    *,
    embeddings: bool,
) -> None:
    """Write the files of one partition, in place of earlier ones; TrainingError if that fails.

    Args:
        run_dir: Of the run; `predictions` and `embeddings` are folders in it.
        part: Number of the partition.
        predictions: Of its nodes.
        kind: Suffix of the files: parquet, csv or npy.
        known: What `known_columns` returns of its nodes.
        embeddings: Whether to write those, too.
    """
    write_table(run_dir / "predictions" / f"part{part}.{kind}", predictions.columns() | known)
    if embeddings:
        write_table(run_dir / "embeddings" / f"part{part}.{kind}", predictions.embedding_columns())


def merge(run_dir: Path, num_parts: int, suffix: str) -> list[int]:
    """Merge the partitions' files of predictions, and those of embeddings, into one file each.

    They are written to the run directory; the partitions' files stay. Rows are sorted by id, links
    of one id from the highest score down. TrainingError if they cannot be written.

    Returns:
        The partitions without a file.
    """
    import pandas as pd

    missing: set[int] = set()
    for name in KINDS:
        if not (run_dir / name).is_dir():
            continue
        paths = {part: run_dir / name / f"part{part}.{suffix}" for part in range(num_parts)}
        paths_there = [path for path in paths.values() if path.is_file()]
        missing |= {part for part, path in paths.items() if not path.is_file()}
        if paths_there:
            table = pd.concat([read_table(path) for path in paths_there], ignore_index=True)
            write_table(
                run_dir / f"{name}.{suffix}", table.loc[_sort_rows(table, is_text=suffix == "csv")]
            )
    return sorted(missing)


def _sort_rows(table: "DataFrame", *, is_text: bool) -> Any:
    """Return the index labels of a table in the order of `merge`; equal rows keep their order.

    is_text: numbers are texts, as in csv files; ids that are numbers are sorted as numbers.
    """
    keys = table[["id"]]
    if is_text:
        with suppress(ValueError):  # of ids that are names
            keys = keys.astype(np.int64)
    if table.columns[-1] != "score":
        return keys.sort_values("id", kind="stable").index
    keys = keys.assign(score=-table["score"].astype(float))  # of links
    return keys.sort_values(["id", "score"], kind="stable").index


def write_table(path: Path, columns: "Columns | DataFrame") -> None:
    """Write a parquet, csv or npy file by its suffix, atomically; TrainingError if that fails.

    The folder is created where missing. An npy file is a structured array.
    """
    import pandas as pd

    table = pd.DataFrame(columns)
    texts = [name for name in table if pd.api.types.is_string_dtype(table[name])]
    table = table.astype(dict.fromkeys(texts, "string"))
    with atomic_write(path) as unfinished:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_regular(unfinished, "wb") as file:
            if path.suffix == ".parquet":
                table.to_parquet(file, index=False)
            elif path.suffix == ".csv":  # 9 digits restore a float32 exactly
                table.to_csv(file, index=False, float_format="%.9g", lineterminator="\n")
            else:
                np.save(file, _as_structured(table), allow_pickle=False)


def _as_structured(table: "DataFrame") -> NDArray[Any]:
    """Return a structured array; texts have the width of the longest.

    A missing text is "", a missing integer -1.
    """
    missing = {"string": "", "Int64": -1}
    fills = {
        name: missing[str(kind)] for name, kind in table.dtypes.items() if str(kind) in missing
    }
    filled = table.fillna(fills)
    widths = {
        str(name): f"U{max((1, *filled[name].str.len()))}"
        for name, fill in fills.items()
        if fill == ""
    }
    return filled.to_records(index=False, column_dtypes=widths)


def read_table(path: Path) -> "DataFrame":
    """Read a parquet, npy or csv file; the cells of a csv file are text."""
    import pandas as pd

    if path.suffix == ".npy":
        return pd.DataFrame(load_npy(path))
    with open_regular(path) as file:
        if path.suffix == ".parquet":
            return pd.read_parquet(file)
        return pd.read_csv(file, dtype=str, keep_default_na=False)
