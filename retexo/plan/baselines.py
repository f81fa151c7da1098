"""Bytes of other training methods on the same partitions, by formula.

End-to-end training, on the full graph or with sampled boundary nodes, sends the features of halo
nodes once. In each epoch it sends embeddings after every layer except the last, their gradients
back, and the gradients of all parameters by a ring all-reduce.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from partitioning.directory.partition import Partition
from retexo.exchange.coding.elias_fano import encoded_size
from retexo.exchange.coding.rows import RowFormat, row_sizes
from retexo.exchange.coding.weights import encode_weights
from retexo.models.hetero_stage import HeteroArchitecture, build_network
from retexo.models.matrix import is_sparse
from retexo.models.stage import Architecture, build_stages
from retexo.plan.traffic import TrafficEstimate
from retexo.settings.run_settings import TrainSettings

END_TO_END: dict[str, Any] = {"self_weight": False, "input_skip": False, "output": "activation"}
SAMPLING_RATE = 0.1
"""Sampling rate of boundary node sampling in its paper."""


@dataclass(frozen=True)
class Sizes:
    """Sizes that determine the bytes of other methods."""

    halo: int
    """Halo nodes of all partitions."""
    num_features: int
    hidden: int
    """Width of an embedding."""
    num_layers: int
    num_parameters: int
    """Parameters of end-to-end training: all layers, without heads of hidden layers."""
    workers: int
    centralized: int
    """Bytes to move all partitions to the worker with the largest one."""

    @classmethod
    def of(
        cls, settings: TrainSettings, partitions: Sequence[Partition], architecture: Architecture
    ) -> "Sizes":
        """Count halo nodes, widths, parameters and the bytes of all partitions."""
        stages = build_stages(
            replace(architecture, model=replace(architecture.model, **END_TO_END)), settings.seed
        )
        heads = sum(
            parameter.numel()
            for stage in stages
            if stage.head
            for parameter in stage.head.parameters()
        )
        everything = sum(parameter.numel() for stage in stages for parameter in stage.parameters())
        parts = [
            part_bytes(partition, partitions, architecture.num_classes) for partition in partitions
        ]
        return cls(
            halo=sum(partition.labelled.num_halo for partition in partitions),
            num_features=architecture.num_features,
            hidden=stages[0].output_dim,
            num_layers=len(stages),
            num_parameters=everything - heads,
            workers=len(partitions),
            centralized=sum(parts) - max(parts),
        )


def part_bytes(partition: Partition, partitions: Sequence[Partition], num_classes: int) -> int:
    """Return the bytes of a whole partition in compact codes.

    Features are coded as by the exchange, in-edges as ascending numbers, masks with 2 bits per
    node, and labels with as few bits as the number of classes needs (multi-label: one bit per
    class; targets: 32 bits).
    """
    rows = (
        csr_array(partition.features.numpy())
        if is_sparse(partition.features)
        else partition.features
    )
    sparse = int(row_sizes(rows, RowFormat("sparse")).sum())
    features = min(sparse, partition.features.numel() * partition.features.element_size())
    num_nodes = sum(other.num_inner for other in partitions)
    stored = partition.edges
    edges = encoded_size(len(stored.src) + partition.self_loops, partition.num_inner * num_nodes)
    of_class = max(1, int(np.ceil(np.log2(max(2, num_classes)))))
    label_bits = {
        "multiclass": of_class,
        "multilabel": num_classes,
        "regression": 32 * num_classes,
    }[partition.label_kind]
    edges += 0 if stored.edge_weight is None else len(encode_weights(stored.edge_weight.numpy()))
    edges += 0 if stored.edge_feat is None else 4 * stored.edge_feat.numel()
    return features + edges + (partition.num_inner * (label_bits + 2) + 7) // 8


def hetero_baseline_bytes(
    plain: TrafficEstimate,
    parts: Sequence[Partition],
    architecture: HeteroArchitecture,
    rounds: Sequence[int],
) -> dict[str, int]:
    """Return the bytes of plain lazy exchange and of the full graph for a heterogeneous graph.

    Arguments and result are those of `baseline_bytes`.
    """
    model = replace(architecture.model, **END_TO_END)
    layers: Any = build_network(replace(architecture, model=model), seed=0)
    halo = {
        name: sum(part.nodes[name].num_halo for part in parts)
        for name in architecture.schema.widths
    }
    vectors = 0
    for before, layer in pairwise(layers):
        read = {
            edge_type[0]
            for edge_type in architecture.schema.relations
            if edge_type[2] in layer.types
        }
        vectors += sum(halo[name] for name in before.types if name in read)
    parameters = sum(parameter.numel() for layer in layers for parameter in layer.parameters())
    gradients = 2 * (len(parts) - 1) * 4 * parameters
    features = sum(4 * halo[name] * width for name, width in architecture.schema.widths.items())
    each_epoch = 2 * 4 * model.hidden_dim * vectors + gradients
    return {
        "plain lazy exchange": plain.total(rounds),
        "full graph, end to end": features + max(rounds) * each_epoch,
    }


def baseline_bytes(plain: TrafficEstimate, sizes: Sizes, rounds: Sequence[int]) -> dict[str, int]:
    """Return the bytes of a whole run by name of the baseline.

    Full graph and boundary sampling run as many epochs as the longest layer has rounds; plain lazy
    exchange runs the rounds of each layer; shipping all parts to one worker depends on none.

    Args:
        plain: Traffic of this configuration with exchange=plain.
        sizes: Sizes of graph, partitions and model.
        rounds: Rounds of each layer.
    """
    epochs = max(rounds)
    features = 4 * sizes.halo * sizes.num_features
    embeddings = 2 * 4 * sizes.halo * sizes.hidden * (sizes.num_layers - 1)
    gradients = 2 * (sizes.workers - 1) * 4 * sizes.num_parameters
    return {
        "plain lazy exchange": plain.total(rounds),
        "full graph, end to end": features + epochs * (embeddings + gradients),
        f"boundary node sampling at {SAMPLING_RATE}": (
            features + epochs * (int(SAMPLING_RATE * embeddings) + gradients)
        ),
        "centralized": sizes.centralized,
    }
