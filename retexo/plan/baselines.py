"""Bytes of other training methods on the same partitions, by formula.

End-to-end training on the full graph sends the features of halo nodes once. In each epoch it sends
embeddings after every layer except the last, their gradients back, and the gradients of all
parameters by a ring all-reduce.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from torch import nn

from partitioning.directory.partition import Partition
from retexo.exchange.coding.elias_fano import encoded_size
from retexo.exchange.coding.rows import RowFormat, row_sizes
from retexo.exchange.coding.weights import encode_weights
from retexo.models.matrix import is_sparse
from retexo.models.network import Architecture, build_network
from retexo.settings.options import choose_output


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


def centralized_bytes(parts: Sequence[Partition], num_classes: int) -> int:
    """Return the bytes to move all partitions to the worker with the largest one."""
    sizes = [part_bytes(part, parts, num_classes) for part in parts]
    return sum(sizes) - max(sizes)


def baseline_bytes(
    parts: Sequence[Partition], architecture: Architecture, rounds: Sequence[int]
) -> dict[str, int]:
    """Return the bytes of a whole run by name of the baseline.

    Full graph runs as many epochs as the longest layer has rounds. Shipping all parts to one worker
    depends on none; it is given for plain graphs.

    Args:
        parts: All partitions.
        architecture: Of this configuration.
        rounds: Rounds of each layer.
    """
    output = choose_output("full_graph", input_skip=False)
    model = replace(architecture.model, self_weight=False, input_skip=False, output=output)
    layers: Any = build_network(replace(architecture, model=model), seed=0)
    heads = [layer.head for layer in layers if layer.head]
    parameters = _count_parameters(layers) - _count_parameters(heads)
    gradients = 2 * (len(parts) - 1) * 4 * parameters
    halo = {name: sum(part.nodes[name].num_halo for part in parts) for name in parts[0].nodes}
    features = sum(
        4 * halo[name] * nodes.features.shape[1] for name, nodes in parts[0].nodes.items()
    )
    vectors = 0
    computed = [getattr(layer, "types", list(parts[0].nodes)) for layer in layers]
    for before, types in pairwise(computed):
        read = {source for source, _, to in parts[0].relations if to in types}
        vectors += sum(halo[name] for name in read.intersection(before))
    width = next(layers[0].by_type())[1].output_dim
    embeddings = 2 * 4 * width * vectors
    sent = {"full graph, end to end": features + max(rounds) * (embeddings + gradients)}
    if parts[0].is_plain:
        sent["centralized"] = centralized_bytes(parts, architecture.num_classes)
    return sent


def _count_parameters(modules: Sequence[nn.Module]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())
