"""Whether label propagation goes on after its first step."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.tasks.node_classification import NodeClassification
from retexo.tasks.output_heads import first_step_helps


@pytest.mark.parametrize(
    ("num_nodes", "num_wrong", "left", "helps"),
    [
        (40_000, 2, 0, False),  # a gain of .00005
        (40_000, 400, 0, True),  # a gain of .01
        (100, 10, 10, True),  # no gain, but less loss, and few nodes to tell by
        (100, 0, 10, False),  # a loss
    ],
)
def test_all_predictions_are_sent_for_a_gain_that_may_matter(
    num_nodes: int, num_wrong: int, left: int, helps: bool
) -> None:
    """num_wrong, left: nodes whose class is wrong before and after the first step."""

    def logits(wrong: int, sure: float) -> torch.Tensor:
        made = torch.tensor([[sure, 0.0]]).repeat(num_nodes, 1)
        made[:wrong] = torch.tensor([0.0, 1.0])
        return made

    def work(comm: Communicator) -> bool:
        context: Any = SimpleNamespace(
            settings=SimpleNamespace(smoothing=SimpleNamespace(alphas=(1.0, 0.1))),
            partition=SimpleNamespace(val_mask=torch.ones(num_nodes, dtype=torch.bool)),
            labels=torch.zeros(num_nodes, dtype=torch.int64),
            graph_info=SimpleNamespace(num_val=num_nodes),
            task=NodeClassification(2, False),
            comm=comm,
        )
        return first_step_helps(context, [logits(num_wrong, 2.0), logits(left, 4.0)])

    assert run_threads(1, work) == [helps]
