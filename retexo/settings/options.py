"""The settings that one convolution or one trainer alone has.

They are defined here and not in the modules that use them, because those import torch, which takes seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partitioning.setting_fields import (
    Checked,
    at_least,
    definitions,
    one_of,
    setting,
    settings_dataclass,
    within,
)
from retexo.settings import schema


@dataclass
class NoOptions:
    """The settings of a convolution that has none of its own."""


@settings_dataclass
class GATOptions(Checked):
    """How GAT attends to neighbours, and merges its heads."""

    head_merge: str = setting(
        "model.head_merge",
        "mean",
        "of hidden layers; mean, as published: an embedding is hidden_dim / heads wide; the last layer has the mean",
        one_of("mean", "concat"),
    )
    self_loops: bool = setting(
        "model.self_loops",
        True,
        "a node is its own neighbour, as in the paper; false as in the public Retexo code",
        earlier=False,
    )


@settings_dataclass
class RGCNOptions(Checked):
    """How R-GCN shares weights."""

    num_bases: int = setting(
        "model.num_bases",
        8,
        "matrices that relations share which bring rows of one type; up to so many share none",
        at_least(1),
    )


@settings_dataclass
class SAGEOptions(Checked):
    """How SAGE aggregates its neighbours."""

    aggregator: str = setting(
        "model.aggregator",
        "mean",
        "mean of the rows, or maximum after a dense layer",
        one_of("mean", "pool"),
    )


@settings_dataclass
class BNSOptions(Checked):
    """How many boundary nodes are sampled."""

    p: float = setting(
        "bns.p", 0.1, "the probability of each boundary node, in every epoch", within(0, 1)
    )


@settings_dataclass
class FedGCNOptions(Checked):
    """For which nodes a worker has the first layer's aggregates."""

    hops: int = setting(
        "fedgcn.hops", 2, "1: its own; 2: also their neighbours on other workers", within(1, 2)
    )


@settings_dataclass
class LocalOptions(Checked):
    """How sums over edges within a partition are normalised."""

    degrees: str = setting(
        "local.degrees",
        "local",
        "by degrees within the partition, or in the whole graph",
        one_of("local", "global"),
    )


@settings_dataclass
class SampledOptions(Checked):
    """How many neighbours are sampled, and by how many trainers; batch_size, of each of these, is 1024 there."""

    fanout: tuple[int, ...] = setting(
        "sampled.fanout",
        [15, 10],
        "in-edges sampled of each node, of each layer, the first one first; -1: all; the last entry goes on",
        at_least(-1),
    )
    trainers: int = setting(
        "sampled.trainers",
        1,
        "trainers of each part, with batches of batch_size each; the worker is one of them",
        within(1, 64),
    )


OPTIONS: dict[tuple[str, str], type] = {
    ("model", "gat"): GATOptions,
    ("model", "rgcn"): RGCNOptions,
    ("model", "sage"): SAGEOptions,
    ("trainer", "bns"): BNSOptions,
    ("trainer", "fedgcn"): FedGCNOptions,
    ("trainer", "local"): LocalOptions,
    ("trainer", "sampled"): SampledOptions,
}
"""By group and name: conf/GROUP/NAME.yaml."""


def default(key: str, settings: Mapping[str, Any]) -> Any:
    """As `schema.default`, of a model's own settings, too."""
    own = OPTIONS.get(("model", settings.get("model.name", "")))
    defined = next((each for each, _ in definitions(own) if each.key == key), None) if own else None
    if defined is not None:
        return defined.before
    return schema.default(key, settings)
