"""From a part of a heterogeneous graph to what its trainers work with: sizes, and who needs which rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from partitioning.directory.partition import HeteroPartition, Partition
from partitioning.errors import InputError
from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import SETUP
from retexo.exchange.exchange_plan import ExchangePlan, PlanOptions, Use
from retexo.hetero.edges import OutRelations, RelationMeans, required_layers
from retexo.models.hetero_stage import Schema
from retexo.results.run_log import RunLog
from retexo.rounds.graph_info import GraphInfo
from retexo.rounds.recovery import Recovery
from retexo.settings.run_settings import TrainSettings
from retexo.sites.resolve_halo import resolve_halo
from retexo.tasks.task import NodeClassification
from retexo.trainers.context import Clock, RunContext


@dataclass(eq=False, kw_only=True)
class HeteroContext(RunContext):
    """Everything that a trainer works with on one worker; `partition` has the nodes of the target, and no edges."""

    schema: Schema
    features: dict[str, Tensor]
    """[I, F] of each type, in the precision of the computation, on the host; empty when they are of no more use."""
    out: dict[str, OutRelations]
    """By source type."""
    plans: dict[str, ExchangePlan]
    """Of the rows of each type."""
    options: dict[str, PlanOptions]
    """What the plans were made from."""
    required: dict[str, Tensor]
    """uint8 [I] of each type, as ExchangePlan.required_layers."""

    @property
    def rows_asked_for(self) -> list[int]:
        by_type = (each.partition.asked_for or () for each in self.out.values())
        return [sum(map(len, nodes)) for nodes in zip(*by_type, strict=True)]

    @property
    def computed(self) -> Tensor:
        return self.required[self.schema.target] >= self.settings.model.num_layers

    def release_features(self) -> None:
        self.features.clear()

    def means(
        self, source: str, rows: Tensor, nodes: Mapping[str, Tensor], weight: Tensor | None = None
    ) -> RelationMeans:
        """Of a type's rows [I, F], or of these after a weight [F, D]; nodes: int64 [n] of each destination type."""
        return RelationMeans(self.out[source], rows, nodes, self.device, weight)


def of_target(part: HeteroPartition) -> Partition:
    """The nodes with labels, as a partition without edges."""
    nodes, none = part.nodes[part.target], torch.zeros(0, dtype=torch.int32)
    degree = torch.zeros(nodes.num_inner, dtype=torch.int64)
    return Partition(
        rank=part.rank,
        num_parts=part.num_parts,
        num_inner=nodes.num_inner,
        num_halo=0,
        src=none,
        dst=none,
        features=nodes.features,
        labels=part.labels,
        train_mask=part.train_mask,
        val_mask=part.val_mask,
        test_mask=part.test_mask,
        node_ids=nodes.node_ids,
        halo_owner=nodes.halo_owner[:0],
        halo_index=nodes.halo_index[:0],
        in_degree=degree,
        out_degree=degree,
        self_loops=part.self_loops,
    )


def schema_of(part: HeteroPartition) -> Schema:
    """The same on every worker; InputError where nothing of it has features that reach the target."""
    widths = {name: nodes.features.shape[1] for name, nodes in part.nodes.items()}
    schema = Schema(part.target, widths, tuple(part.relations))
    if not (widths[part.target] or schema.inputs(0)):
        raise InputError(
            f"{part.target}: neither it nor a type that a relation brings to it has features; give some: features=..."
        )
    return schema


def make_hetero_context(
    settings: TrainSettings,
    part: HeteroPartition,
    graph_info: GraphInfo,
    comm: Communicator,
    *,
    partial_sums: bool,
    device: torch.device,
    save_layer: Callable[[int, nn.Module], None] = lambda layer, stage: None,
    clock: Clock,
    log: RunLog,
    dtype: torch.dtype = torch.float32,
    use: Use = "train",
    recovery: Recovery | None = None,
) -> HeteroContext:
    """Agree on sizes and on who needs which rows. partial_sums: whether the model's aggregator adds up."""
    inner = torch.tensor([nodes.num_inner for nodes in part.nodes.values()])
    by_rank = comm.all_gather(inner, SETUP)
    sizes = {name: tuple(by_rank[:, place].tolist()) for place, name in enumerate(part.nodes)}
    part = resolved(part, sizes, comm, settings.max_rows_shared)
    target, schema = of_target(part), schema_of(part)
    out = {name: OutRelations.of(part, name, dtype) for name in part.nodes}
    options = {
        name: PlanOptions(
            num_layers=settings.model.num_layers,
            part_sizes=sizes[name],
            all_nodes=False,
            partial_sums=partial_sums,
            all_halo_rows=settings.exchange.mode == "plain",
            use=use,
        )
        for name in part.nodes
    }
    required = _required(settings, target, part, use)
    if use != "nothing" and settings.exchange.mode != "plain":
        required_layers(out, sizes, required, settings.model.num_layers, comm)
    plans = {
        name: each.plan(each.required(required), options[name], comm) for name, each in out.items()
    }
    labels = target.labels.to(dtype) if target.multilabel else target.labels
    return HeteroContext(
        settings=settings,
        partition=replace(target, features=target.features[:0].clone()),
        labels=labels.to(device),
        graph_info=graph_info,
        task=NodeClassification(graph_info.num_classes, graph_info.multilabel),
        comm=comm,
        device=device,
        log=log,
        save_layer=save_layer,
        recovery=recovery,
        clock=clock,
        schema=schema,
        features={name: nodes.features.to(dtype) for name, nodes in part.nodes.items()},
        out=out,
        plans=plans,
        options=options,
        required=required,
    )


def resolved(
    part: HeteroPartition,
    sizes: Mapping[str, tuple[int, ...]],
    comm: Communicator,
    max_rows_shared: float | None,
) -> HeteroPartition:
    """The part of a site with what the owners of its halo nodes say, type by type; sizes: inner nodes by rank."""
    if any(nodes.unresolved_halo is None for nodes in part.nodes.values()):
        return part
    with comm.without_replay_log():  # its keys are drawn anew
        nodes = {
            name: resolve_halo(each, sizes[name], comm, max_rows_shared)
            for name, each in part.nodes.items()
        }
    return replace(part, nodes=nodes)


def _required(
    settings: TrainSettings, target: Partition, part: HeteroPartition, use: Use
) -> dict[str, Tensor]:
    """What of the target is computed; answers that are smoothed from all of it are (smoothing.reach=hops)."""
    last, everything = settings.model.num_layers, use == "predict" or settings.smoothing.hops > 0
    labelled = target.train_mask | target.val_mask
    required = {
        name: torch.zeros(nodes.num_inner, dtype=torch.uint8) for name, nodes in part.nodes.items()
    }
    if use == "nothing":
        return required
    own = required[part.target]
    own[target.test_mask | labelled | everything] = last
    if use == "train":
        own[labelled] = last + 1
    if settings.exchange.mode == "plain":
        for each in required.values():
            each[:] = last + 1
    return required
