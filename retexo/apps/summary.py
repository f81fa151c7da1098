"""The table that apps print at the end of a run."""

from collections.abc import Mapping
from typing import Any


def print_rows(rows: Mapping[str, Any]) -> None:
    """A line a row: its name, and what it says."""
    for name, value in rows.items():
        print(f"{name:<28} {value}")


def byte_rows(counted: Mapping[str, Any]) -> dict[str, str]:
    """The rows of measure_dv: bytes by kind, by layer and by sender."""
    return {
        **{f"  bytes of {kind}": f"{sent:,}" for kind, sent in counted["by_kind"].items()},
        **{f"  bytes of layer {layer}": f"{sent:,}" for layer, sent in enumerate(counted["by_layer"])},
        **{f"  bytes sent by rank {rank}": f"{sum(sent):,}" for rank, sent in enumerate(counted["by_peer"])},
    }
