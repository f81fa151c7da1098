"""Table of results that apps print at the end."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from partitioning.directory.read_directory import PartitionDirectory
from retexo.scores import title_of

MAX_CLASS_ROWS = 20
VALUE_FORMATS: dict[str, Callable[[float], str]] = {
    "r2": "{:.4f}".format,
    "mae": "{:.6g}".format,
    "rmse": "{:.6g}".format,
}


def print_rows(rows: Mapping[str, Any]) -> None:
    """Print one line per row."""
    for name, value in rows.items():
        print(f"{name:<28} {value}")


def byte_rows(counted: Mapping[str, Any]) -> dict[str, str]:
    """Return the rows of measure_dv: bytes by kind, layer and sender."""
    return {
        **{f"  bytes of {kind}": f"{sent:,}" for kind, sent in counted["by_kind"].items()},
        **{
            f"  bytes of layer {layer}": f"{sent:,}"
            for layer, sent in enumerate(counted["by_layer"])
        },
        **{
            f"  bytes sent by rank {rank}": f"{sum(sent):,}"
            for rank, sent in enumerate(counted["by_peer"])
        },
    }


def baselines_of(directory: PartitionDirectory) -> dict[str, Any]:
    """Return the scores of baselines without training, stored with link prediction data."""
    links = {} if directory.meta is None else directory.meta.links
    return {"baselines": links.get("baselines", {})} if links else {}


def link_rows(summary: dict[str, Any]) -> dict[str, str]:
    """Return the rows with link prediction scores and baselines."""

    def line(scores: dict[str, float]) -> str:
        return ", ".join(
            f"{name} {value:.4f}" for name, value in scores.items() if name != "ranked"
        )

    scored = {name: summary[name] for name in ("val", "test") if name in summary}
    rows = {
        f"{name} ({scores['ranked']:,} pairs ranked)": line(scores)
        for name, scores in scored.items()
    }
    return rows | {
        f"test, {name}": line(scores) for name, scores in summary.get("baselines", {}).items()
    }


def node_rows(summary: dict[str, Any]) -> dict[str, str]:
    """Return the rows with node classification scores: of validation and test, then by class."""
    val, test = summary["val"], summary["test"]

    def line(*names: str) -> str:
        return ", ".join(f"{scores[name]:.4f}" for name in names for scores in (val, test))

    rows = {
        "accuracy (validation, test)": line("accuracy"),
        "F1 on test (micro, macro)": f"{test['micro_f1']:.4f}, {test['macro_f1']:.4f}",
    }
    chosen = summary.get("chosen", {})
    rows |= ranking_rows(val, test) | {"log loss (validation, test)": line("log_loss")}
    rows |= {"best round by": chosen["metric"]} if "metric" in chosen else {}
    weights = chosen.get("class_weights")
    if weights is not None and len(weights) <= MAX_CLASS_ROWS and not isinstance(weights[0], list):
        rows["class weights in the loss"] = ", ".join(f"{each:.4g}" for each in weights)
    if "threshold" in chosen:
        of_class = f" of class {chosen['positive_class']}" if "positive_class" in chosen else ""
        rows["predicted from probability"] = f"{chosen['threshold']:.4f}{of_class}"
    return rows | class_rows(summary)


def transductive_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the row of an inductive run with the scores in the whole graph."""
    found = summary.get("transductive")
    if found is None:
        return {}
    name = "accuracy" if "accuracy" in found["test"] else "r2"
    scores = ", ".join(f"{found[part].get(name, math.nan):.4f}" for part in ("val", "test"))
    return {f"  {name} in the whole graph": scores}


def value_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the rows with regression scores; of several targets the mean R2, then each on test."""
    val, test, targets = summary["val"], summary["test"], summary["targets"]["test"]
    if len(targets) == 1:
        return {
            f"{name.upper()} (validation, test)": f"{show(val[name])}, {show(test[name])}"
            for name, show in VALUE_FORMATS.items()
        }
    rows = {"mean R2 (validation, test)": f"{val['r2']:.4f}, {test['r2']:.4f}"}
    if len(targets) > MAX_CLASS_ROWS:
        return rows | {"targets": f"{len(targets)}; summary.json has the scores of each"}
    return rows | {
        f"  {row['target']} on test": f"{format_values(row)}, {row['support']:,} nodes"
        for row in targets
    }


def format_values(scores: Mapping[str, float]) -> str:
    """Return the scores of a regression in one line."""
    return ", ".join(f"{name.upper()} {show(scores[name])}" for name, show in VALUE_FORMATS.items())


def ranking_rows(val: Mapping[str, float], test: Mapping[str, float]) -> dict[str, str]:
    """Return the rows of ROC AUC and average precision, where there are any."""
    return {
        f"{title_of(name)} (validation, test)": f"{val.get(name, math.nan):.4f}, {test[name]:.4f}"
        for name in ("roc_auc", "average_precision")
        if name in test
    }


def class_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return a row of test scores for each class.

    More than MAX_CLASS_ROWS classes get one row that points to summary.json.
    """
    rows = summary.get("classes", {}).get("test", [])
    if len(rows) > MAX_CLASS_ROWS:
        return {"classes": f"{len(rows)}; summary.json has the scores of each"}
    return {
        f"  class {row['class']} on test": f"precision {row['precision']:.4f}, "
        f"recall {row['recall']:.4f}, F1 {row['f1']:.4f}, {row['support']:,} nodes"
        for row in rows
    }
