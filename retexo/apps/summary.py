"""Table of results that apps print at the end."""

from collections.abc import Mapping
from typing import Any

from partitioning.directory.read_directory import PartitionDirectory


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
