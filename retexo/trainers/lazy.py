"""Lazy message passing (Retexo, arXiv 2302.13053, algorithm 1): exchange, train, embed, next layer.

The boundary rows of a layer's input cross the network once, before the layer trains. It trains alone, to convergence;
then it is frozen, and what it makes of every inner node is the input of the next.

I inner nodes, H halo nodes of this worker, C classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from retexo.comm.traffic import Purpose
from retexo.exchange.transfer import exchange_rows
from retexo.rounds import Labelled, LayerTask, run_rounds
from retexo.stage import Stage
from retexo.trainers.context import Context


@dataclass(frozen=True, eq=False)
class Trained:
    """What a trainer returns."""

    rounds: list[int]
    """One a layer."""
    logits: Tensor
    """[I, C]"""


def train(context: Context, stages: list[Stage]) -> Trained:
    """Train the stages one after the other; each ends with the parameters of its best validation round."""
    rows = context.features
    rounds = []
    for layer, stage in enumerate(stages):
        with context.phase("exchange"):
            rows = _with_halo(context, rows, layer)
        with context.phase("aggregate"):
            layer_task = _layer_task(context, layer, stage, rows)
        with context.phase("rounds"):
            rounds.append(run_rounds(layer_task, context.settings, context.comm, context.log))
        with context.phase("embed"):
            rows = _embed(context, stage, rows)
        context.save_layer(layer, stage)
    return Trained(rounds, rows)


def _with_halo(context: Context, rows: Tensor, layer: int) -> Tensor:
    """[I, F] -> [I + H, F]"""
    purpose = Purpose("features" if layer == 0 else "embeddings", layer)
    return torch.cat((rows, exchange_rows(rows, context.plan, context.comm, purpose)))


def _layer_task(context: Context, layer: int, stage: Stage, rows: Tensor) -> LayerTask:
    return LayerTask(
        layer=layer,
        stage=stage,
        task=context.task,
        train=_labelled(context, stage, rows, context.partition.train_mask),
        val=_labelled(context, stage, rows, context.partition.val_mask),
        total_train=context.totals.train,
        total_val=context.totals.val,
    )


def _labelled(context: Context, stage: Stage, rows: Tensor, mask: Tensor) -> Labelled:
    """The nodes of a mask, with what the convolution gathers for them once."""
    nodes = mask.nonzero()[:, 0]
    labels = context.labels[nodes]
    if not len(nodes):
        return Labelled(None, labels)
    block = context.edges.block(nodes)
    return Labelled(stage.conv.gather(block.to(context.device), rows[block.nodes].to(context.device)), labels)


@torch.no_grad()
def _embed(context: Context, stage: Stage, rows: Tensor) -> Tensor:
    """[I + H, F] -> [I, D] in evaluation mode; of the last stage the logits."""
    num_inner = context.partition.num_inner
    if num_inner == 0:
        return torch.zeros(0, stage.output_dim, dtype=rows.dtype)
    stage.eval()
    block = context.edges.block(torch.arange(num_inner))
    inputs = stage.conv.gather(block.to(context.device), rows[block.nodes].to(context.device))
    return stage.embed(inputs).cpu()
