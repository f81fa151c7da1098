"""A pass of end-to-end training: the features of some nodes through all layers.

The first layer's input is fixed. The input of each later layer are the rows that the layer before it has just computed,
here and, by an exchange, on other workers. I inner nodes, H halo nodes; layer l of L computes n_l nodes; C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from retexo.comm.collectives import Communicator
from retexo.comm.traffic_meter import MessageTag
from retexo.exchange.differentiable_exchange import BoundarySample, HaloExchange, make_halo_exchange
from retexo.exchange.exchange_plan import ExchangePlan, mark_required_sources
from retexo.models.block import Block, HaloRows, InEdges, Sources
from retexo.models.convolution import Inputs
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import Matrix
from retexo.models.stage import Stage
from retexo.trainers import layerwise
from retexo.trainers.context import Context
from retexo.trainers.layerwise import LayerInput


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
    swap: HaloExchange | None = None
    """None where nothing is sent."""
    scale: float = 1.0
    """What received vectors are multiplied with."""


class AnyPass(Protocol):
    """A pass over a graph of whatever kind."""

    @property
    def targets(self) -> Tensor: ...

    @property
    def first_matrices(self) -> Sequence[Matrix]:
        """What the first layer's first weights are multiplied with."""

    def run(
        self, stages: Sequence[Stage], comm: Communicator, kind: str
    ) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, eq=False)
class Pass:
    """From the features to the logits of some nodes, `targets`."""

    steps: Sequence[Step]
    targets: Tensor
    """int64 [n] inner nodes."""
    select: Tensor
    """int64 [n] their rows in the output of the last step."""

    @property
    def first_matrices(self) -> Sequence[Matrix]:
        fixed = self.steps[0].fixed
        return () if fixed is None else fixed.matrices

    def run(self, stages: Sequence[Stage], comm: Communicator, kind: str) -> tuple[Tensor, Tensor]:
        """Logits [n, C], and the zero of the last exchange; rows and their gradients count as traffic of `kind`."""
        like = next(stages[0].parameters())
        rows, before = (
            like.new_zeros(0, 0),
            torch.zeros((), dtype=like.dtype, device=like.device, requires_grad=True),
        )
        for layer, (step, stage) in enumerate(zip(self.steps, stages, strict=True)):
            if step.swap is not None:
                received, before = step.swap.run(rows, before, comm, MessageTag(kind, layer))
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
        inputs = stage.conv.prepare(step.block, table[step.index], NO_PROJECTED_ROWS)
    return stage.embed(inputs)


def pass_with_exchange(
    context: Context,
    stages: Sequence[Stage],
    plan: ExchangePlan,
    features: Sources,
    targets: Tensor,
    sample: BoundarySample | None = None,
    scale: float = 1.0,
) -> Pass:
    """A pass with the boundary rows that it needs; targets: bool [I], those that the plan was made for.

    With a sample only these rows are exchanged, multiplied by `scale`; `features` are sampled and scaled already.
    """
    steps = [first_step(context, stages[0], plan.required_layers, features)]
    for layer, stage in enumerate(stages[1:], start=1):
        own_scale = context.source_scale(stage.conv)
        like = context.features.new_zeros(0, device=context.device)
        swap = make_halo_exchange(plan, layer, own_scale, like, sample)
        steps.append(
            later_step(
                context,
                context.edges,
                plan.required_layers,
                layer,
                swap.received,
                swap=swap,
                scale=scale,
            )
        )
    return make_pass(steps, plan.required_layers, targets)


def make_pass(steps: Sequence[Step], required_layers: Tensor, targets: Tensor) -> Pass:
    """required_layers: uint8 [I], the last layer computes the nodes where it is L; targets: bool [I]."""
    place = (required_layers >= len(steps)).cumsum(0) - 1
    nodes = targets.nonzero()[:, 0]
    return Pass(steps, nodes, place[nodes])


def first_step(context: Context, stage: Stage, required_layers: Tensor, features: Sources) -> Step:
    """The first layer, for the nodes with required_layers > 0."""
    nodes = (required_layers > 0).nonzero()[:, 0]
    given = LayerInput(context.features)
    return Step(
        len(nodes),
        layerwise.layer_inputs(context, stage, nodes, given, features) if len(nodes) else None,
    )


def later_step(
    context: Context,
    edges: InEdges,
    required_layers: Tensor,
    layer: int,
    received: HaloRows,
    *,
    swap: HaloExchange | None = None,
    scale: float = 1.0,
) -> Step:
    """A layer after the first, for the nodes with required_layers > layer, without edges of halo nodes not received.

    Without a swap, `received` describes the last rows that the layer before computes.
    """
    nodes = (required_layers > layer).nonzero()[:, 0]
    width = received.values.shape[1]
    block = edges.cut_block(
        nodes, Sources(received, HaloRows.empty(len(received.halo), width, received.values.dtype))
    )
    before = required_layers >= layer
    place = torch.cat(
        (before.cumsum(0) - 1, int(before.sum()) + torch.arange(len(received.values)))
    )
    return Step(
        len(nodes),
        None,
        block.to(context.device),
        place[block.nodes].to(context.device),
        swap,
        scale,
    )


def nodes_within_partition(context: Context, targets: Tensor) -> tuple[Tensor, Tensor]:
    """For a pass that sends nothing: required_layers, uint8 [I]; halo nodes that the second layer reads, bool [H]."""
    num_layers = context.settings.model.num_layers
    required_layers = targets.to(torch.uint8) * num_layers
    halo = torch.zeros(context.partition.num_halo, dtype=torch.bool)
    for layer in range(num_layers - 1, 0, -1):
        halo = mark_required_sources(context.partition, required_layers, layer)
    return required_layers, halo


def no_vectors(context: Context) -> HaloRows:
    """No vectors of any halo node."""
    return HaloRows.empty(
        context.partition.num_halo, context.features.shape[1], context.features.dtype
    )
