"""Settings of the objective: the task with its loss, and early stopping.

partitioning/setting_fields.py defines `setting`; CONTRIBUTING.md shows how to add one.
"""

import math
from typing import Any

from partitioning.partition_settings import PairSettings
from partitioning.setting_fields import (
    FINITE,
    Check,
    Checked,
    at_least,
    at_most,
    group,
    not_a_setting,
    one_of,
    setting,
)
from retexo.scores import OF_LINKS, OF_NODES

METRICS = ("auto", *OF_NODES, "loss", *OF_LINKS)
LOSSES = {
    "node_classification": ("cross_entropy", "focal"),
    "node_regression": ("mse", "mae", "huber"),
}
MAX_WIDTH = 1_000_000
BELOW_ONE = Check(lambda value: 0 <= value < 1, "must be in [0, 1)")


def _are_class_weights(value: Any) -> bool:
    """Return whether a value is allowed for task.class_weights."""
    if isinstance(value, str):
        return value in ("auto", "none", "balanced")
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(type(weight) in {int, float} and 0 < weight < math.inf for weight in value)
    )


@group("task")
class TaskSettings(PairSettings):
    """Loss, class weights, and scores of links."""

    loss: str = setting(
        "cross_entropy",
        "classification: cross-entropy or focal loss; regression: squared (mse), absolute "
        "(mae) or Huber error",
        one_of(*LOSSES["node_classification"], *LOSSES["node_regression"]),
    )
    class_weights: Any = setting(
        "auto",
        "in the loss; balanced: the same total for each class; auto: balanced where a class "
        "is very rare",
        Check(_are_class_weights, "must be auto, none, balanced, or a list of positive numbers"),
    )
    scorer: str = setting(
        "auto",
        "links: score of two embeddings; labelled edges: mlp, or a weighted product (dot), of "
        "both ends; auto: dot for links, mlp for labelled edges",
        one_of("auto", "dot", "distmult", "mlp"),
    )
    negatives: int = setting(
        256,
        "links: negative samples per step, half uniform, half ends of other edges",
        at_least(2),
        at_most(MAX_WIDTH),
    )
    cut_edges: str = setting(
        "train",
        "links: train on edges between two partitions, or skip them, as gat needs",
        one_of("train", "skip"),
    )
    ranked: int = setting(
        20_000,
        "links: number of sources whose pairs are ranked for a score; more are sampled",
        at_least(1),
    )
    dim: int = not_a_setting(64)
    """Links: width of the embeddings that are scored; earlier versions had a setting for it."""


@group("stopping")
class StoppingSettings(Checked):
    """Early stopping of a layer."""

    patience: int | None = setting(
        20,
        "rounds without a better validation metric before a layer ends; null (or "
        "stopping=none): off",
        at_least(1),
    )
    metric: str = setting(
        "auto",
        "chooses the best round and the output heads on validation; auto: by the labels "
        "(docs/training.md)",
        one_of(*METRICS),
    )
    use_loss: bool = setting(
        True,
        "the validation loss breaks ties, and its improvement restarts patience",
    )
    min_delta: float = setting(
        0.0,
        "smallest improvement that counts",
        at_least(0),
        FINITE,
    )
