"""Scores of the whole graph, from every worker's logits of its own nodes."""

from dataclasses import replace

import torch

from retexo.comm.collectives import Summand
from retexo.comm.traffic import Purpose
from retexo.trainers.context import Context
from retexo.training.task import Score, ogb_correct, score


def final_scores(context: Context, logits: torch.Tensor) -> dict[str, Score]:
    """The scores that a run reports: test accuracy is the OGB evaluator's for its own graphs; logits [I, C]."""
    scores = evaluate(context, logits)
    if context.graph_info.ogb_name is not None:
        scores["test"] = _ogb_test_score(context, logits, scores["test"], context.graph_info.ogb_name)
    return scores


def evaluate(context: Context, logits: torch.Tensor) -> dict[str, Score]:
    """Scores of the whole graph's training, validation and test nodes from this worker's logits [I, C]."""
    partition = context.partition
    masks = {"train": partition.train_mask, "val": partition.val_mask, "test": partition.test_mask}
    counts = torch.stack([context.task.counts(logits[mask], partition.labels[mask]) for mask in masks.values()])
    context.comm.all_reduce([Summand(counts.view(-1))], Purpose("metrics"))
    sizes = (context.graph_info.num_train, context.graph_info.num_val, context.graph_info.num_test)
    multilabel = context.task.multilabel
    return {name: score(count, size, multilabel) for name, count, size in zip(masks, counts, sizes, strict=True)}


def _ogb_test_score(context: Context, logits: torch.Tensor, counted: Score, name: str) -> Score:
    """The test score with the accuracy of the Open Graph Benchmark's evaluator."""
    mask = context.partition.test_mask
    correct = torch.tensor([ogb_correct(name, logits[mask], context.partition.labels[mask])])
    context.comm.all_reduce([Summand(correct)], Purpose("metrics"))
    return replace(counted, accuracy=int(correct) / max(1, context.graph_info.num_test))
