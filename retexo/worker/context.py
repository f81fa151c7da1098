"""From a partition to a trainer's context (retexo.trainers.context): the exchange plan, degrees, device, checkpoint."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from partitioning.directory.partition import Partition
from retexo.comm.collectives import Communicator
from retexo.exchange.coding.values import value_bytes
from retexo.exchange.exchange_plan import PlanOptions, Use, compute_global_out_degree, make_plan
from retexo.models.convolution import Convolution
from retexo.results.checkpoint import save_layer
from retexo.results.run_log import RunLog
from retexo.rounds.graph_info import GraphInfo
from retexo.rounds.recovery import Recovery
from retexo.settings.run_settings import TrainSettings
from retexo.sites.resolve_halo import resolve_halo
from retexo.tasks.link_prediction import LinkPrediction
from retexo.tasks.task import NodeClassification
from retexo.trainers.checks import refuse_edge_data
from retexo.trainers.context import Clock, Context, edge_means, in_edges
from retexo.trainers.layerwise import PRECISIONS
from retexo.trainers.link_prediction import make_link_objective
from retexo.worker.process import choose_device


def make_context(
    settings: TrainSettings,
    partition: Partition,
    graph_info: GraphInfo,
    comm: Communicator,
    conv: Convolution,
    *,
    clock: Clock,
    log: RunLog | None = None,
    run_dir: Path = Path(),
    dtype: torch.dtype = torch.float32,
    use: Use = "train",
    recovery: Recovery | None = None,
) -> Context:
    """Make the exchange plan and everything else that a trainer needs.

    conv: of the kind that all layers have. log: None to report nothing. run_dir: where rank 0 saves layers.
    """
    refuse_edge_data(settings, conv, graph_info)
    device = choose_device(settings.cluster.device, settings.cluster.local_index(comm.rank))
    plan_options = PlanOptions(
        num_layers=settings.model.num_layers + settings.smoothing.hops,
        part_sizes=graph_info.part_sizes,
        all_nodes=graph_info.all_nodes_used or settings.task.links,
        partial_sums=conv.linear_aggregation,
        all_halo_rows=settings.exchange.mode == "plain",
        use=use,
    )
    if graph_info.weighted:
        plan_options = replace(
            plan_options, vector_bytes=_vector_bytes(settings, partition.features)
        )
    if partition.unresolved_halo is not None:
        with comm.without_replay_log():  # its keys are drawn anew
            partition = resolve_halo(
                partition, graph_info.part_sizes, comm, settings.max_rows_shared
            )
    if graph_info.weighted and partition.edge_weight is None:
        partition = replace(partition, edge_weight=torch.ones(len(partition.src)))
    if graph_info.num_edge_features and partition.edge_feat is None:  # without edges
        partition = replace(
            partition, edge_feat=torch.empty(len(partition.src), graph_info.num_edge_features)
        )
    plan = make_plan(partition, plan_options, comm)
    out_degree = _out_degree(
        partition, graph_info, comm, used=conv.uses_out_degree or settings.smoothing.steps > 0
    )
    labels = partition.labels.to(dtype) if partition.multilabel else partition.labels
    features = (
        partition.features if partition.num_inner else torch.empty(0, graph_info.num_features)
    )

    feat = partition.edge_feat if conv.attention_heads else None

    return Context(
        settings=settings,
        partition=replace(
            partition, features=partition.features[:0].clone(), halo_features=None, edge_feat=feat
        ),
        features=features.to(dtype),
        labels=labels.to(device),
        edges=in_edges(partition, conv, partition.in_degree, out_degree, dtype),
        plan=plan,
        plan_options=plan_options,
        graph_info=graph_info,
        task=task_of(settings) or NodeClassification(graph_info.num_classes, graph_info.multilabel),
        make_objective=make_link_objective if settings.task.links and use == "train" else None,
        comm=comm,
        device=device,
        log=log or RunLog(Path(), 1, settings),
        save_layer=layer_saver(run_dir, comm, clock),
        halo_features=None
        if partition.halo_features is None
        else partition.halo_features.to(dtype),
        recovery=recovery,
        clock=clock,
        edge_means=None if conv.attention_heads else edge_means(partition, dtype),
    )


def task_of(settings: TrainSettings) -> LinkPrediction | None:
    """None for classes of nodes, which follow from the labels."""
    return LinkPrediction(settings.task.dim) if settings.task.links else None


def layer_saver(
    run_dir: Path, comm: Communicator, clock: Clock
) -> Callable[[int, nn.Module], None]:
    """RunContext.save_layer of a run directory."""

    def save(layer: int, stage: nn.Module) -> None:
        if comm.rank == 0:
            clock.progress.enter("checkpoint")
            save_layer(run_dir / "checkpoint", layer, stage)

    return save


def _vector_bytes(settings: TrainSettings, features: Tensor) -> tuple[int, int]:
    """PlanOptions.vector_bytes; of features, [I, F], those count that are not zero."""
    hidden = settings.model.hidden_dim
    first = int((features != 0).sum()) // max(1, len(features))
    precisions = [PRECISIONS[name] for name in settings.exchange.precision]
    widths = [first, *[hidden] * (len(precisions) - 1)]
    train, infer = (
        sum(
            value_bytes(min(width, most), torch.float32, each)
            for width, each in zip(widths, precisions, strict=True)
        )
        for most in (max(first, hidden), hidden)
    )
    return train, infer


def _out_degree(
    partition: Partition, graph_info: GraphInfo, comm: Communicator, *, used: bool
) -> Tensor:
    """Out-degrees in the whole graph, [I + H]: stored, or asked for where they are used; else zeros."""
    if graph_info.degrees_stored:
        assert partition.out_degree is not None
        return partition.out_degree
    if used:
        return compute_global_out_degree(partition, graph_info.part_sizes, comm)
    return torch.zeros(partition.num_inner + partition.num_halo)
