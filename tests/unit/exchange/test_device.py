"""Training on a device beside the host gives what it gives on the host, and rows cross the network
from there as codes."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulated_device import DEVICE, SimulatedDevice
from support import random_graph, thirds, train_settings, write_partitions
from torch import Tensor

from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.exchange import layer_exchange, local_rows, message_selection
from retexo.exchange.coding.rows import RowFormat
from retexo.models.hetero_stage import build_network
from retexo.rounds.graph_info import agree_on_graph_info
from retexo.tasks.scores import choose_and_score
from retexo.trainers import lazy
from retexo.trainers.context import Clock
from retexo.trainers.label_propagation import LabelPropagation
from retexo.worker import make_context
from retexo.worker.graph import read_graph


def note_devices(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Where messages' partial sums are added, and where messages are encoded and decoded; of the
    sparse encoding, which stays on the host, nothing."""
    used: set[str] = set()

    def note(module: Any, name: str, is_noted: Callable[..., bool]) -> None:
        original = getattr(module, name)

        def noting(values: Tensor, *others: Any) -> Any:
            if is_noted(*others):
                used.add(values.device.type)
            return original(values, *others)

        monkeypatch.setattr(module, name, noting)

    def is_dense(*arguments: Any) -> bool:
        return any(isinstance(each, RowFormat) and each.encoding == "dense" for each in arguments)

    note(local_rows, "sum_rows", lambda *arguments: True)
    note(message_selection, "encode", is_dense)
    note(layer_exchange, "decode", is_dense)
    note(layer_exchange, "decode_scaled", is_dense)
    return used


@pytest.mark.parametrize(
    "options",
    [
        ("model=gcn",),
        ("model=gcn", "exchange.precision=fp32", "model.input_skip=false"),
        ("model=sage", "exchange.precision=[int8,int4]", "model.self_weight=false"),
        ("model=gat", "heads=1"),
        ("model=gin",),
    ],
)
def test_training_on_a_device(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph(width=9)
    graph.features[:, 0] *= 1000  # so that columns are divided by powers of two
    if "model=gin" in options:  # sparse features, which stay on the host
        graph.features[np.arange(9) != np.arange(40)[:, None] % 9] = 0
    directory = write_partitions(tmp_path, graph, thirds(40), [0, 1] * 20, 2)
    settings = train_settings(*options, "dropout=0", "num_rounds=[4]", "hidden_dim=7")

    def train(comm: Communicator) -> tuple[list[Tensor], Any, int]:
        part = read_graph(directory, comm.rank)
        info = agree_on_graph_info(comm, part.partition, directory)
        with drawing:
            stages = build_network(part.architecture(settings, info), settings.seed)
        context = make_context.make_context(
            settings, part.part, info, comm, stages[0].conv, clock=Clock(), use="train"
        )
        trained = lazy.train(context, [stage.to(context.device) for stage in stages])
        _, scores = choose_and_score(context, stages, trained.logits, LabelPropagation(context))
        return trained.logits, scores.to_json(), comm.meter.total

    def train_on_device(comm: Communicator) -> tuple[Any, Counter[str]]:
        with SimulatedDevice() as device:
            return train(comm), device.moved

    drawing = threading.Lock()
    on_host = run_threads(2, train)
    monkeypatch.setattr(make_context, "choose_device", lambda *which: DEVICE)
    used = note_devices(monkeypatch)
    for (logits, *rest), ((logits_there, *rest_there), moved) in zip(
        on_host, run_threads(2, train_on_device), strict=True
    ):
        torch.testing.assert_close(logits_there, logits, equal_nan=True)
        assert rest_there == rest
        assert moved["to device"]
        assert moved["to host"]
    # GAT's blocks are cut on the host; its predictions are smoothed on the device.
    assert used == ({"cpu", "meta"} if "model=gat" in options else {"meta"})
