"""What the trainers that train a whole network at once have in common.

A pass takes the features of some nodes through all layers. Its first layer's input is fixed. The input of each other
layer is made of the rows that the layer before it has just made, here and, by a swap, elsewhere. The network is that of
the lazy trainer without the heads between the layers, with the same initial parameters.

I inner nodes; in layer l of L a pass has n_l destinations; C classes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from retexo.comm.traffic import WHOLE_RUN
from retexo.exchange.layer_exchange import LayerExchange
from retexo.exchange.plan import EMBED, ROUNDS, ExchangePlan, make_plan
from retexo.exchange.selection import LocalRows
from retexo.nn.block import Sources
from retexo.nn.matrix import Matrix, dense
from retexo.nn.stage import Stage
from retexo.trainers import layerwise
from retexo.trainers.context import Context, TrainResult
from retexo.trainers.network_pass import Pass
from retexo.training.loop import run_rounds
from retexo.training.objective import Totals
from retexo.training.task import NodeClassification

Forward = Callable[[], tuple[Tensor, Tensor]]
"""Logits [n, C] of this worker's nodes, and a zero that has to enter the loss (see retexo.exchange.autograd)."""


# --- training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class NetworkTask:
    """What the rounds of a whole network work on."""

    module: nn.Module
    first: tuple[Sequence[nn.Parameter], Sequence[Matrix]]
    train: Forward
    """Of this worker's training nodes, and of its validation nodes."""
    val: Forward
    train_labels: Tensor
    val_labels: Tensor
    task: NodeClassification
    totals: Totals
    joint: bool
    layer: int = 0
    traffic_layer: int = WHOLE_RUN

    @property
    def num_train(self) -> int:
        return len(self.train_labels)

    def first_inputs(self) -> tuple[Sequence[nn.Parameter], Iterable[Sequence[Matrix]]]:
        weights, matrices = self.first
        return weights, [matrices] if matrices else []

    def losses(self) -> Iterator[Tensor]:
        self.module.train()
        logits, zero = self.train()
        yield self.task.loss_sum(logits, self.train_labels) + zero

    @torch.no_grad()
    def val_counts(self) -> Tensor:
        if not self.totals.val:
            return torch.zeros(3, dtype=torch.int64)
        self.module.eval()
        return self.task.counts(self.val()[0], self.val_labels).sum(dim=1)


def network_of(stages: Sequence[Stage]) -> nn.Module:
    """All that is trained: the convolutions and norms, not the heads."""
    parts = [part for stage in stages for part in (stage.conv, stage.norm) if part is not None]
    return nn.ModuleList(parts)


def fit(
    context: Context,
    module: nn.Module,
    first: tuple[Sequence[nn.Parameter], Sequence[Matrix]],
    train: Forward,
    val: Forward,
    *,
    joint: bool,
) -> list[int]:
    """Train to convergence; the module ends with its best validation round. Returns the number of rounds, in a list."""
    partition = context.partition
    task = NetworkTask(
        module=module,
        first=first,
        train=train,
        val=val,
        train_labels=context.labels[partition.train_mask.to(context.device)],
        val_labels=context.labels[partition.val_mask.to(context.device)],
        task=context.task,
        totals=context.totals,
        joint=joint,
    )
    with context.phase("rounds"):
        rounds = run_rounds(task, context.settings, context.comm, context.log)
    module.eval()
    return [rounds]


def fit_stages(
    context: Context, stages: Sequence[Stage], train: Callable[[], Pass], val: Pass, matrices: Sequence[Matrix], *,
    joint: bool,
) -> list[int]:  # fmt: skip
    """Train stages end to end and keep them in the checkpoint; `train` gives the pass of each step.

    matrices: the input of the first weights, or anything with the same columns of zeros.
    """
    comm = context.comm
    rounds = fit(
        context,
        network_of(stages),
        (stages[0].conv.first_weights, matrices),
        lambda: train().run(stages, comm, "embeddings"),
        lambda: val.run(stages, comm, "metrics"),
        joint=joint,
    )
    for layer, stage in enumerate(stages):
        context.save_layer(layer, stage)
    return rounds


def train_within(context: Context, stages: Sequence[Stage], make: Callable[[Tensor], Pass]) -> TrainResult:
    """Train, validate and test on passes that send nothing; `make` gives the one for some targets, bool [I]."""
    partition = context.partition
    with context.phase("aggregate"):
        train, val = make(partition.train_mask), make(partition.val_mask)
    rounds = fit_stages(context, stages, lambda: train, val, fixed_matrices(train), joint=False)
    with torch.no_grad(), context.phase("embed"):
        everything = make(in_a_mask(context))
        shape = partition.num_inner, stages[-1].output_dim
        logits = context.features.new_full(shape, torch.nan)
        logits[everything.targets] = everything.run(stages, context.comm, "embeddings")[0].cpu()
    return TrainResult(rounds, logits)


def fixed_matrices(made: Pass) -> Sequence[Matrix]:
    fixed = made.steps[0].fixed
    return () if fixed is None else fixed.matrices


# --- before and after ------------------------------------------------------------------------------------------------


def exchange_rows(
    context: Context, plan: ExchangePlan, layer: int, rows: Tensor, scale: Tensor | None, kind: str = "features"
) -> Sources:
    """Send rows [I, F] once, before training, as the lazy trainer sends a layer's; never after weights."""
    precision = layerwise.PRECISIONS[context.settings.exchange.precision]
    exchange = LayerExchange(plan, layer, LocalRows(rows, scale, dense, rows.shape[1], precision), context.comm, kind)
    with context.phase("exchange"):
        exchange.run(ROUNDS)
        return exchange.run(EMBED)


def exchange_features(context: Context, stage: Stage, plan: ExchangePlan) -> Sources:
    """All that the first layer needs of other parts, in any pass."""
    return exchange_rows(context, plan, 0, context.features, context.source_scale(stage.conv))


def plan_for(context: Context, targets: Tensor, *, sums: bool) -> ExchangePlan:
    """What a pass for the targets, bool [I], needs of others."""
    return make_plan(context.partition, context.plan_request.of_targets(sums=sums), context.comm, targets)


def in_a_mask(context: Context) -> Tensor:
    """Training, validation and test nodes, bool [I]."""
    partition = context.partition
    return partition.train_mask | partition.val_mask | partition.test_mask


@torch.no_grad()
def infer(context: Context, stages: Sequence[Stage], features: Sources) -> Tensor:
    """The logits [I, C] of the nodes in a mask, as app=evaluate makes them; of the features none is sent again."""
    nodes = (context.plan.required_layers > 0).nonzero()[:, 0]
    with context.phase("embed"):
        rows = context.features.new_full((len(context.features), stages[0].output_dim), torch.nan)
        if len(nodes):
            rows[nodes] = (
                stages[0].embed(layerwise.layer_inputs(context, stages[0], nodes, context.features, features)).cpu()
            )
    for layer, stage in enumerate(stages[1:], start=1):
        rows = layerwise.run_layer(context, layer, stage, rows, lambda layer_task: None)
    return rows
