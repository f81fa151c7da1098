"""What a network of several stages answers: which of their heads, and how far that is smoothed along the edges.

The logits of the chosen stages are averaged (as log-probabilities would be, but for a number per node that all classes
have in common, and which no step below takes out of these), then propagated as by
APPNP (Gasteiger, Bojchevski and Günnemann, "Predict then Propagate", ICLR 2019, their eqs. 5 and 6 written out):

    V_0 = mean over the stages k of z_k        V_i = A V_(i-1)
    Z = sum over i < K of  alpha (1 - alpha)^i V_i  +  (1 - alpha)^K V_K

A is the normalised adjacency of GCN with self loops; K is smoothing.steps, and alpha = 1 leaves V_0. With
smoothing.reach=computed only nodes in a split are sources, so that the answers do not depend on which others a run
computes; where the graph has no split, all. With reach=hops the network's plan is one of L + K layers: V_0 is computed
at all nodes within K hops of a split, V_i at those within K - i, and Z is exact at the nodes in a split.

N nodes, I inner nodes, H halo nodes, C classes, M candidates, T temperatures.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from partitioning.directory.partition import Partition
from retexo.comm.collectives import ReduceInput
from retexo.comm.traffic_meter import SETUP, WHOLE_RUN, MessageTag
from retexo.exchange.exchange_plan import (
    ExchangePlan,
    make_plan,
    make_plan_from_required_layers,
    request_halo_nodes,
)
from retexo.models.conv.gcn import GCN
from retexo.models.matrix import to_dense
from retexo.models.stage import Answer, Stage
from retexo.models.streaming_aggregate import AggregateAccumulator
from retexo.trainers.context import Context, RunContext
from retexo.trainers.end_to_end import exchange_rows, nodes_in_a_split
from retexo.trainers.layerwise import LAYERS, each_layer

TEMPERATURES = 2.0 ** torch.arange(-4, 4.5, 0.5)
"""[T] that logits are divided by, so that a loss does not depend on how sure they are."""


@dataclass(frozen=True, eq=False)
class InferenceResult:
    """A trained network's output for this worker's nodes; NaN at nodes that no worker needs."""

    logits: Tensor
    """[I, C]"""
    embeddings: Tensor
    """[I, D] the input of the last layer; with one layer the features."""
    of_stages: Sequence[Tensor] = ()
    """[I, C] each, of a network for links."""


def infer(context: Context, stages: list[Stage], answer: Answer) -> InferenceResult:
    """Run trained stages over the nodes that the plan requires.

    With the plan of a training run, and as many threads, the logits are those that it ended with, bit for bit: the same
    rows and sums are sent, and the same nodes go through a layer together. With a plan of one wave they differ by
    rounding.
    """
    rows, logits = context.features, []
    for output in each_layer(context, stages, LAYERS):
        inputs, rows = rows, output.rows
        logits.append(output.logits)
    return InferenceResult(
        apply_answer(logits, answer, partial(propagate, context)), inputs, logits
    )


Powers = Callable[[Tensor, int], Iterator[Tensor]]
"""From V_0 and K to V_0 ... V_K, by the edges of a graph of some kind."""


def choose_answer(
    context: RunContext, logits: Sequence[Tensor], powers_of: Powers
) -> tuple[Answer, Tensor]:
    """By validation, the stages first, then alpha: the answer and its logits, [I, C].

    logits: [I, C] of each stage, or of the last ones.
    """
    smoothing, num_layers = context.settings.smoothing, context.settings.model.num_layers
    stages = range(num_layers - len(logits), num_layers)
    candidates = [Answer((num_layers - 1,))]
    if context.settings.output_heads == "validation" and context.graph_info.num_val:
        candidates = [Answer((stage,)) for stage in stages]
        candidates += [Answer(tuple(range(first, num_layers))) for first in stages[:-1]]
    answer, val = candidates[0], context.partition.val_mask
    if len(candidates) > 1:
        of_val = [each[val] for each in logits]
        answer = candidates[
            _best(context, (averaged(of_val, each, num_layers) for each in candidates))
        ]
    start = averaged(logits, answer, num_layers)
    if not smoothing.steps or not context.graph_info.num_val:
        return answer, start
    powers = list(powers_of(start, smoothing.steps))
    of_val = [each[val] for each in powers]
    best = _best(context, (weighted(of_val, alpha) for alpha in smoothing.alphas))
    answer = replace(
        answer, alpha=smoothing.alphas[best], steps=smoothing.steps, reach=smoothing.reach
    )
    return answer, weighted(powers, answer.alpha)


def apply_answer(logits: Sequence[Tensor], answer: Answer, powers_of: Powers) -> Tensor:
    """The logits [I, C] of an answer that was chosen before."""
    start = averaged(logits, answer, len(logits))
    return (
        start if answer.alpha == 1 else weighted(list(powers_of(start, answer.steps)), answer.alpha)
    )


def averaged(logits: Sequence[Tensor], answer: Answer, num_layers: int) -> Tensor:
    """V_0, [I, C]; logits: [I, C], or of some nodes, of the last stages of `num_layers`."""
    chosen = [logits[stage - num_layers] for stage in answer.stages]
    return chosen[0] if len(chosen) == 1 else torch.stack(chosen).mean(dim=0)


def weighted(powers: Sequence[Tensor], alpha: float) -> Tensor:
    """Z of V_0 ... V_K, [I, C] each."""
    if alpha == 1:
        return powers[0]  # also where the later ones are NaN
    steps = len(powers) - 1
    total = powers[-1] * (1 - alpha) ** steps
    for step, power in enumerate(powers[:-1]):
        total += power * (alpha * (1 - alpha) ** step)
    return total


def propagate(context: Context, start: Tensor, steps: int) -> Iterator[Tensor]:
    """V_0 ... V_K, [I, C] each; NaN where V_0 is, and where no later one is made from it."""
    gcn = GCN(start.shape[1], start.shape[1], dropout=0.0)
    computed = context.computed
    reaches_hops = context.settings.smoothing.hops > 0
    sources = (
        computed
        if reaches_hops or not context.graph_info.num_in_split
        else nodes_in_a_split(context)
    )
    with context.phase("plan"):
        if reaches_hops:
            plan = _plan_of_hops(context)
        elif _has_all_edges(context):
            plan = context.plan.merge_phases()
        else:
            plan = _plan_of_computed(context, sources, computed)
    scale = context.source_scale(gcn)
    rows = start
    yield rows
    for step in range(steps):
        layer = max(0, plan.num_layers - steps + step)  # of a plan for one layer 0
        required = plan.required_layers > layer
        nodes, alone = required.nonzero()[:, 0], (required & ~sources).nonzero()[:, 0]
        own_scale = gcn.self_loop_scale(
            context.edges.in_degree[alone], context.edges.out_degree[alone]
        )[:, None]
        sent = (
            rows if sources.all() else torch.where(sources[:, None], rows, torch.zeros_like(rows))
        )
        received = exchange_rows(context, plan, layer, sent, scale, "predictions", WHOLE_RUN)
        with context.phase("aggregate"):
            accumulator = AggregateAccumulator(
                gcn, context.edges, nodes, sent, None, torch.device("cpu")
            )
            accumulator.add(received)
            after = torch.full_like(rows, torch.nan)
            after[nodes] = to_dense(accumulator.inputs().matrices[0])
            after[alone] += own_scale * rows[alone]
        rows = after
        yield rows


def _has_all_edges(context: Context) -> bool:
    """Whether the network's plan has every edge of the graph, and sums: so does that of each hop then."""
    return (
        context.plan_options.all_nodes
        and context.plan_options.use != "nothing"
        and context.plan.partial_sums
    )


def _plan_of_hops(context: Context) -> ExchangePlan:
    """The network's plan goes on for K layers; where it has rows only, one for these that has sums."""
    plan, first = context.plan, context.settings.model.num_layers
    if plan.partial_sums or plan.all_halo_rows:
        return plan.merge_phases()
    required_layers = plan.required_layers.clamp(first, plan.num_layers) - first
    options = replace(
        context.plan_options.for_targets(partial_sums=True), num_layers=plan.num_layers - first
    )
    return make_plan_from_required_layers(context.partition, options, required_layers, context.comm)


def _plan_of_computed(context: Context, sources: Tensor, computed: Tensor) -> ExchangePlan:
    options = replace(context.plan_options.for_targets(partial_sums=True), num_layers=1)
    return make_plan(_with_sources(context, sources, computed), options, context.comm, computed)


def _with_sources(context: Context, sources: Tensor, computed: Tensor) -> Partition:
    """The partition with the edges between sources, bool [I], and computed nodes alone; owners say which those are."""
    partition, comm = context.partition, context.comm
    if context.plan_options.all_nodes:
        return partition
    used = computed[partition.dst]
    halo = torch.zeros(partition.num_halo, dtype=torch.bool)
    halo[partition.src[used & (partition.src >= partition.num_inner)] - partition.num_inner] = True
    named = request_halo_nodes(partition, halo, context.plan_options.part_sizes, comm)
    counts = torch.bincount(partition.halo_owner[halo], minlength=comm.world_size).tolist()
    replies = [torch.from_numpy(np.packbits(sources[nodes].numpy())) for nodes in named]
    received = comm.all_to_all(replies, [(count + 7) // 8 for count in counts], SETUP)
    bits = [
        np.unpackbits(reply.numpy(), count=count)
        for reply, count in zip(received, counts, strict=True)
    ]
    halo[halo.clone()] = torch.from_numpy(np.concatenate(bits)).bool()
    kept = used & torch.cat((sources, halo))[partition.src]
    return partition.of_edges(kept)


def _best(context: RunContext, candidates: Iterator[Tensor]) -> int:
    """Of the candidates, [n, C] of validation nodes, within half a standard error of the best metric the one with the
    least loss."""
    labels, task, size = (
        context.labels.cpu()[context.partition.val_mask],
        context.task,
        context.graph_info.num_val,
    )
    counts, losses = [], []
    for answers in candidates:
        counts.append(task.totals(answers, labels))
        losses.append(
            torch.stack([task.loss_sum(answers / each, labels).double() for each in TEMPERATURES])
        )
    count, loss = torch.stack(counts), torch.stack(losses)  # [M, 3], [M, T]
    context.comm.all_reduce(
        [ReduceInput(count.view(-1)), ReduceInput(loss.view(-1))], MessageTag("metrics")
    )
    metric = np.array([task.metric(each) for each in count])
    best = metric.max()
    close = metric >= best - 0.5 * np.sqrt(best * (1 - best) / size)
    return int(np.where(close, loss.min(dim=1).values.numpy(), np.inf).argmin())
