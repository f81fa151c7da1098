"""End-to-end training of heterogeneous graphs: P parts equal one; the bytes. test_hetero_oracle.py
has the closed forms of the layers, test_trainers.py one process by hand for a plain graph.
"""

import copy
import functools
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hetero_support import hetero_parts, random_assignment
from support import RoundRecorder, train_settings
from test_hetero_oracle import GRAPH, SIZES, known_sizes

from partitioning.graph_data import HeteroGraphData, Relation
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import KINDS
from retexo.models.hetero_stage import HeteroArchitecture, build_network
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import registry
from retexo.trainers.context import Clock
from retexo.worker.make_context import make_context, schema_of

pytestmark = pytest.mark.timeout(120)
EPOCHS = 4
ONCE = 2 * 3 * 2 * 3 * 8
"""Bytes of the labels by class of two parts: 3 splits, with or without, 3 classes."""
COMMON = (
    "hidden_dim=8",
    "dropout=0",
    f"num_rounds=[{EPOCHS}]",
    "learning_rate=[0.1]",
    "optimizer._target_=torch.optim.SGD",
    "stopping=none",
    "best_val_model=false",
    "device=cpu",
    "base=published",
    "weight_decay=0",
)
MODELS = {
    "rgcn": ("model=rgcn", "model.num_bases=1", "num_layers=3"),
    "sage": ("model=hetero_sage", "num_layers=2"),
    "rgat": ("model=rgat", "heads=2", "num_layers=3"),
}
LOCK = threading.Lock()


def settings_of(model: str, num_parts: int, *more: str) -> TrainSettings:
    return train_settings(*COMMON, *MODELS[model], f"num_partitions={num_parts}", *more)


def outcome(settings: TrainSettings, graph: HeteroGraphData = GRAPH) -> dict[str, Any]:
    """Losses of every round, logits of all movies, the trained layers, and bytes by kind."""
    num_parts, trainer = settings.cluster.num_partitions, registry.find(settings.trainer.name)
    registry.check(settings)
    parts = hetero_parts(graph, num_parts)
    layers: list[Any] = [
        each.double()
        for each in build_network(
            HeteroArchitecture(settings.model, schema_of(parts[0]), 3), seed=1
        )
    ]
    sizes = known_sizes(parts)

    def worker(comm: Communicator) -> Any:
        log: Any = RoundRecorder()
        context = make_context(
            settings,
            parts[comm.rank],
            sizes,
            comm,
            layers[0].conv,
            use=trainer.USE,
            clock=Clock(),
            log=log,
            dtype=torch.float64,
        )
        with LOCK:
            trained = copy.deepcopy(layers)
        result = trainer.train(context, trained)
        return (
            log.scores,
            result.logits[0].detach(),
            trained,
            comm.meter.table(len(layers)).sum(dim=(1, 2)).tolist(),
        )

    found = run_threads(num_parts, worker)
    order = torch.cat([part.nodes["movie"].node_ids for part in parts]).argsort()
    return {
        "losses": np.array([each[0] for each in found[0][0] if each[0] is not None]),
        "logits": torch.cat([each[1] for each in found])[order],
        "layers": found[0][2],
        "sent": dict(zip(KINDS, np.sum([each[3] for each in found], axis=0).tolist(), strict=True)),
    }


@functools.cache
def whole(model: str) -> dict[str, Any]:
    return outcome(settings_of(model, 1, "trainer=full_graph"))


def assert_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    np.testing.assert_allclose(found["losses"], wanted["losses"], rtol=1e-8)
    torch.testing.assert_close(found["logits"], wanted["logits"], rtol=1e-7, atol=1e-9)
    assert wanted["losses"][-1] < wanted["losses"][0]


@pytest.mark.parametrize(("model", "num_parts"), [("rgcn", 4), ("sage", 4), ("rgat", 2)])
def test_full_graph_equals_one_part(model: str, num_parts: int) -> None:
    found = outcome(settings_of(model, num_parts, "trainer=full_graph"))
    assert_equal(found, whole(model))
    assert found["sent"]["embeddings"] > 0


def test_local_training_has_the_edges_within_parts() -> None:
    owner, within = random_assignment(GRAPH, 4), {}
    for (source, name, to), edges in GRAPH.relations.items():
        kept = owner[to][edges.dst] == owner[source][edges.src]
        weight = None if edges.edge_weight is None else edges.edge_weight[kept]
        within[source, name, to] = Relation(edges.src[kept], edges.dst[kept], weight)
    found = outcome(settings_of("rgcn", 4, "trainer=local"))
    full_graph = settings_of("rgcn", 1, "trainer=full_graph")
    assert_equal(found, outcome(full_graph, replace(GRAPH, relations=within)))
    assert found["sent"]["features"] == found["sent"]["embeddings"] == 0


def test_plain_bytes_are_those_by_hand() -> None:
    """Of persons, studios and sequels one layer's rows forth and back; the parameters'
    gradients.
    """
    settings = settings_of("sage", 2, "trainer=full_graph", "exchange=plain")
    found = outcome(settings)
    assert_equal(found, whole("sage"))
    halo = {
        name: sum(part.nodes[name].num_halo for part in hetero_parts(GRAPH, 2)) for name in SIZES
    }
    one_pass = 8 * 8 * sum(halo[name] for name in found["layers"][0].types)  # float64
    parameters = sum(
        parameter.numel() for layer in found["layers"] for parameter in layer.parameters()
    )
    parameters -= (
        2 * 8
    )  # of the relation without edges the weight in the first layer has no gradient
    assert found["sent"]["features"] == 8 * sum(
        halo[name] * width for name, (_, width) in SIZES.items()
    )
    assert (
        found["sent"]["embeddings"] == EPOCHS * 2 * one_pass + one_pass
    )  # the last: the final test
    assert (
        found["sent"]["metrics"] == (EPOCHS + 1) * one_pass + 2 * 56 + ONCE
    )  # the last counts go alone
    assert found["sent"]["gradients"] == EPOCHS * 2 * 8 * (parameters + 7)
    exact = outcome(settings_of("sage", 2, "trainer=full_graph"))
    assert exact["sent"]["embeddings"] < found["sent"]["embeddings"]
