"""Node regression: losses, scores and scales of targets against torch, NumPy and scikit-learn."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch.nn import functional

from partitioning.errors import InputError
from retexo.comm.collectives import Communicator
from retexo.comm.masks import PairwiseMasks
from retexo.comm.thread_transport import run_threads
from retexo.models.stage import TargetScale
from retexo.tasks.node_regression import NodeRegression, agree_on_scale

SCALE = TargetScale((1e6, -3.0), (2e4, 0.5))


def draw_targets(num_nodes: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and labels [N, 2], of which a third are unknown."""
    rng = torch.Generator().manual_seed(0)
    outputs, errors = torch.randn(2, num_nodes, 2, generator=rng, dtype=torch.float64)
    labels = (outputs + errors) * torch.tensor(SCALE.deviation) + torch.tensor(SCALE.mean)
    labels[torch.rand(num_nodes, 2, generator=rng) < 1 / 3] = torch.nan
    return outputs, labels


def test_scores_equal_scikit_learn_where_targets_are_known() -> None:
    outputs, labels = draw_targets()
    task = NodeRegression(SCALE, ("price", "area"))
    rows = task.compute_rows(task.sum_errors(outputs, task.make_targets(labels, torch.float64)))
    values = task.predict(outputs).numpy()
    for target, row in enumerate(rows):
        known = ~np.isnan(labels[:, target].numpy())
        actual, predicted = labels[known, target].numpy(), values[known, target]
        assert row.pop("target") == task.class_names[target]
        assert row == pytest.approx(
            {
                "mae": metrics.mean_absolute_error(actual, predicted),
                "rmse": metrics.root_mean_squared_error(actual, predicted),
                "r2": metrics.r2_score(actual, predicted),
                "support": known.sum(),
            },
            rel=1e-9,
        )


def test_scores_of_no_node_and_of_equal_targets_are_unknown() -> None:
    task = NodeRegression(SCALE)
    assert np.isnan([task.compute_rows(torch.zeros(5, 2))[0][name] for name in ("mae", "r2")]).all()
    same = torch.full((9, 2), 0.3)
    row = task.compute_rows(task.sum_errors(same + 1, same))[0]
    assert row["mae"] == pytest.approx(2e4)
    assert np.isnan(row["r2"])


@pytest.mark.parametrize(
    ("loss", "function"),
    [
        ("mse", functional.mse_loss),
        ("mae", functional.l1_loss),
        ("huber", lambda *pair, reduction: functional.huber_loss(*pair, reduction, delta=0.7)),  # type: ignore[call-arg]
    ],
)
def test_losses_skip_unknown_targets(loss: str, function: Any) -> None:
    outputs, labels = draw_targets()
    task = NodeRegression(SCALE, loss_name=loss, huber_delta=0.7)
    targets = task.make_targets(labels, torch.float64)
    known = ~targets.isnan()
    outputs.requires_grad_()
    total = task.loss_sum(outputs, targets)
    expected = function(outputs[known], targets[known], reduction="sum") / 2
    torch.testing.assert_close(total, expected)
    gradients = [torch.autograd.grad(value, outputs)[0] for value in (total, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("masked", [False, True])
def test_the_scale_is_that_of_all_workers_in_any_unit(masked: bool) -> None:
    if masked:
        pytest.importorskip("cryptography")
    rng = np.random.default_rng(1)
    labels = rng.normal(size=(60, 4)) * (1e12, 1e-9, 1.0, 30.0) + (0, 0, 1e7, -5)
    labels[rng.random((60, 4)) < 0.2] = np.nan
    labels[:20, 3] = np.nan  # one worker does not know the last target

    def worker(comm: Communicator) -> TargetScale:
        if masked:
            keys = {peer: bytes([comm.rank + peer] * 32) for peer in range(3) if peer != comm.rank}
            comm.masks = PairwiseMasks(comm.rank, keys)
        own = torch.from_numpy(labels[20 * comm.rank : 20 * comm.rank + 20])
        return agree_on_scale(own, "abcd", comm)

    scales = run_threads(3, worker)
    assert scales[0] == scales[1] == scales[2]
    np.testing.assert_allclose(scales[0].mean, np.nanmean(labels, axis=0), rtol=1e-9)
    np.testing.assert_allclose(scales[0].deviation, np.nanstd(labels, axis=0), rtol=1e-9)


@pytest.mark.parametrize("unit", [1e-38, 1e-19, 1.0, 1e19])
def test_the_scale_of_very_small_and_large_targets(unit: float) -> None:
    values = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)[:, None] * unit
    (scale,) = run_threads(1, lambda comm: agree_on_scale(values, ["x"], comm))
    assert scale.mean[0] == pytest.approx(7 / 3 * unit, rel=1e-9, abs=0)
    assert scale.deviation[0] == pytest.approx(np.std([1, 2, 4]) * unit, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [([np.nan, np.nan], "target x: it is known at no"), ([3.0, 3.0], "target x: it is 3 at every")],
)
def test_targets_without_information_are_refused(values: list[float], message: str) -> None:
    labels = torch.tensor(values, dtype=torch.float64)[:, None]
    with pytest.raises(InputError, match=message):
        run_threads(1, lambda comm: agree_on_scale(labels, ["x"], comm))
