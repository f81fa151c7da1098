"""The classes of a graph beside those of the model that scores it."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from retexo.worker.compatibility import renumber_classes


@dataclass
class Nodes:
    labels: Tensor
    label_kind: str = "multiclass"
    train_mask: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.bool))
    val_mask: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.bool))
    test_mask: Tensor = field(default_factory=lambda: torch.tensor([True, True, False]))


@pytest.mark.parametrize(
    ("here", "there", "labels", "scored"),
    [
        ([1, 2], [], [1, 2, -1], [True, True, False]),
        ([], [1, 2], [-1, 0, -1], [False, True, False]),
        ([], ["no", "yes"], [0, 1, -1], [True, True, False]),
    ],
)
def test_classes_without_names_are_those_of_their_numbers(here, there, labels, scored):
    """A table without class 0 numbers its classes 1 and 2 otherwise than one that has it."""
    directory = SimpleNamespace(class_names=here)
    trained = SimpleNamespace(
        class_names=there, architecture=SimpleNamespace(num_classes=len(there) or 3)
    )
    found = renumber_classes(Nodes(torch.tensor([0, 1, -1])), directory, trained)
    assert found.labels.tolist() == labels
    assert found.test_mask.tolist() == scored
