"""Predictions of +experiment=exact compared with closed forms on dense matrices: stages and
smoothing.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import dense_conv, random_graph, thirds, train_settings, write_partitions
from torch import Tensor
from torch.nn.functional import layer_norm

from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.models.stage import Architecture, OutputHeads, build_stages
from retexo.rounds.graph_info import agree_on_graph_info
from retexo.trainers.context import Clock
from retexo.trainers.lazy import infer
from retexo.worker.make_context import make_context

NODES, CLASSES, LAYERS, STEPS, ALPHA = 24, 3, 3, 2, 0.3
GRAPH = random_graph(NODES, 90)
X = torch.from_numpy(GRAPH.features).double()
EYE = torch.eye(NODES, dtype=torch.float64)


COUNT = torch.zeros(NODES, NODES, dtype=torch.float64)
"""Number of edges [to, from], without self loops."""
ENDS = torch.from_numpy(GRAPH.dst), torch.from_numpy(GRAPH.src)
COUNT.index_put_(ENDS, torch.ones(len(GRAPH.src), dtype=torch.float64), accumulate=True)
COUNT.fill_diagonal_(0)
NORMALISED = (
    torch.diag((COUNT.sum(1) + 1) ** -0.5) @ (COUNT + EYE) @ torch.diag((COUNT.sum(0) + 1) ** -0.5)
)
WEIGHTS = {"gcn": "weight", "sage": "weight_neigh", "gin": "weight_in"}
AGGREGATES = {
    "gcn": NORMALISED,
    "sage": COUNT / COUNT.sum(1, keepdim=True).clamp(min=1),
    "gin": COUNT + EYE,
}


def answers_of(model: str, stages: list[Any]) -> list[Tensor]:
    """Halves [X, A X], then thirds [A X, X, A q], each with its own weights; q = A X W is passed
    on. Of GAT X W + mean of heads, then X W + h W + mean of heads; h is passed on.
    """
    passed, answers = X, []
    for layer, stage in enumerate(stages):
        own, first = dense_conv(stage.conv, COUNT, passed), {"rows": X}
        if model == "gat":
            beside = {"features": X, "rows": passed} if layer else first
        else:
            beside = {"aggregate": AGGREGATES[model] @ X, "features": X} if layer else first
        assert list(stage.skips) == list(beside)
        parts = [rows @ stage.skips[name] for name, rows in beside.items()]
        hidden = own + sum(parts) if model == "gat" else torch.cat((*parts, own), dim=1)
        norm = stage.norm
        if not isinstance(norm, torch.nn.Identity):
            hidden = layer_norm(hidden, hidden.shape[1:], norm.weight, norm.bias)
        hidden = torch.relu(hidden)
        answers.append(hidden @ stage.head.weight.T + stage.head.bias)
        if model == "gat":
            passed = hidden
        else:
            assert {part.shape[1] for part in (*parts, own)} == {12 // (len(parts) + 1)}
            passed = AGGREGATES[model] @ passed @ getattr(stage.conv, WEIGHTS[model])
    return answers


@pytest.mark.parametrize("norm", ["layer", "none"])
@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat"])
def test_the_answers_of_a_network(model: str, norm: str, tmp_path: Path) -> None:
    settings = train_settings(
        "+experiment=exact",
        f"model={model}",
        f"num_layers={LAYERS}",
        "hidden_dim=12",
        "heads=2",
        "device=cpu",
        "num_partitions=1",
        f"smoothing.steps={STEPS}",
        f"model.norm={norm}",
    )
    directory = write_partitions(tmp_path, GRAPH, thirds(NODES), np.zeros(NODES), 1)
    stages = [
        stage.double().eval()
        for stage in build_stages(Architecture(settings.model, X.shape[1], CLASSES), 0)
    ]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for stage in stages:
            for parameter in stage.parameters():
                torch.nn.init.normal_(parameter)  # biases, too
        values = answers_of(model, stages)

    def worker(comm: Communicator) -> list[Tensor]:
        partition = directory.read(0)
        info = agree_on_graph_info(comm, partition, directory)
        context = make_context(
            settings, partition, info, comm, stages[0].conv, clock=Clock(), dtype=torch.float64
        )
        given = [
            OutputHeads((0,)),
            OutputHeads((2,)),
            OutputHeads((1, 2)),
            OutputHeads((0, 1, 2), ALPHA, STEPS),
        ]
        return [infer(context, stages, answer).logits for answer in given]

    mean = sum(values) / LAYERS
    powers = [mean, NORMALISED @ mean, NORMALISED @ NORMALISED @ mean]
    smoothed = ALPHA * powers[0] + ALPHA * (1 - ALPHA) * powers[1] + (1 - ALPHA) ** 2 * powers[2]
    wanted = [values[0], values[2], (values[1] + values[2]) / 2, smoothed]
    (found,) = run_threads(1, worker)
    for got, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
