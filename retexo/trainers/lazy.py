"""Lazy message passing (Retexo, arXiv 2302.13053, algorithm 1): exchange, train, embed, next layer.

The boundary rows of a layer's input cross the network once: those that the rounds need before the
layer trains, the others when it is frozen. It trains alone, to convergence; its embeddings of all
nodes are the input of the next layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from partitioning.graph.graph_data import PLAIN_TYPE
from retexo.models.block import Sources
from retexo.models.network import TypedLayer
from retexo.models.stage import OutputHeads, Stage
from retexo.rounds.best_round import EarlyStopping
from retexo.rounds.objective import LayerObjective
from retexo.rounds.training_loop import RoundsResult, run_rounds
from retexo.tasks.output_heads import apply_heads
from retexo.trainers import end_to_end, network_pass
from retexo.trainers.context import Context, TrainResult, return_freed_memory
from retexo.trainers.label_propagation import propagate
from retexo.trainers.layerwise import AnyLayerInput, Fit, LayerInput, run_layer
from retexo.trainers.look_ahead import LookAheadInput
from retexo.trainers.relational_layers import RelationalInput
from retexo.trainers.trainer import Trainer

LAYER_PATIENCE = 2
"""num_layers=auto: number of layers in a row without better validation that ends the growth."""
LAYERS_UNGUIDED = 2
"""num_layers=auto: number of layers without validation nodes."""


class LazyTrainer(Trainer):
    """Training layer by layer; supports all settings of plain graphs."""

    USE = "train"
    BY_LAYER = RESUMES = HETEROGENEOUS = LINKS = INDUCTIVE = EDGE_FEATURES = True
    HETEROGENEOUS_ONLY: ClassVar[dict[str, Any]] = {
        "model.self_weight": True,
        "model.input_skip": True,
        "model.residual": False,
        "model.lookahead": 0,
    }

    def train(self, context: Context, stages: list[Stage]) -> TrainResult:
        """Train the stages one after the other."""
        return train(context, stages)


def train(context: Context, stages: list[Stage]) -> TrainResult:
    """Train the stages one after the other.

    Each ends as run_rounds leaves it, which may raise, and is saved. Frees the context's features.

    With num_layers=auto the last of them are left out, where layers have not improved validation;
    without validation nodes two are trained.
    """
    grows = context.settings.model.grows
    results: list[RoundsResult] = []
    logits: list[Tensor] = []
    of_layers = EarlyStopping(LAYER_PATIENCE, context.settings.stopping.min_delta)

    def fit(objective: LayerObjective) -> None:
        with context.phase("rounds"):
            results.append(
                run_rounds(objective, context.settings, context.comm, context.log, context.recovery)
            )

    # Without enumerate, which would keep the output before.
    for output in run_layers(context, stages, fit, heads=context.settings.classifiers):
        context.release_features()  # later layers read them from the first layer's input
        depth = len(results)
        context.save_layer(depth - 1, stages[depth - 1])
        if output.logits is not None:
            logits.append(output.logits)
        del output
        return_freed_memory()
        of_layers.record(depth, results[-1].metric, results[-1].loss)
        unguided = depth == LAYERS_UNGUIDED and not context.graph_info.num_val
        if grows and (unguided or of_layers.out_of_patience(depth)):
            break
    val = [result.metric for result in results] if context.graph_info.num_val else []
    return TrainResult([result.num_rounds for result in results], logits, val_by_layer=val)


def run_layers(
    context: Context,
    stages: Sequence[Stage],
    fit: Fit = lambda objective: None,
    *,
    heads: str = "validation",
) -> Iterator[Any]:
    """Run the stages one after the other, each trained by `fit`, and yield their outputs.

    All workers call it and take equally many outputs: a layer exchanges rows when it is asked for.

    heads="last" computes the logits of the last one only.
    """
    layer_input = first_input(context, stages)
    for layer, stage in enumerate(stages):
        output = run_layer(
            context, layer, stage, layer_input, fit, logits=heads != "last" or stage.is_last
        )
        layer_input = layer_input.next_layer(output)
        yield output
        del output  # its logits may be freed while the next one is computed


def first_input(context: Context, stages: Sequence[Stage]) -> AnyLayerInput:
    """Return the input of the first layer."""
    if not context.schema.is_plain:
        return RelationalInput.first(context, stages)
    if context.settings.model.lookahead:
        return LookAheadInput.first(context, stages)
    return LayerInput.first(context, stages)


@dataclass(frozen=True, eq=False)
class InferenceResult:
    """A trained network's output at this worker's nodes; NaN at nodes that no worker needs."""

    logits: Tensor
    """[I, C] of the chosen heads, after label propagation."""
    embeddings: Tensor
    """[I, D] input of the last layer, or of its head with several types; of one layer the features.
    """
    by_head: Sequence[Tensor] = ()
    """[I, C] of each head, but for typed networks that were trained end to end."""
    rows: Sequence[Tensor] = ()
    """[I, F] the input of each layer of a plain graph, where these are kept; with look-ahead
    [I + H, F]."""


def infer(
    context: Context, stages: list[Stage], heads: OutputHeads, *, keeps_rows: bool = False
) -> InferenceResult:
    """Run trained stages over the nodes that the plan requires; all workers call it.

    With the plan of a training run and as many threads, the logits are those of the run, bit for
    bit: the same rows and sums are sent, and the same nodes go through a layer together. With a
    plan of one phase they differ by rounding.

    keeps_rows: see InferenceResult.
    """
    smooth = partial(propagate, context)
    if isinstance(stages[0], TypedLayer):
        received = end_to_end.exchange_features(context, stages)
        logits, read = network_pass.infer_by_type(context, stages, received)
        return InferenceResult(apply_heads([logits], replace(heads, stages=(0,)), smooth), read)
    rows, by_head = [context.features], []
    for output in run_layers(context, stages):
        if not keeps_rows:
            del rows[:-1]
        rows.append(output.rows)
        by_head.append(output.logits)
    # With look-ahead, the rows of halo nodes follow.
    read = rows[-2][: len(context.labels)] if context.schema.is_plain else output.hidden
    kept = rows[:-1]
    logits = apply_heads(by_head, heads, smooth)
    return InferenceResult(logits, read, by_head, kept if keeps_rows else ())


@torch.no_grad()
def compute_logits(
    context: Context, stages: Sequence[Stage], received: Mapping[str, Sources]
) -> Tensor:
    """Return the logits [I, C] of the nodes in a split, as app=evaluate computes them.

    They are the last head's, not smoothed or calibrated; NaN at other nodes. All workers call it.

    received: by type the features, which are not sent again.
    """
    if isinstance(stages[0], TypedLayer):
        return network_pass.infer_by_type(context, stages, received)[0]
    context = replace(context, known={0: received[PLAIN_TYPE]})
    *_, output = run_layers(context, stages, heads="last")
    logits: Tensor = output.logits
    return logits
