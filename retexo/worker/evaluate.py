"""Scores of the whole graph, from every worker's logits of its own nodes."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

import torch
from torch import Tensor

from retexo.comm.collectives import ReduceInput
from retexo.comm.traffic_meter import MessageTag
from retexo.models.stage import Answer, Stage
from retexo.tasks.task import Score, ogb_correct, score
from retexo.trainers.context import Context
from retexo.trainers.label_propagation import propagate
from retexo.trainers.lazy import InferenceResult
from retexo.trainers.output_heads import choose_heads
from retexo.trainers.ranking import choose_links, link_scores

Scores = dict[str, dict[str, float]]
"""By set; of links no training scores."""


def chosen_scores(
    context: Context, stages: Sequence[Stage], logits: Sequence[Tensor]
) -> tuple[Answer, Scores]:
    """What a trained network answers, chosen by validation, and its scores; logits: [I, C] of the last stages."""
    if context.settings.task.links:
        answer = choose_links(context, stages, logits)
        return answer, link_scores(context, stages, logits, answer)
    answer, chosen = choose_heads(context, logits, partial(propagate, context))
    return answer, {name: asdict(each) for name, each in final_scores(context, chosen).items()}


def inferred_scores(
    context: Context,
    stages: Sequence[Stage],
    inferred: InferenceResult,
    answer: Answer,
    *,
    predict: bool,
) -> Scores:
    """Scores of a trained network's output; none of links that are predicted, for which more is sent."""
    if context.settings.task.links:
        return {} if predict else link_scores(context, stages, inferred.by_head, answer)
    return {name: asdict(each) for name, each in final_scores(context, inferred.logits).items()}


def final_scores(context: Context, logits: torch.Tensor) -> dict[str, Score]:
    """The scores that a run reports: test accuracy is the OGB evaluator's for its own graphs; logits [I, C]."""
    predicted, partition, info = (
        context.task.predictions(logits),
        context.partition,
        context.graph_info,
    )
    scores = evaluate(context, predicted)
    if info.ogb_name is not None:
        mask = partition.test_mask
        correct = torch.tensor(
            [ogb_correct(info.ogb_name, predicted[mask], partition.labels[mask])]
        )
        context.comm.all_reduce([ReduceInput(correct)], MessageTag("metrics"))
        scores["test"] = replace(scores["test"], accuracy=int(correct) / max(1, info.num_test))
    return scores


def evaluate(context: Context, predicted: torch.Tensor) -> dict[str, Score]:
    """Scores of the whole graph's training, validation and test nodes; predicted: [I] or [I, C], of this worker's."""
    partition = context.partition
    masks = {"train": partition.train_mask, "val": partition.val_mask, "test": partition.test_mask}
    counts = torch.stack(
        [context.task.counts(predicted[mask], partition.labels[mask]) for mask in masks.values()]
    )
    context.comm.all_reduce([ReduceInput(counts.view(-1))], MessageTag("metrics"))
    sizes = (context.graph_info.num_train, context.graph_info.num_val, context.graph_info.num_test)
    multilabel = context.task.multilabel
    return {
        name: score(count, size, multilabel)
        for name, count, size in zip(masks, counts, sizes, strict=True)
    }
