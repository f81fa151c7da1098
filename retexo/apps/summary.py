"""The table that apps print at the end of a run."""

from collections.abc import Mapping
from typing import Any

from partitioning.directory.read_directory import PartitionDirectory


def print_rows(rows: Mapping[str, Any]) -> None:
    """A line a row: its name, and what it says."""
    for name, value in rows.items():
        print(f"{name:<28} {value}")


def byte_rows(counted: Mapping[str, Any]) -> dict[str, str]:
    """The rows of measure_dv: bytes by kind, by layer and by sender."""
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
    """Of a directory of links what needs no training has; of others nothing."""
    links = {} if directory.meta is None else directory.meta.links
    return {"baselines": links.get("baselines", {})} if links else {}


def link_rows(summary: dict[str, Any]) -> dict[str, str]:
    """Scores of pairs, and beside those of the test what needs no training has."""

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
