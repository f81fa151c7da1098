"""Settings of what workers send each other: boundary rows and gradients.

`network` decides those of BY_NETWORK that nothing else sets, which are "auto" until then.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from partitioning.errors import InputError
from partitioning.partition_settings import LINKS
from partitioning.setting_fields import (
    Checked,
    at_least,
    one_of,
    setting,
    settings_dataclass,
)

AUTO = "auto"
PRECISIONS = ("fp32", "bf16", "int8", "int4")
AT_PREDICTION = ("auto", "trained", *PRECISIONS)
BY_NETWORK = ("exchange.precision", "gradient.precision", "gradient.compression")
UNCOMPRESSED = dict(zip(BY_NETWORK, (["fp32"], "fp32", "none"), strict=True))
COMPRESSED = dict(zip(BY_NETWORK, (["int4"], "int6", "powersgd"), strict=True))
LINKS_COMPRESSED = dict(zip(BY_NETWORK, (["int4"], "int8", "none"), strict=True))
"""For link prediction, where low-rank compression costs accuracy."""


def decided_by_network(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the settings of BY_NETWORK that nothing else sets, of values by dotted name."""
    return frozenset(name for name in BY_NETWORK if values[name] in (AUTO, [AUTO]))


def chosen_by_network(
    values: Mapping[str, Any], names: Iterable[str] = BY_NETWORK
) -> dict[str, Any]:
    """Return what `network` says for these settings."""
    chosen = LINKS_COMPRESSED if values["task._target_"] == LINKS else COMPRESSED
    if values["network"] == "lan":
        chosen = UNCOMPRESSED
    found = {name: chosen[name] for name in names}
    if values["exchange.mode"] == "plain" and "exchange.precision" in found:
        found["exchange.precision"] = ["fp32"]
    return found


@settings_dataclass
class NetworkSettings(Checked):
    """What the network costs."""

    cost: str = setting(
        "network",
        "wan",
        "what bytes cost: wan (dear: 4-bit rows, low-rank gradients) or lan (cheap: no "
        "compression); decides exchange.precision, gradient.precision and gradient.compression "
        "unless another setting, +experiment or trainer does",
        one_of("wan", "lan"),
        compared=False,
    )


@settings_dataclass
class GradientSettings(Checked):
    """How workers combine their gradients or parameters."""

    mode: str = setting(
        "gradient.mode",
        "sync",
        "sync: all-reduce of full-batch gradients every round; local: local_epochs steps "
        "per worker, then an average of the changes",
        one_of("sync", "local"),
        is_group=True,
    )
    local_epochs: int = setting(
        "local_epochs", 1, "gradient=local: steps of a worker between two averages", at_least(1)
    )
    precision: str = setting(
        "gradient.precision",
        AUTO,
        "precision of gradients on the network; int8 and int6 have one scale per 128 values; "
        "auto: by network, int6 for wan (links: int8)",
        one_of(AUTO, "fp32", "bf16", "int8", "int6"),
    )
    compression: str = setting(
        "gradient.compression",
        AUTO,
        "powersgd: low-rank compression with error feedback; auto: by network, powersgd for wan "
        "(links: none)",
        one_of(AUTO, "none", "powersgd"),
    )
    rank: int = setting(
        "gradient.rank",
        2,
        "powersgd: rank of the factors; 3 for gat and gin",
        at_least(1),
    )
    secure: bool = setting(
        "gradient.secure",
        False,
        "secure aggregation of gradients by pairwise masks, for three sites or more; needs "
        "gradient.precision=fp32",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.secure and self.precision != "fp32":
            raise InputError(
                f"gradient.precision={self.precision}: gradient.secure=true sends integers of 32"
                " bits; set gradient.precision=fp32"
            )
        if self.mode == "sync" and self.local_epochs != 1:
            raise InputError(
                f"local_epochs={self.local_epochs}: gradient=sync agrees on every step; "
                "set gradient=local, or local_epochs=1"
            )


@settings_dataclass
class ExchangeSettings(Checked):
    """How boundary rows are encoded and sent."""

    mode: str = setting(
        "exchange.mode",
        "exact",
        "exact: sum-preserving exchange with the fewest bytes; plain: the dense row of "
        "every halo node",
        one_of("exact", "plain"),
        is_group=True,
    )
    precision: tuple[str, ...] = setting(
        "exchange.precision",
        [AUTO],
        "precision of boundary rows, for all layers or as a list; fp32 is lossless, int8 "
        "and int4 have one scale per row; auto: by network, int4 for wan",
        one_of(AUTO, *PRECISIONS),
        per_layer=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if AUTO in self.precision:
            raise InputError(
                f"exchange.precision={list(self.precision)}: auto is for all layers together; name"
                " the precision of each layer, or of none"
            )
        if self.mode == "plain" and self.rounded:
            raise InputError(
                f"exchange.precision={self.rounded}: exchange=plain sends fp32; set exchange=exact"
            )

    @property
    def rounded(self) -> str:
        """The lossy precisions, separated by commas."""
        return ",".join(dict.fromkeys(each for each in self.precision if each != "fp32"))

    def at_prediction(self, precision: str) -> "ExchangeSettings":
        """The exchange of a prediction, from that of training; precision: predict.precision."""
        if precision == "trained":
            return self
        by_layer = tuple("int8" if each == "int4" else each for each in self.precision)
        if precision != "auto":
            by_layer = (precision,) * len(by_layer)
        return replace(self, precision=by_layer)
