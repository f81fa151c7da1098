"""Flat parameters, optimisers and both update rules, by hand on one parameter vector."""

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import graph_info, train_settings

from retexo.rounds.parameters import FlatParameters
from retexo.rounds.schedule import Schedule
from retexo.rounds.update_rules import LocalOptimizer, build_optimizer, build_update_rule
from retexo.settings.communication_settings import GradientSettings
from retexo.settings.run_settings import OptimizerSettings

SGD = train_settings("optimizer._target_=torch.optim.SGD", "weight_decay=0").optimizer


class Line(torch.nn.Module):
    """A loss that can be differentiated by hand: sum over n of (w - x_n)^2 / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        self.b = torch.nn.Parameter(torch.tensor([[3.0]]))

    def loss(self, points: torch.Tensor) -> torch.Tensor:
        return ((self.w[0] - points) ** 2).sum() / 2 + 0 * self.w[1] + (self.b * 0).sum()


def on_worker(
    flat: FlatParameters, optimizer: Any, losses: Any, num_train: int, total: int
) -> LocalOptimizer:
    info = graph_info(num_train=total)
    objective = SimpleNamespace(
        losses=losses, num_train=num_train, graph_info=info, exchanges_rows=False
    )
    return LocalOptimizer(flat, optimizer, objective)


def local_optimizer(
    module: Line,
    points: list[float],
    total: int,
    settings: OptimizerSettings = SGD,
    max_grad_norm: float | None = None,
) -> LocalOptimizer:
    flat = FlatParameters(module, torch.zeros(3))
    optimizer = build_optimizer(settings, 0.5, module)
    own = on_worker(
        flat, optimizer, lambda: [module.loss(torch.tensor(points))], len(points), total
    )
    return replace(own, max_grad_norm=max_grad_norm)


@pytest.mark.parametrize("max_grad_norm", [0.5, 5.0])
def test_the_gradient_is_clipped_as_by_torch_after_it_is_summed(max_grad_norm: float) -> None:
    module = Line()
    own = local_optimizer(module, [0.0, 4.0], total=5, max_grad_norm=max_grad_norm)
    update_rule = build_update_rule(GradientSettings("sync", 1, "fp32", "none", 4, False), own)
    update_rule.compute()
    own.flat.gradient += torch.tensor([12.0, 5.0, 0.0])
    expected = torch.nn.Parameter(own.flat.values.clone())
    expected.grad = own.flat.gradient / 5
    torch.nn.utils.clip_grad_norm_([expected], max_grad_norm)
    torch.optim.SGD([expected], 0.5).step()
    update_rule.apply()
    torch.testing.assert_close(own.flat.values, expected.detach())


@pytest.mark.parametrize("name", ["cosine", "step"])
def test_schedules_are_those_of_torch(name: str) -> None:
    given = (f"scheduler={name}", "scheduler_rounds=3", "scheduler_factor=0.3")
    schedule = Schedule(train_settings(*given).optimizer, 8)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    known: Any = {
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8),
        "step": lambda: torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.3),
    }
    torchs = known[name]()
    for number in range(8):
        expected = optimizer.param_groups[0]["lr"]
        assert 0.1 * schedule.rate_factor(number, 0) == pytest.approx(expected)
        optimizer.step()
        torchs.step()


def test_a_plateau_lowers_the_learning_rate_and_a_resumed_one_goes_on() -> None:
    settings = train_settings("scheduler=plateau", "scheduler_rounds=2").optimizer
    schedule, found = Schedule(settings, 99), []
    improvements = [0, 0, 1, 2, 2, 2, 2, 2, 2, 8, 8, 8, 8]
    for number, last_improvement in enumerate(improvements):
        if number == 6:  # a resumed run
            saved, schedule = schedule.state_dict(), Schedule(settings, 99)
            schedule.load_state_dict(saved)
        found.append(schedule.rate_factor(number, last_improvement))
    assert found == [1, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125]


def test_the_default_optimizer_is_torchs_adam() -> None:
    """Equal bit for bit, also after saving and loading; a parameter without gradient does not
    change.
    """
    settings = train_settings("weight_decay=0.25").optimizer
    ours, torchs = Line(), Line()
    optimizer = build_optimizer(settings, 0.5, ours)
    reference = torch.optim.Adam(torchs.parameters(), lr=0.5, weight_decay=0.25, fused=True)
    for number in range(6):
        for module in (ours, torchs):
            module.w.grad = torch.tensor([number - 2.0, 0.1 * number])
        optimizer.step()
        reference.step()
        saved = optimizer.state_dict()
        assert [
            {name: values.tolist() for name, values in state.items()}
            for state in saved["state"].values()
        ] == [
            {name: values.tolist() for name, values in state.items()}
            for state in reference.state_dict()["state"].values()
        ]
        optimizer = build_optimizer(settings, 0.5, ours)
        optimizer.load_state_dict(copy.deepcopy(saved))
        assert torch.equal(ours.w, torchs.w)
        assert ours.b.item() == 3.0
