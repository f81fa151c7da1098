"""Counts and metrics compared with torchmetrics, and the digits of transmitted counts."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional import classification

from retexo.rounds.round_message import counts_to_digits, digits_to_counts
from retexo.tasks.task import NodeClassification, micro_f1, score


def drawn(
    num_nodes: int, num_classes: int, multi: bool, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_nodes, num_classes, generator=generator)
    if multi:
        return logits, (torch.rand(num_nodes, num_classes, generator=generator) < 0.3).float()
    return logits, torch.randint(num_classes, (num_nodes,), generator=generator)


def counted(task: NodeClassification, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return task.counts(task.predictions(logits), labels)


@pytest.mark.parametrize("num_nodes", [1, 5, 200])
@pytest.mark.parametrize("num_classes", [2, 7])
def test_multiclass_equals_torchmetrics(num_nodes: int, num_classes: int) -> None:
    logits, labels = drawn(num_nodes, num_classes, False, num_nodes)
    found = score(counted(NodeClassification(num_classes, False), logits, labels), num_nodes, False)
    kind = {"num_classes": num_classes}
    assert found.accuracy == pytest.approx(
        float(classification.multiclass_accuracy(logits, labels, average="micro", **kind))
    )
    assert found.micro_f1 == pytest.approx(
        float(classification.multiclass_f1_score(logits, labels, average="micro", **kind))
    )
    assert found.macro_f1 == pytest.approx(
        float(classification.multiclass_f1_score(logits, labels, average="macro", **kind))
    )


@pytest.mark.parametrize("num_nodes", [2, 200])
def test_multilabel_equals_torchmetrics(num_nodes: int) -> None:
    logits, labels = drawn(num_nodes, 5, True, 3)
    found = score(counted(NodeClassification(5, True), logits, labels), num_nodes, True)
    args = (torch.sigmoid(logits), labels.int(), 5)
    assert found.accuracy == pytest.approx(
        float(classification.multilabel_accuracy(*args, average="micro"))
    )
    assert found.micro_f1 == pytest.approx(
        float(classification.multilabel_f1_score(*args, average="micro"))
    )
    occurs = ((logits > 0) | (labels > 0)).any(dim=0)
    per_class = classification.multilabel_f1_score(*args, average="none")
    assert found.macro_f1 == pytest.approx(float(per_class[occurs].mean()))


def test_a_class_that_occurs_nowhere_is_left_out_of_macro_f1() -> None:
    counts = counted(NodeClassification(3, False), torch.eye(3)[[0, 1]], torch.tensor([0, 1]))
    assert score(counts, 2, False).macro_f1 == 1.0


@pytest.mark.parametrize("multi", [False, True])
def test_nothing_to_count(multi: bool) -> None:
    task = NodeClassification(3, multi)
    counts = counted(task, *drawn(0, 3, multi, 0))
    assert counts.tolist() == [[0, 0, 0]] * 3
    found = score(counts, 0, multi)
    assert math.isnan(found.accuracy)
    assert math.isnan(found.micro_f1)
    assert math.isnan(found.macro_f1)
    assert micro_f1(counts.sum(dim=1)) == 0.0


def test_loss_sums() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    assert float(
        NodeClassification(2, False).loss_sum(logits, torch.tensor([0, 1]))
    ) == pytest.approx(2 * math.log(2))
    assert float(NodeClassification(2, True).loss_sum(logits, torch.ones(2, 2))) == pytest.approx(
        2 * math.log(2)
    )


COUNTS = st.lists(st.integers(0, 2**24 - 1), min_size=3, max_size=3)


@given(st.lists(COUNTS, min_size=1, max_size=12), st.sampled_from([torch.float32, torch.float64]))
def test_digits_add_up_exactly(workers: list[list[int]], dtype: torch.dtype) -> None:
    total = torch.tensor(
        [counts_to_digits(torch.tensor(counts)) for counts in workers], dtype=dtype
    ).sum(dim=0)
    assert digits_to_counts(total.tolist()).tolist() == [
        sum(counts) for counts in zip(*workers, strict=True)
    ]


def test_digits_add_up_over_as_many_workers_as_promised() -> None:
    counts = torch.tensor([2**24 - 1, 4095])
    total = torch.tensor(counts_to_digits(counts)).float() * 4096
    assert float(total.max()) < 2**24  # so that each partial sum is exact, too
    assert digits_to_counts(total.tolist()).tolist() == [4096 * (2**24 - 1), 4096 * 4095]
