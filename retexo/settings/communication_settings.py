"""Settings of what workers send each other: boundary rows and gradients."""

from dataclasses import replace

from partitioning.errors import InputError
from partitioning.setting_fields import Checked, at_least, one_of, setting, settings_dataclass

PRECISIONS = ("fp32", "bf16", "int8", "int4")
AT_PREDICTION = ("auto", "trained", *PRECISIONS)


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
        "int6",
        "precision of gradients on the network; int8 and int6 have one scale per 128 values",
        one_of("fp32", "bf16", "int8", "int6"),
        earlier="fp32",
    )
    compression: str = setting(
        "gradient.compression",
        "powersgd",
        "powersgd: low-rank compression with error feedback",
        one_of("none", "powersgd"),
        earlier="none",
    )
    rank: int = setting(
        "gradient.rank",
        2,
        "powersgd: rank of the factors; 3 for gat and gin",
        at_least(1),
        earlier=4,
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
        ["int4"],
        "precision of boundary rows, for all layers or as a list; fp32 is lossless, int8 "
        "and int4 have one scale per row",
        one_of(*PRECISIONS),
        per_layer=True,
        earlier=["fp32"],
    )

    def __post_init__(self) -> None:
        super().__post_init__()
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
