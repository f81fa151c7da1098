"""Inductive training (split.inductive): validation and test nodes are hidden.

No message comes from a hidden node: the edges that leave it are dropped, and degrees count what is
left. A training node is then computed as if hidden nodes did not exist; a hidden node as if it
alone had just joined, with its edges from the others.

I inner nodes, H halo nodes of a type.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from retexo.comm.collectives import Communicator
from retexo.exchange.exchange_plan import compute_global_out_degree, request_halo_flags
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import registry

FREE_KINDS = ("given", "random")
"""Kinds of features that do not depend on edges."""


def check_inductive(settings: TrainSettings, directory: PartitionDirectory) -> None:
    """Raise InputError where held-out nodes cannot be hidden."""
    if not settings.split.inductive:
        return
    where = "split.inductive=true"
    if settings.task.links:
        raise InputError(f"{where}: held-out pairs of links are always hidden; leave it out")
    if not registry.trainer_named(settings.trainer.name).INDUCTIVE:
        raise InputError(
            f"{where}: trainer={settings.trainer.name} has no such training; choose one of"
            f" {registry.names_with(lambda trainer: trainer.INDUCTIVE)}"
        )
    if directory.sites:
        raise InputError(f"{where}: not supported between sites; leave it out")
    if directory.graph_settings.get("labels.of") == "edges":
        raise InputError(
            f"{where}: task.message_edges says which labelled edges carry messages; leave it out"
        )
    kinds = directory.graph_settings.get("features", [])
    kinds_of_features = kinds.values() if isinstance(kinds, dict) else [kinds]
    for kinds_of_type in kinds_of_features:
        for kind in [kinds_of_type] if isinstance(kinds_of_type, str) else kinds_of_type:
            if kind not in FREE_KINDS:
                raise InputError(
                    f"{where}: features={kind} of {directory.path} were made with the edges of all"
                    " nodes; partition with features=given or random"
                )


def hide_held_out(
    part: Partition, sizes: Mapping[str, tuple[int, ...]], comm: Communicator
) -> Partition:
    """Return a partition without the edges that leave held-out nodes.

    The out-degrees of a plain graph then count the edges between visible nodes. All workers call
    it. `sizes`: the numbers of inner nodes, by type and rank.
    """
    hidden, target, nodes = part.val_mask | part.test_mask, part.target, part.labelled
    everything = torch.ones(nodes.num_halo, dtype=torch.bool)
    flags = request_halo_flags(nodes, everything, hidden, sizes[target], comm)
    everywhere = torch.cat((hidden, flags))
    relations = {
        edge_type: edges.keep(~everywhere[edges.src.long()]) if edge_type[0] == target else edges
        for edge_type, edges in part.relations.items()
    }
    part = replace(part, relations=relations)
    if not part.is_plain:
        return part
    visible = part.edges.keep(~hidden[part.edges.dst.long()])
    out_degree = compute_global_out_degree(visible, sizes[target], comm)
    return replace(part, nodes={target: replace(nodes, out_degree=out_degree)})
