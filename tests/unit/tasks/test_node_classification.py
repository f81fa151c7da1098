"""Counts, ratios and losses of node classification, against torchmetrics."""

import math

import pytest
import torch
from torchmetrics.functional import classification

from retexo.tasks.metrics import compute_score, micro_f1
from retexo.tasks.node_classification import NodeClassification


def drawn(
    num_nodes: int, num_classes: int, multi: bool, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_nodes, num_classes, generator=generator)
    if multi:
        return logits, (torch.rand(num_nodes, num_classes, generator=generator) < 0.3).float()
    return logits, torch.randint(num_classes, (num_nodes,), generator=generator)


def counted(task: NodeClassification, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return task.count_by_class(task.predict(logits), labels)


@pytest.mark.parametrize("num_nodes", [1, 5, 200])
@pytest.mark.parametrize("num_classes", [2, 7])
def test_multiclass_equals_torchmetrics(num_nodes: int, num_classes: int) -> None:
    logits, labels = drawn(num_nodes, num_classes, False, num_nodes)
    found = compute_score(
        counted(NodeClassification(num_classes, False), logits, labels), num_nodes, multilabel=False
    )
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
    found = compute_score(
        counted(NodeClassification(5, True), logits, labels), num_nodes, multilabel=True
    )
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
    assert compute_score(counts, 2, multilabel=False).macro_f1 == 1.0


@pytest.mark.parametrize("multi", [False, True])
def test_nothing_to_count(multi: bool) -> None:
    task = NodeClassification(3, multi)
    counts = counted(task, *drawn(0, 3, multi, 0))
    assert counts.tolist() == [[0, 0, 0]] * 3
    found = compute_score(counts, 0, multilabel=multi)
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
