"""Training a whole network at once: what the end-to-end trainers have in common.

The network is that of the lazy trainer without the heads between the layers, with the same initial parameters.
I inner nodes, F features, C classes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from retexo.comm.traffic_meter import WHOLE_RUN
from retexo.exchange.boundary import INFER_PHASE, TRAIN_PHASE
from retexo.exchange.exchange_plan import ExchangePlan, PlanOptions, make_plan
from retexo.exchange.layer_exchange import LayerExchange
from retexo.exchange.message_selection import LocalRows
from retexo.models.block import Sources
from retexo.models.matrix import Matrix
from retexo.models.stage import Stage
from retexo.rounds.graph_info import GraphInfo
from retexo.rounds.objective import Objective
from retexo.rounds.training_loop import run_rounds
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import layerwise
from retexo.trainers.context import Context, RunContext, TrainResult
from retexo.trainers.layerwise import LayerInput
from retexo.trainers.network_pass import AnyPass

Forward = Callable[[], tuple[Tensor, Tensor]]
"""Logits [n, C] of this worker's nodes, and a zero that has to enter the loss (see retexo.exchange.differentiable_exchange)."""


@dataclass(frozen=True, eq=False)
class NetworkObjective:
    """A whole network on this worker's labelled nodes."""

    module: nn.Module
    first: tuple[Sequence[nn.Parameter], Sequence[Matrix]]
    train: Forward
    """Of this worker's training nodes, and of its validation nodes."""
    val: Forward
    train_labels: Tensor
    val_labels: Tensor
    task: Any
    graph_info: GraphInfo
    exchanges_rows: bool
    layer: int = 0
    traffic_layer: int = WHOLE_RUN

    @property
    def num_train(self) -> int:
        return len(self.train_labels)

    def begin_round(self, number: int) -> None:
        """Nothing depends on it."""

    def first_inputs(self) -> tuple[Sequence[nn.Parameter], Iterable[Sequence[Matrix]]]:
        weights, matrices = self.first
        return weights, [matrices] if matrices else []

    def losses(self) -> Iterator[Tensor]:
        self.module.train()
        logits, zero = self.train()
        yield self.task.loss_sum(logits, self.train_labels) + zero

    @torch.no_grad()
    def val_counts(self) -> Tensor:
        if not self.graph_info.num_val:
            return torch.zeros(3, dtype=torch.int64)
        self.module.eval()
        totals: Tensor = self.task.totals(self.val()[0], self.val_labels)
        return totals


def network_of(stages: Sequence[Stage]) -> nn.Module:
    """The trained modules: all but the heads; of links the last scorer, too."""
    scorers = [] if stages[-1].scorer is None else [stages[-1].scorer]
    return nn.ModuleList([*(stage.trunk for stage in stages), *scorers])


def fit(
    context: RunContext,
    module: nn.Module,
    first: tuple[Sequence[nn.Parameter], Sequence[Matrix]],
    train: Forward,
    val: Forward,
    *,
    exchanges_rows: bool,
    wrap: Callable[[NetworkObjective], Objective] = lambda objective: objective,
) -> list[int]:
    """Train to convergence; the module ends with its best validation round. Returns the number of rounds, in a list."""
    partition = context.partition
    objective = NetworkObjective(
        module=module,
        first=first,
        train=train,
        val=val,
        train_labels=context.labels[partition.train_mask.to(context.device)],
        val_labels=context.labels[partition.val_mask.to(context.device)],
        task=context.task,
        graph_info=context.graph_info,
        exchanges_rows=exchanges_rows,
    )
    with context.phase("rounds"):
        rounds = run_rounds(wrap(objective), context.settings, context.comm, context.log)
    module.eval()
    return [rounds]


def fit_stages(
    context: RunContext,
    stages: Sequence[Stage],
    train: Callable[[], AnyPass],
    val: AnyPass,
    matrices: Sequence[Matrix],
    *,
    exchanges_rows: bool,
    wrap: Callable[[NetworkObjective], Objective] = lambda objective: objective,
) -> list[int]:
    """Train stages end to end and write them to the checkpoint; `train` makes the pass of each step.

    matrices: the input of the first weights, or anything with the same columns of zeros.
    """
    comm = context.comm
    rounds = fit(
        context,
        network_of(stages),
        (stages[0].first_weights, matrices),
        lambda: train().run(stages, comm, "embeddings"),
        lambda: val.run(stages, comm, "metrics"),
        exchanges_rows=exchanges_rows,
        wrap=wrap,
    )
    for layer, stage in enumerate(stages):
        context.save_layer(layer, stage)
    return rounds


def train_without_exchange(
    context: RunContext, stages: Sequence[Stage], make: Callable[[Tensor], AnyPass]
) -> TrainResult:
    """Train, validate and test on passes that send nothing; `make` makes the one for some targets, bool [I]."""
    partition = context.partition
    with context.phase("aggregate"):
        train, val = make(partition.train_mask), make(partition.val_mask)
    rounds = fit_stages(
        context, stages, lambda: train, val, train.first_matrices, exchanges_rows=False
    )
    with torch.no_grad(), context.phase("embed"):
        everything = make(nodes_in_a_split(context))
        found = everything.run(stages, context.comm, "embeddings")[0].cpu()
        logits = found.new_full((partition.num_inner, found.shape[1]), torch.nan)
        logits[everything.targets] = found
    return TrainResult(rounds, [logits])


# --- before and after the rounds -------------------------------------------------------------------------------------


def exchange_rows(
    context: RunContext,
    plan: ExchangePlan,
    layer: int,
    rows: Tensor,
    scale: Tensor | None,
    kind: str = "features",
    traffic_layer: int | None = None,
) -> Sources:
    """Send rows [I, F] once, before training, as the lazy trainer sends a layer's input; never projected."""
    of_layer = context.settings.exchange.precision
    precision = of_layer[0]
    if (
        kind == "predictions"
    ):  # few classes: four bits beside the scale would save little, and are too coarse to add up
        precision = "int8" if of_layer[-1] == "int4" else of_layer[-1]
    local = LocalRows.unprojected(rows, scale, layerwise.PRECISIONS[precision])
    exchange = LayerExchange(plan, layer, local, context.comm, kind, traffic_layer)
    with context.phase("exchange"):
        exchange.run(TRAIN_PHASE)
        return exchange.run(INFER_PHASE)


def exchange_features(context: Context, stage: Stage, plan: ExchangePlan) -> Sources:
    """The features that the first layer needs from other workers, in any pass."""
    return exchange_rows(context, plan, 0, context.features, context.source_scale(stage.conv))


def plan_for(context: Context, targets: Tensor, *, sums: bool) -> ExchangePlan:
    """The plan of a pass for the targets, bool [I]."""
    options = options_of_pass(context.settings, context.plan_options, sums=sums)
    return make_plan(context.partition, options, context.comm, targets)


def options_of_pass(settings: TrainSettings, options: PlanOptions, *, sums: bool) -> PlanOptions:
    """Of what a plan for one is made; its rows go forth and back in each round."""
    times = 2 * settings.num_rounds[0]
    vector_bytes = (times * options.vector_bytes[0], times * options.vector_bytes[1])
    return replace(options.for_targets(partial_sums=sums), vector_bytes=vector_bytes)


def nodes_in_a_split(context: RunContext) -> Tensor:
    """Training, validation and test nodes, bool [I]."""
    partition = context.partition
    return partition.train_mask | partition.val_mask | partition.test_mask


@torch.no_grad()
def infer(context: Context, stages: Sequence[Stage], features: Sources) -> Tensor:
    """The logits [I, C] of the nodes of a split, as app=evaluate computes them; features are not sent again."""
    nodes = (context.plan.required_layers > 0).nonzero()[:, 0]
    with context.phase("embed"):
        rows = context.features.new_full((len(context.features), stages[0].output_dim), torch.nan)
        if len(nodes):
            inputs = layerwise.layer_inputs(
                context, stages[0], nodes, LayerInput(context.features), features
            )
            rows[nodes] = stages[0].embed(inputs).cpu()
    for layer, stage in enumerate(stages[1:], start=1):
        rows = layerwise.run_layer(
            context, layer, stage, LayerInput(rows), lambda objective: None
        ).rows
    return rows
