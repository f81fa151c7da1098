"""Scores of the whole graph, from every worker's logits of its own nodes."""

from dataclasses import replace

import torch

from retexo.comm.collectives import ReduceInput
from retexo.comm.traffic import MessageTag
from retexo.trainers.context import RunContext
from retexo.training.task import Score, ogb_correct, score


def final_scores(context: RunContext, logits: torch.Tensor) -> dict[str, Score]:
    """The scores that a run reports: test accuracy is the OGB evaluator's for its own graphs; logits [I, C]."""
    scores, info, mask = evaluate(context, logits), context.graph_info, context.partition.test_mask
    if info.ogb_name is not None:
        correct = torch.tensor([ogb_correct(info.ogb_name, logits[mask], context.partition.labels[mask])])
        context.comm.all_reduce([ReduceInput(correct)], MessageTag("metrics"))
        scores["test"] = replace(scores["test"], accuracy=int(correct) / max(1, info.num_test))
    return scores


def evaluate(context: RunContext, logits: torch.Tensor) -> dict[str, Score]:
    """Scores of the whole graph's training, validation and test nodes from this worker's logits [I, C]."""
    partition = context.partition
    masks = {"train": partition.train_mask, "val": partition.val_mask, "test": partition.test_mask}
    counts = torch.stack([context.task.counts(logits[mask], partition.labels[mask]) for mask in masks.values()])
    context.comm.all_reduce([ReduceInput(counts.view(-1))], MessageTag("metrics"))
    sizes = (context.graph_info.num_train, context.graph_info.num_val, context.graph_info.num_test)
    multilabel = context.task.multilabel
    return {name: score(count, size, multilabel) for name, count, size in zip(masks, counts, sizes, strict=True)}
