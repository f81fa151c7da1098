"""Precision of boundary rows and gradients for a given bandwidth: fewest predicted seconds.

    rows        v b / B + v e            v values that the busiest worker receives, in b bytes each
    gradients   R (v b / B + 2 v e + P p)    v values of the messages of a round, R rounds

with B the bandwidth in bytes per second, e seconds to encode and decode a value, and p seconds of
PowerSGD per parameter, P parameters. Bytes are upper bounds: all halo rows, dense, and num_rounds
rounds. Predictions, which are sent only where smoothing helps, do not count. The most precise
candidate is chosen whose seconds are at most a second or a tenth above the fewest. Sizes come from
meta.json, so all nodes and a resumed run choose alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from partitioning.directory.meta import HeteroMeta, Meta
from partitioning.graph_data import SEPARATOR
from retexo.models.hetero_stage import (
    AnyArchitecture,
    HeteroArchitecture,
    Schema,
    build_network,
)
from retexo.models.stage import Architecture, Stage
from retexo.rounds.parameters import FlatParameters
from retexo.rounds.reduction import is_compressed, make_gradient_matrices
from retexo.settings.run_settings import TrainSettings

ROW_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
"""Per value, without the scale of a row."""
ROW_SECONDS = {"fp32": 0.0, "bf16": 1.2e-9, "int8": 1.6e-9, "int4": 11e-9}
GRADIENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.03, "int6": 0.77}
"""Per value, with one scale for 128."""
GRADIENT_SECONDS = {"fp32": 0.0, "bf16": 0.1e-9, "int8": 1.1e-9, "int6": 21e-9}
POWERSGD_SECONDS = 2e-9
"""Seconds per value or parameter: one thread of an AMD EPYC (2 cores, 28 November 2026), least of 7
repeats on 20,000 rows of 128 values and on 1,000,000 gradients; PowerSGD on 1,433 x 256."""
ROWS = ("fp32", "int8", "int4")
GRADIENTS = (("fp32", "none"), ("int8", "none"), ("int6", "powersgd"))
"""Candidates, most precise first."""
SLACK_SECONDS, SLACK_FACTOR = 1.0, 1.1


@dataclass(frozen=True)
class Candidate:
    """A choice of values of settings, with what it costs the busiest worker."""

    values: dict[str, str]
    num_bytes: float
    seconds: float

    @property
    def encoding(self) -> str:
        """Return the chosen values as words, such as int6 and powersgd."""
        return " ".join(value for value in self.values.values() if value != "none")

    def __str__(self) -> str:
        return f"{self.encoding} {self.num_bytes / 1e6:,.1f} MB, {self.seconds:,.1f} s"


def row_candidates(settings: TrainSettings, meta: Meta, bandwidth: float) -> list[Candidate]:
    """Return the precisions of boundary rows. bandwidth: bytes per second."""
    num_values = count_row_values(settings, meta)
    return [
        Candidate(
            {"exchange.precision": name},
            num_values * ROW_BYTES[name],
            num_values * (ROW_BYTES[name] / bandwidth + ROW_SECONDS[name]),
        )
        for name in ROWS
    ]


def gradient_candidates(
    settings: TrainSettings, meta: Meta, bandwidth: float, free: frozenset[str]
) -> list[Candidate]:
    """Return the encodings of gradients that differ in settings of `free` only."""
    given = settings.gradient
    choices = dict.fromkeys(
        (
            precision if "gradient.precision" in free else given.precision,
            compression if "gradient.compression" in free else given.compression,
        )
        for precision, compression in GRADIENTS
        if compression == "none" or not settings.task.links
    )
    return [
        Candidate(
            {"gradient.precision": precision, "gradient.compression": compression},
            *_gradient_cost(settings, meta, bandwidth, precision, compression),
        )
        for precision, compression in choices
    ]


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """Return the first candidate that is nearly as fast as the fastest."""
    least = min(each.seconds for each in candidates)
    limit = max(least + SLACK_SECONDS, least * SLACK_FACTOR)
    return next(each for each in candidates if each.seconds <= limit)


def count_row_values(settings: TrainSettings, meta: Meta) -> float:
    """Return the values in the rows that a worker receives for all layers, at most."""
    later = sum(stage.output_dim for stage in _build_on_meta(settings, meta)[:-1])
    if isinstance(meta, HeteroMeta):
        first = [
            sum(each["halo"][part] * each["features"] for each in meta.types.values())
            for part in range(len(meta.parts))
        ]
    else:
        first = [counts.halo * meta.num_features for counts in meta.parts]
    halo = [counts.halo for counts in meta.parts]
    # Partial sums in place of rows
    share = 1.0 if meta.cover_rows is None else meta.cover_rows / max(1, sum(halo))
    return share * float(max(own + count * later for own, count in zip(first, halo, strict=True)))


def _gradient_cost(
    settings: TrainSettings, meta: Meta, bandwidth: float, precision: str, compression: str
) -> tuple[float, float]:
    """Return the bytes and seconds of the gradient messages of all rounds, for a precision and a
    compression.
    """
    num_workers = len(meta.parts)
    num_bytes = seconds = 0.0
    for stage, rounds in zip(_build_on_meta(settings, meta), settings.num_rounds, strict=True):
        parameters = sum(each.numel() for each in stage.parameters())
        values = (
            count_factors(stage, settings.gradient.rank) if compression != "none" else parameters
        )
        sent = 2 * values * (num_workers - 1) / num_workers * GRADIENT_BYTES[precision]
        work = 2 * values * GRADIENT_SECONDS[precision]
        work += parameters * POWERSGD_SECONDS * (compression != "none")
        num_bytes += rounds * sent
        seconds += rounds * (sent / bandwidth + work)
    return num_bytes, seconds


def count_factors(stage: Stage, rank: int) -> int:
    """Return the number of values in PowerSGD's messages of a round; stage: on the meta device."""
    num_parameters = sum(each.numel() for each in stage.parameters())
    flat = FlatParameters(
        stage,
        torch.empty(num_parameters, device="meta"),
        {weight: torch.ones(len(weight), dtype=torch.bool) for weight in stage.first_weights},
    )
    return sum(
        rank * sum(matrix.shape) if is_compressed(matrix.shape, rank) else math.prod(matrix.shape)
        for matrix in make_gradient_matrices(flat)
    )


def _build_on_meta(settings: TrainSettings, meta: Meta) -> list[Stage]:
    """Build the network without memory for its parameters, on torch's meta device."""
    with torch.device("meta"):
        return build_network(_architecture(settings, meta), settings.seed)


def _architecture(settings: TrainSettings, meta: Meta) -> AnyArchitecture:
    """Return the architecture without edge features, of which meta.json does not know."""
    if isinstance(meta, HeteroMeta):
        widths = {name: each["features"] for name, each in meta.types.items()}
        relations = tuple(tuple(name.split(SEPARATOR)) for name in meta.relations)
        schema = Schema(meta.target, widths, relations)  # type: ignore[arg-type]
        return HeteroArchitecture(settings.model, schema, meta.num_classes)
    task = settings.task
    classes, scorer = (task.dim, task.scorer) if task.links else (meta.num_classes, "")
    return Architecture.of(settings.model, meta.num_features, classes, 0, False, scorer)
