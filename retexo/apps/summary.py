"""What apps print at the end of a run."""

from typing import Any


def byte_rows(counted: dict[str, Any]) -> dict[str, str]:
    """The table of measure_dv: bytes by kind, by layer and by sender."""
    return {
        **{f"  bytes of {kind}": f"{sent:,}" for kind, sent in counted["by_kind"].items()},
        **{f"  bytes of layer {layer}": f"{sent:,}" for layer, sent in enumerate(counted["by_layer"])},
        **{f"  bytes sent by rank {rank}": f"{sum(sent):,}" for rank, sent in enumerate(counted["by_peer"])},
    }
