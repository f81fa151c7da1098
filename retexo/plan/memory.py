"""Forecast of a worker's private memory: what it holds throughout, and its widest layer.

benchmarks/memory.py prints the forecast beside measured peaks. I inner nodes, H halo nodes, F width
of a layer's input, D width of a row after its weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from partitioning.directory.partition import Partition
from retexo.models.network import Architecture, build_network
from retexo.models.stage import Stage
from retexo.rounds.objective import choose_batch_size
from retexo.settings.run_settings import TrainSettings
from retexo.trainers.layerwise import EDGES_PER_STEP

BASE = 185 << 20
"""Private bytes of a worker without data: PyTorch, gloo and threads."""
INDEX, FLOAT = 8, 4
"""Bytes of an int64 and of a float32."""
RECEIVED = 1.75
"""Bytes for each byte of received vectors: those that wait, and one message as it is decoded."""
PROJECTED = 2
"""Copies of projected rows in attention and pooling: the rows, and their products by edge."""
ACTIVATIONS = 6
"""Copies of a layer's output at the nodes of a step: before and after norm, activation and dropout,
and gradients."""
PARAMETERS = 5
"""Copies of the parameters: with the gradient, the best ones, and what Adam keeps."""


@dataclass(frozen=True)
class WorkerSizes:
    """Numbers of nodes, edges and vectors that decide over a worker's memory."""

    inner: int
    """I"""
    halo: int
    """H"""
    edges: int
    labelled: int
    """Training and validation nodes, the nodes of the rounds."""
    step: int
    """Nodes of one step of the optimiser."""
    early: int
    """Rows or partial sums received before the rounds."""
    late: int
    """Rows or partial sums received after them."""

    @classmethod
    def of(
        cls, partition: Partition, settings: TrainSettings, num_train: int, *, linear: bool
    ) -> Self:
        """Count nodes, edges and received vectors of a partition.

        Args:
            num_train: training nodes of all workers.
            linear: the convolution allows partial sums.
        """
        plain = settings.exchange.mode == "plain"
        labelled = (partition.train_mask | partition.val_mask).numpy()
        own_train = int(partition.train_mask.sum())
        stored = partition.edges
        cut = (stored.src >= partition.num_inner).numpy()
        source = stored.src.numpy()[cut] - partition.num_inner
        target = stored.dst.numpy()[cut]
        owner = stored.halo_owner.numpy()

        def received(edges: np.ndarray) -> int:
            """Return rows, or where these are fewer partial sums, of some cut edges."""
            rows = np.bincount(owner[np.unique(source[edges])], minlength=partition.num_parts)
            if not linear or plain:
                return int(rows.sum())
            pairs = np.unique(owner[source[edges]] * partition.num_inner + target[edges])
            sums = np.bincount(pairs // partition.num_inner, minlength=partition.num_parts)
            return int(np.minimum(rows, sums).sum())

        early = received(labelled[target] | plain)
        late = received(~labelled[target]) if linear and not plain else stored.num_halo - early
        return cls(
            inner=partition.num_inner,
            halo=stored.num_halo,
            edges=len(stored.src),
            labelled=int(labelled.sum()),
            step=choose_batch_size(settings, own_train, num_train) or int(labelled.sum()),
            early=early,
            late=late,
        )


def worker_memory(
    partition: Partition, architecture: Architecture, settings: TrainSettings, num_train: int
) -> int:
    """Forecast peak private bytes of the worker of a partition. num_train: over all workers."""
    with torch.device("meta"):
        stages = build_network(architecture, settings.seed)
    linear = stages[0].conv.linear_aggregation
    return peak_memory(WorkerSizes.of(partition, settings, num_train, linear=linear), stages)


def peak_memory(sizes: WorkerSizes, stages: Sequence[Stage]) -> int:
    """Forecast peak private bytes of a worker.

    Features are mapped from their file, so they do not count.
    """
    graph = INDEX * (2 * sizes.edges + 4 * (sizes.inner + sizes.halo))
    aggregate = any("aggregate" in stage.skips for stage in stages)
    kept = FLOAT * sizes.inner * len(stages[0].conv.first_weights[0]) * aggregate
    layers = [
        _layer_memory(sizes, stage, sends_input=aggregate and layer == 0)
        for layer, stage in enumerate(stages)
    ]
    return BASE + graph + kept + max(layers)


def _layer_memory(sizes: WorkerSizes, stage: Stage, *, sends_input: bool) -> int:
    """Forecast what a layer holds at its peak: in its rounds, or while it embeds the other nodes.

    sends_input: whether rows are sent before the weights, since their aggregate is kept.
    """
    conv, others = stage.conv, sizes.inner - sizes.labelled
    width, projected = len(conv.first_weights[0]), conv.projected_width
    parameters = PARAMETERS * sum(parameter.numel() for parameter in stage.parameters())
    activations = ACTIVATIONS * sizes.step * max(stage.output_dim, projected)
    if conv.linear_aggregation:
        own = len(conv.first_weights) - 1  # a second weight reads the node's own row
        sent = width if sends_input else min(width, projected)
        inputs = (RECEIVED * sizes.early + (1 + own) * sizes.labelled) * width
        embed = (RECEIVED * sizes.late + others) * sent
        embed += sizes.inner * (stage.output_dim + sent * (sent < width))
    else:
        block = min(sizes.inner + sizes.halo, 2 * EDGES_PER_STEP)
        inputs = (sizes.early + sizes.labelled) * width
        embed = sizes.halo * width + block * (width + PROJECTED * projected)
    return round(FLOAT * (inputs + parameters + max(activations, embed)))
