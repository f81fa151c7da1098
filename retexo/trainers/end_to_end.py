"""Training a whole network at once: what the end-to-end trainers share.

The network is that of the lazy trainer without the heads between the layers, with the same initial
parameters. With skip connections the last layer has a head. I inner nodes, F features, C classes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from retexo.comm.traffic_meter import WHOLE_RUN
from retexo.exchange.boundary import INFER_PHASE, TRAIN_PHASE
from retexo.exchange.exchange_plan import ExchangePlan
from retexo.exchange.layer_exchange import LayerExchange
from retexo.exchange.local_rows import LocalRows
from retexo.models.block import Sources
from retexo.models.matrix import Matrix
from retexo.models.stage import Stage
from retexo.rounds.graph_info import GraphInfo
from retexo.rounds.objective import Objective, Validation, count_validation
from retexo.rounds.training_loop import run_rounds
from retexo.trainers import layerwise
from retexo.trainers.context import Context, TrainResult, place_rows
from retexo.trainers.network_pass import Pass

Forward = Callable[[], tuple[Tensor, Tensor]]
"""Logits [n, C] of this worker's nodes, and a zero to add to the loss (differentiable_exchange)."""


@dataclass(frozen=True, eq=False)
class NetworkObjective(Objective):
    """A whole network on this worker's labelled nodes."""

    network: nn.Module
    first: tuple[Sequence[nn.Parameter], Sequence[Matrix]]
    """The first weights, and the matrices that these are multiplied with; none without nodes."""
    train: Forward
    """Forward pass of this worker's training nodes."""
    val: Forward
    """Forward pass of its validation nodes."""
    train_labels: Tensor
    val_labels: Tensor
    task: Any
    graph_info: GraphInfo
    exchanges_rows: bool
    layer: int = 0
    traffic_layer: int = WHOLE_RUN

    @property
    def module(self) -> nn.Module:
        return self.network

    @property
    def num_train(self) -> int:
        return len(self.train_labels)

    def first_inputs(self) -> tuple[Sequence[nn.Parameter], Iterable[Sequence[Matrix]]]:
        weights, matrices = self.first
        return weights, [matrices] if matrices else []

    def losses(self) -> Iterator[Tensor]:
        """Yield once the loss summed over this worker's training nodes; sets training mode.

        It has the zero of Pass.run, by which gradients are exchanged, also without training nodes.
        """
        self.module.train()
        logits, zero = self.train()
        yield self.task.loss_sum(logits, self.train_labels) + zero

    @torch.no_grad()
    def validate(self) -> Validation:
        if not self.graph_info.num_val:
            return count_validation(self.task, self.metric, [])
        self.module.eval()
        return count_validation(self.task, self.metric, [(self.val()[0], self.val_labels)])


def collect_modules(stages: Sequence[Stage]) -> nn.Module:
    """Return the modules that are trained: each stage's trunk, then the last one's head.

    For link prediction the last one's scorer.
    """
    last = stages[-1]
    heads = [module for module in (last.head_norm, last.head, last.scorer) if module is not None]
    return nn.ModuleList([*(stage.trunk for stage in stages), *heads])


def fit_network(
    context: Context,
    module: nn.Module,
    first: tuple[Sequence[nn.Parameter], Sequence[Matrix]],
    train: Forward,
    val: Forward,
    *,
    exchanges_rows: bool,
    wrap: Callable[[NetworkObjective], Objective] = lambda objective: objective,
) -> list[int]:
    """Train to convergence; return the number of rounds, in a list. All workers call it.

    The module ends as run_rounds leaves it, set to evaluation. Raises as run_rounds.
    """
    partition = context.partition
    objective = NetworkObjective(
        network=module,
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
        result = run_rounds(wrap(objective), context.settings, context.comm, context.log)
    module.eval()
    return [result.num_rounds]


def fit_stages(
    context: Context,
    stages: Sequence[Stage],
    train: Callable[[], Pass],
    val: Pass,
    matrices: Sequence[Matrix],
    *,
    exchanges_rows: bool,
    wrap: Callable[[NetworkObjective], Objective] = lambda objective: objective,
) -> list[int]:
    """Train stages end to end, write them to the checkpoint, and return the number of rounds.

    All workers call it. The number is in a list. Raises as run_rounds.

    Args:
        context: of this worker.
        stages: of the network.
        train: returns the pass of the next step.
        val: the validation pass.
        matrices: the input of the first weights, or matrices whose columns of zeros are the same.
        exchanges_rows: whether passes exchange rows.
        wrap: turns the objective for nodes into another one.
    """
    comm = context.comm
    rounds = fit_network(
        context,
        collect_modules(stages),
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
    context: Context, stages: Sequence[Stage], make: Callable[[Tensor], Pass]
) -> TrainResult:
    """Train on passes that send nothing, save the stages, and compute the logits.

    All workers call it, as the rounds add gradients. Logits are NaN at nodes that are neither in a
    split nor computed. `make` makes a pass for targets, bool [I].
    """
    partition = context.partition
    with context.phase("aggregate"):
        train, val = make(partition.train_mask), make(partition.val_mask)
    rounds = fit_stages(
        context, stages, lambda: train, val, train.first_matrices, exchanges_rows=False
    )
    with torch.no_grad(), context.phase("embed"):
        used = context.in_a_split | context.computed
        logits, _ = make(used).run(stages, context.comm, "embeddings")
    return TrainResult(rounds, [place_rows(logits, used)])


# --- before and after the rounds ----------


def exchange_rows(
    context: Context,
    plan: ExchangePlan,
    layer: int,
    rows: Tensor,
    scale: Tensor | None,
    kind: str = "features",
    traffic_layer: int | None = None,
    device: torch.device | None = None,
) -> Sources:
    """Send rows [I, F] once, outside the rounds; never projected. All workers call it.

    Args:
        layer: Of the plan.
        scale: Of source rows, or None.
        kind: Of traffic; predictions have the last layer's precision, at least int8.
        device: Of the received ones; None: the CPU.
    """
    of_layer = context.settings.exchange.precision
    precision = of_layer[0]
    if kind == "predictions":
        # With few classes, four bits beside the scale would save little, and sums are too coarse.
        precision = "int8" if of_layer[-1] == "int4" else of_layer[-1]
    local = LocalRows.unprojected(
        rows, scale, layerwise.PRECISIONS[precision], device or torch.device("cpu")
    )
    exchange = LayerExchange(plan, layer, local, context.comm, kind, traffic_layer)
    with context.phase("exchange"):
        exchange.run(TRAIN_PHASE)
        return exchange.run(INFER_PHASE)


def exchange_features(
    context: Context,
    stages: Sequence[Stage],
    *,
    with_sums: bool = True,
    kind: str = "features",
) -> dict[str, Sources]:
    """Receive, by type, the features that the first layer needs from other workers in any pass.

    All workers call it. Types without features are left out, but in a plain graph.

    with_sums: whether partial sums may be sent, where the aggregator adds up.
    """
    received = {}
    for name, node_type in context.types.items():
        if not (node_type.features.shape[1] or context.schema.is_plain):
            continue
        scale = context.source_scale(stages[0].conv)
        plan = node_type.plan if with_sums else node_type.plan.without_sums()
        received[name] = exchange_rows(context, plan, 0, node_type.features, scale, kind)
    return received
