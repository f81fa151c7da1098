"""Inductive training (split.inductive): validation and test nodes are hidden.

No message comes from a hidden node: the edges that leave it are dropped, and degrees count what is
left. A training node is then computed as if hidden nodes did not exist; a hidden node as if it
alone had just joined, with its edges from the others.

I inner nodes, H halo nodes of a type.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from partitioning.directory.partition import HeteroPartition, PartEdges, Partition
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from retexo.comm.collectives import Communicator
from retexo.exchange.exchange_plan import compute_global_out_degree, request_halo_flags
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import registry

FREE_KINDS = ("given", "random")
"""Kinds of features that do not depend on edges."""


def check_inductive(settings: TrainSettings, directory: PartitionDirectory) -> None:
    """InputError where held-out nodes cannot be hidden."""
    if not settings.split.inductive:
        return
    where = "split.inductive=true"
    if settings.task.links:
        raise InputError(f"{where}: held-out pairs of links are always hidden; leave it out")
    if not registry.find(settings.trainer.name).INDUCTIVE:
        raise InputError(
            f"{where}: trainer={settings.trainer.name} has no such training; choose one of"
            f" {registry.names_with('INDUCTIVE')}"
        )
    if directory.sites:
        raise InputError(f"{where}: not supported between sites; leave it out")
    kinds = directory.graph_settings.get("features", [])
    given = kinds.values() if isinstance(kinds, dict) else [kinds]
    for each in given:
        for kind in [each] if isinstance(each, str) else each:
            if kind not in FREE_KINDS:
                raise InputError(
                    f"{where}: features={kind} of {directory.path} were made with the edges of all"
                    " nodes; partition with features=given or random"
                )


def hide_in_partition(
    part: Partition, part_sizes: tuple[int, ...], comm: Communicator
) -> Partition:
    """A plain partition without the edges that leave held-out nodes."""
    hidden = part.val_mask | part.test_mask
    everywhere = torch.cat((hidden, _halo_flags(part, hidden, part_sizes, comm)))
    kept = part.keep_edges(~everywhere[part.src.long()])
    visible = kept.keep_edges(~hidden[kept.dst.long()])
    return replace(
        kept,
        in_degree=kept.sum_edges_at(kept.dst, kept.num_inner),
        out_degree=compute_global_out_degree(visible, part_sizes, comm),
    )


def hide_by_type(
    part: HeteroPartition, sizes: Mapping[str, tuple[int, ...]], comm: Communicator
) -> HeteroPartition:
    """A partition of a heterogeneous graph without the edges that leave held-out nodes."""
    hidden, target = part.val_mask | part.test_mask, part.target
    flags = _halo_flags(part.nodes[target], hidden, sizes[target], comm)
    everywhere = torch.cat((hidden, flags))
    relations = {
        each: _keep_edges(edges, ~everywhere[edges.src.long()]) if each[0] == target else edges
        for each, edges in part.relations.items()
    }
    return replace(part, relations=relations)


def _halo_flags(
    nodes: Any, hidden: Tensor, part_sizes: tuple[int, ...], comm: Communicator
) -> Tensor:
    """Ask the owners which halo nodes are hidden; return bool [H]."""
    everything = torch.ones(nodes.num_halo, dtype=torch.bool)
    return request_halo_flags(nodes, everything, hidden, part_sizes, comm)


def _keep_edges(edges: PartEdges, kept: Tensor) -> PartEdges:
    """Return the edges of a mask, bool [E], with their weights."""
    weight = None if edges.edge_weight is None else edges.edge_weight[kept]
    return replace(edges, src=edges.src[kept], dst=edges.dst[kept], edge_weight=weight)
