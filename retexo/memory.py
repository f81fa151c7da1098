"""How much memory a worker will need.

I inner nodes, H halo nodes, E edges, F width of a layer's input, D of its output, P parameters of a stage.
"""

from partitioning.storage import Partition
from retexo.config import TrainSettings
from retexo.stage import Architecture, build_stage

BASE = 300 << 20
"""Private bytes of a worker before it reads its part: torch, DGL, gloo and their threads."""
INDEX, FLOAT = 8, 4
"""Bytes of an int64 and of a float32."""


def worker_memory(partition: Partition, architecture: Architecture, settings: TrainSettings) -> int:
    """Private bytes at the peak, about: what the process starts with, its part, and the largest layer."""
    edges, nodes = len(partition.src), partition.num_inner + partition.num_halo
    structure = INDEX * (
        6 * edges + 6 * nodes
    )  # ends, sorted ends, the boundary's edges on both sides; ids and degrees
    features = FLOAT * partition.features.numel()
    layers = range(architecture.num_layers)
    return BASE + structure + features + max(_layer(partition, architecture, settings, layer) for layer in layers)


def _layer(partition: Partition, architecture: Architecture, settings: TrainSettings, layer: int) -> int:
    """Received rows; aggregates of the labelled nodes or, later, of the others; the parameters and their states."""
    width = architecture.input_dim(layer)
    stage = build_stage(architecture, layer, settings.seed)
    num_parameters = sum(parameter.numel() for parameter in stage.parameters())
    own_rows = partition.num_inner * width if layer > 0 else 0
    rows = (2 * partition.num_halo + 2 * partition.num_inner) * width  # as received and as gathered for a block
    out = 3 * partition.num_inner * max(stage.output_dim, stage.conv.projected_width)
    return FLOAT * (own_rows + rows + out + 6 * num_parameters)
