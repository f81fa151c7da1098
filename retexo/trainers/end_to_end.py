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

from partitioning.errors import InputError
from retexo.comm.collectives import Communicator
from retexo.comm.traffic import WHOLE_RUN, Purpose
from retexo.config.settings import TrainSettings
from retexo.exchange.autograd import Sample, Swap, make_swap
from retexo.exchange.layer_exchange import LayerExchange
from retexo.exchange.plan import EMBED, ROUNDS, ExchangePlan, make_plan, reach_here
from retexo.exchange.selection import LocalRows
from retexo.nn.block import Block, InEdges, Sources, Vectors
from retexo.nn.convolution import Inputs
from retexo.nn.linear import NOT_PROJECTED
from retexo.nn.matrix import Matrix, dense
from retexo.nn.stage import Stage
from retexo.trainers import lazy
from retexo.trainers.context import Context
from retexo.training.loop import Totals, run_rounds
from retexo.training.task import NodeClassification

Forward = Callable[[], tuple[Tensor, Tensor]]
"""Logits [n, C] of this worker's nodes, and a zero that has to enter the loss (see retexo.exchange.autograd)."""


# --- a pass ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Step:
    """One layer of a pass."""

    num_rows: int
    """n_l"""
    fixed: Inputs | None = None
    """Of the first layer; None without destinations."""
    block: Block | None = None
    """Of the others."""
    index: Tensor | None = None
    """int64 [N_src] where the block's sources are: among the rows of the layer before, then the received ones."""
    swap: Swap | None = None
    """None where nothing is sent."""
    scale: float = 1.0
    """What received vectors are multiplied with."""


@dataclass(frozen=True, eq=False)
class Pass:
    """From the features to the logits of some nodes, `targets`."""

    steps: Sequence[Step]
    targets: Tensor
    """int64 [n] inner nodes."""
    select: Tensor
    """int64 [n] their rows in the output of the last step."""

    def run(self, stages: Sequence[Stage], comm: Communicator, kind: str) -> tuple[Tensor, Tensor]:
        """Logits [n, C], and the zero of the last swap; the account books rows and their gradients under `kind`."""
        like = next(stages[0].parameters())
        rows, before = like.new_zeros(0, 0), torch.zeros((), dtype=like.dtype, device=like.device, requires_grad=True)
        for layer, (step, stage) in enumerate(zip(self.steps, stages, strict=True)):
            if step.swap is not None:
                received, before = step.swap.run(rows, before, comm, Purpose(kind, layer))
                rows = torch.cat((rows, received if step.scale == 1 else received * step.scale))
            rows = _compute(step, stage, rows)
        return rows[self.select.to(rows.device)], before


def _compute(step: Step, stage: Stage, table: Tensor) -> Tensor:
    """[n_l, D]"""
    if not step.num_rows:
        return next(stage.parameters()).new_zeros(0, stage.output_dim)
    inputs = step.fixed
    if inputs is None:
        assert step.block is not None
        assert step.index is not None
        inputs = stage.conv.prepare(step.block, table[step.index], NOT_PROJECTED)
    return stage.embed(inputs)


def joint_pass(
    context: Context, stages: Sequence[Stage], plan: ExchangePlan, features: Sources, targets: Tensor
) -> Pass:
    """A pass with the rows of all boundary nodes that it needs; targets: bool [I], those that the plan was made for."""
    return sampled_pass(context, stages, plan, features, targets, None, 1.0)


def sampled_pass(
    context: Context,
    stages: Sequence[Stage],
    plan: ExchangePlan,
    features: Sources,
    targets: Tensor,
    sample: Sample | None,
    scale: float,
) -> Pass:
    """The same with a sample of the boundary rows, multiplied by `scale`; of the features that is done already."""
    steps = [first_step(context, stages[0], plan.required_layers, features)]
    for layer, stage in enumerate(stages[1:], start=1):
        own_scale = context.source_scale(stage.conv)
        like = context.features.new_zeros(0, device=context.device)
        swap = make_swap(plan, layer, own_scale, like, sample)
        steps.append(
            later_step(context, context.edges, plan.required_layers, layer, swap.received, swap=swap, scale=scale)
        )
    return make_pass(steps, plan.required_layers, targets)


def make_pass(steps: Sequence[Step], required_layers: Tensor, targets: Tensor) -> Pass:
    """need: uint8 [I], the last layer computes the nodes with need >= L; targets: bool [I]."""
    place = (required_layers >= len(steps)).cumsum(0) - 1
    nodes = targets.nonzero()[:, 0]
    return Pass(steps, nodes, place[nodes])


def first_step(context: Context, stage: Stage, required_layers: Tensor, features: Sources) -> Step:
    """The first layer, for the nodes with need > 0."""
    nodes = (required_layers > 0).nonzero()[:, 0]
    fixed = lazy.layer_inputs(context, stage, nodes, context.features, features) if len(nodes) else None
    return Step(len(nodes), fixed)


def later_step(
    context: Context,
    edges: InEdges,
    required_layers: Tensor,
    layer: int,
    received: Vectors,
    *,
    swap: Swap | None = None,
    scale: float = 1.0,
) -> Step:
    """A layer after the first, for the nodes with need > layer; edges of halo nodes that are not received are left out.

    Where there is no swap, what `received` describes are the last rows that the layer before makes.
    """
    nodes = (required_layers > layer).nonzero()[:, 0]
    width = received.values.shape[1]
    block = edges.block(nodes, Sources(received, Vectors.none(len(received.halo), width, received.values.dtype)))
    before = required_layers >= layer
    place = torch.cat((before.cumsum(0) - 1, int(before.sum()) + torch.arange(len(received.values))))
    return Step(len(nodes), None, block.to(context.device), place[block.nodes].to(context.device), swap, scale)


def nodes_within(context: Context, targets: Tensor) -> tuple[Tensor, Tensor]:
    """What a pass needs if it stays within the part: uint8 [I] as in ExchangePlan.need; halo nodes that the second
    layer would reach, bool [H]."""
    num_layers = context.settings.model.num_layers
    required_layers = targets.to(torch.uint8) * num_layers
    halo = torch.zeros(context.partition.num_halo, dtype=torch.bool)
    for layer in range(num_layers - 1, 0, -1):
        halo = reach_here(context.partition, required_layers, layer)
    return required_layers, halo


def no_vectors(context: Context) -> Vectors:
    """Of halo nodes nothing."""
    return Vectors.none(context.partition.num_halo, context.features.shape[1], context.features.dtype)


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


def train_within(context: Context, stages: Sequence[Stage], make: Callable[[Tensor], Pass]) -> lazy.TrainResult:
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
    return lazy.TrainResult(rounds, logits)


def fixed_matrices(made: Pass) -> Sequence[Matrix]:
    fixed = made.steps[0].fixed
    return () if fixed is None else fixed.matrices


# --- before and after ------------------------------------------------------------------------------------------------


def exchange_rows(
    context: Context, plan: ExchangePlan, layer: int, rows: Tensor, scale: Tensor | None, kind: str = "features"
) -> Sources:
    """Send rows [I, F] once, before training, as the lazy trainer sends a layer's; never after weights."""
    precision = lazy.PRECISIONS[context.settings.exchange.precision]
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
                stages[0].embed(lazy.layer_inputs(context, stages[0], nodes, context.features, features)).cpu()
            )
    for layer, stage in enumerate(stages[1:], start=1):
        rows = lazy.run_layer(context, layer, stage, rows, lambda layer_task: None)
    return rows


# --- settings that cannot be had -------------------------------------------------------------------------------------


def refuse_local_steps(settings: TrainSettings) -> None:
    if settings.gradient.mode != "sync":
        raise InputError(
            f"gradient={settings.gradient.mode}: trainer={settings.trainer.name} sends gradients of rows between "
            "workers, which are those of one loss only while all have the same parameters; set gradient=sync"
        )


def refuse_rounding(settings: TrainSettings) -> None:
    if settings.exchange.precision != "fp32":
        raise InputError(
            f"exchange.precision={settings.exchange.precision}: trainer={settings.trainer.name} sends rows and their "
            "gradients as they are; leave it out"
        )


def refuse_models(settings: TrainSettings, known: Sequence[str], reason: str) -> None:
    """known: names of models, sage-pool apart from sage."""
    model = settings.model
    name = "sage-pool" if model.name == "sage" and model.aggregator == "pool" else model.name
    if name not in known:
        raise InputError(
            f"model={name}: trainer={settings.trainer.name} {reason}; choose one of {', '.join(known)}, "
            "or another trainer"
        )
