"""Settings of one convolution or one trainer.

The modules that use them import torch, which takes seconds, so the settings are defined here.
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
    """For convolutions without settings of their own."""


@settings_dataclass
class GATOptions(Checked):
    """GAT: attention heads and self loops."""

    head_merge: str = setting(
        "model.head_merge",
        "mean",
        "how hidden layers merge heads; mean gives embeddings of width hidden_dim / heads; the "
        "last layer takes the mean",
        one_of("mean", "concat"),
    )
    self_loops: bool = setting(
        "model.self_loops",
        True,
        "attention includes the node itself, as in the paper; false: as in the public Retexo code",
    )


@settings_dataclass
class RGCNOptions(Checked):
    """R-GCN: basis decomposition of the weights."""

    num_bases: int = setting(
        "model.num_bases",
        8,
        "number of basis matrices for the relations with the same source type",
        at_least(1),
    )


@settings_dataclass
class SAGEOptions(Checked):
    """GraphSAGE: aggregator."""

    aggregator: str = setting(
        "model.aggregator",
        "mean",
        "mean of the neighbours' rows, or their maximum after a dense layer (pool)",
        one_of("mean", "pool"),
    )


@settings_dataclass
class BNSOptions(Checked):
    """Boundary node sampling: sampling rate."""

    p: float = setting(
        "bns.p", 0.1, "probability that a boundary node is sampled in an epoch", within(0, 1)
    )


@settings_dataclass
class FedGCNOptions(Checked):
    """FedGCN: nodes whose first aggregate a worker receives."""

    hops: int = setting(
        "fedgcn.hops",
        2,
        "1: aggregates of own nodes; 2: also of their neighbours on other workers",
        within(1, 2),
    )


@settings_dataclass
class LocalOptions(Checked):
    """Local training: normalisation of the aggregate."""

    degrees: str = setting(
        "local.degrees",
        "local",
        "normalise by degrees within the partition (local) or in the whole graph (global)",
        one_of("local", "global"),
    )


@settings_dataclass
class SampledOptions(Checked):
    """Neighbour sampling; batch_size is 1024 by default."""

    fanout: tuple[int, ...] = setting(
        "sampled.fanout",
        [15, 10],
        "sampled in-edges of each node, first layer first; -1: all; the last entry holds "
        "for the other layers",
        at_least(-1),
    )
    trainers: int = setting(
        "sampled.trainers",
        1,
        "trainers of each partition, the worker included; each has batches of batch_size",
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
"""(group, name) of a file conf/GROUP/NAME.yaml -> its settings."""


def default(key: str, settings: Mapping[str, Any]) -> Any:
    """Return the value that a stored run had if it lacks this setting, also one of a model only."""
    own = OPTIONS.get(("model", settings.get("model.name", "")))
    defined = next((each for each, _ in definitions(own) if each.key == key), None) if own else None
    if defined is not None:
        return defined.default
    return schema.default(key, settings)
