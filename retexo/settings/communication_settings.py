"""Settings of what workers send each other: boundary rows and gradients.

`network` decides those of BY_NETWORK that nothing else sets, which are "auto" until then.
"""

from dataclasses import replace
from typing import Any

from partitioning.setting_fields import (
    Checked,
    at_least,
    group,
    one_of,
    refuse,
    setting,
    subgroup,
)
from retexo.codecs import GRADIENTS, ROWS
from retexo.settings.cluster_settings import seconds

AUTO = "auto"
AT_PREDICTION = ("auto", "trained", *ROWS)
BY_NETWORK = ("exchange.precision", "gradient.precision", "gradient.compression")
"""Settings that `network` decides where nothing else sets them."""


@group("gradient")
class GradientSettings(Checked):
    """Gradients."""

    mode: str = setting(
        "sync",
        "sync: all-reduce of gradients every round; local: local_epochs steps per worker, "
        "then an average of the changes",
        one_of("sync", "local"),
        is_group=True,
    )
    precision: str = setting(
        AUTO,
        "auto: by network, int6 for wan (links: int8)",
        one_of(AUTO, *GRADIENTS),
    )
    compression: str = setting(
        AUTO,
        "powersgd: low rank with error feedback; auto: by network, powersgd for wan (links: none)",
        one_of(AUTO, "none", "powersgd"),
    )
    rank: int = setting(
        2,
        "powersgd: rank of the factors; 3 for gat and gin",
        at_least(1),
    )
    secure: bool = setting(
        False,
        "secure sums by pairwise masks, for three sites or more; needs gradient.precision=fp32",
    )

    def check_together(self) -> None:
        refuse(
            (
                self.secure and self.precision not in (AUTO, "fp32"),
                f"gradient.precision={self.precision}: gradient.secure=true sends integers of 32"
                " bits; set gradient.precision=fp32",
            )
        )


@group("exchange")
class ExchangeSettings(Checked):
    """Boundary rows."""

    mode: str = setting(
        "selected",
        "selected: only needed rows or partial sums, with the fewest bytes; plain: every "
        "halo row, dense",
        one_of("selected", "plain"),
        is_group=True,
    )
    precision: Any = setting(
        [AUTO],
        "boundary rows, for all layers or as a list; auto: by network, int4 for wan",
        one_of(AUTO, *ROWS),
        list_of=str,
        per_layer=True,
    )

    def check_together(self) -> None:
        refuse(
            (
                AUTO in self.precision and len(self.precision) > 1,
                f"exchange.precision={list(self.precision)}: auto is for all layers together; name"
                " the precision of each layer, or of none",
            ),
            (
                self.mode == "plain" and self.rounded != "",
                f"exchange.precision={self.rounded}: exchange=plain sends fp32; set exchange=fp32",
            ),
        )

    @property
    def rounded(self) -> str:
        """Return the lossy precisions, separated by commas."""
        return ",".join(
            dict.fromkeys(
                precision for precision in self.precision if precision not in (AUTO, "fp32")
            )
        )

    def at_prediction(self, precision: str) -> "ExchangeSettings":
        """Return training's exchange as a prediction runs it, in predict.precision.

        "trained" leaves it, "auto" sends layers of int4 in int8; others hold for all layers.
        """
        replaced = {"trained": {}, "auto": {"int4": "int8"}}.get(
            precision, dict.fromkeys(ROWS, precision)
        )
        by_layer = tuple(replaced.get(trained, trained) for trained in self.precision)
        return replace(self, precision=by_layer)


@group()
class CommunicationSettings(Checked):
    """Communication of workers."""

    network: str = setting(
        "wan",
        "wan: bytes are dear, so 4-bit rows and low-rank gradients; lan: no compression",
        one_of("wan", "lan"),
        compared=False,
    )
    exchange: ExchangeSettings = subgroup(ExchangeSettings)
    gradient: GradientSettings = subgroup(GradientSettings)
    local_epochs: int = setting(
        1, "gradient=local: steps of a worker between two averages", at_least(1)
    )
    sleep_time: float = setting(
        0.0,
        "simulated latency: seconds added to every sequential message",
        *seconds(0),
    )

    def check_together(self) -> None:
        refuse(
            (
                self.gradient.mode == "sync" and self.local_epochs != 1,
                f"local_epochs={self.local_epochs}: gradient.mode=sync agrees on every step; "
                "set gradient=local, or local_epochs=1",
            )
        )

    def decide_by_network(self, *, links: bool) -> None:
        """Set what is auto by `network`, in place.

        Low-rank compression costs accuracy for links.
        """
        bytes_are_dear = self.network == "wan"
        rows = "int4" if bytes_are_dear and self.exchange.mode != "plain" else "fp32"
        precision = ("int8" if links else "int6") if bytes_are_dear else "fp32"
        compression = "powersgd" if bytes_are_dear and not links else "none"
        exchange, gradient = self.exchange, self.gradient
        if exchange.precision == (AUTO,):
            self.exchange = replace(exchange, precision=(rows,))
        self.gradient = replace(
            gradient,
            precision=precision if gradient.precision == AUTO else gradient.precision,
            compression=compression if gradient.compression == AUTO else gradient.compression,
        )
