"""Link prediction over parts: what one part gives, exactly; ranks and areas as loops count them; bytes as planned."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import make_graph, split_settings, train_settings

from partitioning.directory.read import PartitionDirectory, find
from partitioning.directory.write import write
from partitioning.graph_data import MASKS
from partitioning.links.baselines import of_ranks
from partitioning.links.split import split_links
from retexo.comm.collectives import Communicator
from retexo.comm.threads import run_threads
from retexo.nn.hetero import build_network
from retexo.nn.stage import Answer
from retexo.outputs.run_log import RunLog
from retexo.trainers import ranking, registry
from retexo.trainers.context import Clock
from retexo.training.graph_info import agree_on_graph_info
from retexo.worker.context import task_of
from retexo.worker.graph import PlainGraph, read_graph

COMMON = ("task=link_prediction", "+experiment=exact", "num_layers=2", "hidden_dim=12", "task.dim=6", "dropout=0",
          "stopping=none", "num_rounds=6", "learning_rate=0.05", "task.negatives=16", "device=cpu")  # fmt: skip
CASES = {
    "gcn": ("model=gcn",),
    "sage-mlp": ("model=sage", "task.scorer=mlp"),
    "gin-plain-distmult": ("model=gin", "exchange=plain", "task.scorer=distmult"),
    "sage-published": ("model=sage", "base=published"),
    "full_graph": ("model=gcn", "trainer=full_graph"),
}
NODES = 60


def graph() -> Any:
    rng = np.random.default_rng(7)
    edges = rng.integers(50, size=(160, 2))
    edges = np.concatenate([edges, edges[:, ::-1], [[3, 3]]])  # 50 ... 59 have none
    return make_graph(edges, rng.standard_normal((NODES, 9)), [0] * NODES, 1)


def directory_of(folder: Path, num_parts: int) -> PartitionDirectory:
    split = split_links(graph(), split_settings(edges=(0.7, 0.1, 0.2)))
    parts = np.random.default_rng(num_parts).integers(num_parts, size=NODES)
    parts[parts == 5] = 0  # of seven one is empty
    made_by = {"request": {"partition_method": "random"}, "split": {}, "versions": {}, "links": split.description}
    masks = dict.fromkeys(MASKS, np.zeros(NODES, bool))
    write(
        folder / f"toy-{num_parts}", split.graph, masks, parts, num_parts=num_parts, provenance=made_by,
        overwrite=True, links={**split.rows, "pool": split.pool},
    )  # fmt: skip
    return find([folder / f"toy-{num_parts}"], num_parts)


class Losses(RunLog):
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def round(self, layer: int, number: int, train_loss: float | None, val_metric: float | None) -> None:
        self.lines.append((train_loss, val_metric))


def trained(directory: PartitionDirectory, overrides: tuple[str, ...]) -> list[Any]:
    """By rank: ids of nodes, losses and metrics, embeddings of all stages, scores."""
    settings = train_settings(*COMMON, *overrides, f"num_partitions={directory.num_parts}")
    graphs = [read_graph(directory, part, task=settings.task) for part in range(directory.num_parts)]
    first = graphs[0]
    assert isinstance(first, PlainGraph)
    info = dataclasses.replace(agree(directory, graphs, settings)[0], num_classes=settings.task.dim)
    stages = [stage.double() for stage in build_network(first.architecture(settings, info), settings.seed)]
    trainer = registry.find(settings.trainer.name)
    registry.check(settings)

    def worker(comm: Communicator) -> Any:
        own, log = copy.deepcopy(stages), Losses()
        context = graphs[comm.rank].make_context(
            settings, info, comm, own[0].conv, clock=Clock(), log=log, dtype=torch.float64, use=trainer.USE
        )
        context.save_layer = lambda layer, stage: None
        result = trainer.train(context, own)
        for stage in own:
            stage.eval()
        answer = ranking.choose_links(context, own, result.logits)
        ids = graphs[comm.rank].partition.node_ids.numpy()
        return (
            ids,
            log.lines,
            [each.numpy() for each in result.logits],
            ranking.link_scores(context, own, result.logits, answer),
        )

    return run_threads(directory.num_parts, worker)


def agree(directory: PartitionDirectory, graphs: list[Any], settings: Any) -> list[Any]:
    return run_threads(directory.num_parts, lambda comm: agree_on_graph_info(
        comm, graphs[comm.rank].partition, directory, "0" * 64, task=task_of(settings)))  # fmt: skip


def joined(workers: list[Any]) -> tuple[Any, list[np.ndarray], Any]:
    order = np.concatenate([ids for ids, *_ in workers]).argsort()
    stages = zip(*(logits for _, _, logits, _ in workers), strict=True)
    assert all(each[1] == workers[0][1] and each[3] == workers[0][3] for each in workers)  # the same on all
    return workers[0][1], [np.concatenate(each)[order] for each in stages], workers[0][3]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = directory_of(tmp_path_factory.mktemp("alone"), 1)
    return {name: joined(trained(directory, overrides)) for name, overrides in CASES.items()}


@pytest.mark.parametrize("num_parts", [2, 4, 7])
def test_parts_give_what_one_gives(num_parts: int, tmp_path: Path, alone: dict[str, Any]) -> None:
    directory = directory_of(tmp_path, num_parts)
    for name, overrides in CASES.items():
        if num_parts == 4 or name == "gcn":
            lines, embedded, scores = joined(trained(directory, overrides))
            np.testing.assert_allclose(np.array(lines, float), np.array(alone[name][0], float), rtol=1e-8, err_msg=name)
            for own, one in zip(embedded, alone[name][1], strict=True):
                np.testing.assert_allclose(own, one, rtol=1e-8, atol=1e-8, err_msg=name)
            for part, found in scores.items():
                assert found == pytest.approx(alone[name][2][part], rel=1e-9), name


def test_scores_are_those_of_loops(tmp_path: Path, alone: dict[str, Any]) -> None:
    """The full graph's, of one stage: by its embeddings and the split."""
    split = split_links(graph(), split_settings(edges=(0.7, 0.1, 0.2)))
    _, (rows,), scores = alone["full_graph"]
    matrix = rows @ rows.T
    known = set(zip(*(ends.tolist() for ends in split.known()), strict=True))
    for part in ("val", "test"):
        ranks = []
        for u, v in split.rows[part].tolist():
            others = np.array([matrix[u, w] for w in range(NODES) if w != u and (u, w) not in known])
            ranks.append(1 + (others > matrix[u, v]).sum() + (others == matrix[u, v]).sum() / 2)
        for measure, value in of_ranks(np.array(ranks)).items():
            assert scores[part][measure] == pytest.approx(value, abs=1e-6), measure
        own, fixed = (matrix[tuple(split.rows[name].T)] for name in (part, f"{part}_neg"))
        wins = (own[:, None] > fixed).mean() + (own[:, None] == fixed).mean() / 2
        assert scores[part]["auc"] == pytest.approx(wins)


def test_ranks_do_not_depend_on_how_much_is_there_at_a_time(
    tmp_path: Path, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "QUERIES", 3)
    monkeypatch.setattr(ranking, "CELLS", 20)
    scores = joined(trained(directory_of(tmp_path, 4), CASES["full_graph"]))[2]
    assert scores["test"] == pytest.approx(alone["full_graph"][2]["test"], rel=1e-9)


@pytest.mark.parametrize("evaluator", ["hits@5", "mrr"])
def test_ogb_evaluators_agree(evaluator: str, tmp_path: Path) -> None:
    ogb = pytest.importorskip("ogb.linkproppred")
    directory = directory_of(tmp_path, 4)
    rng = np.random.default_rng(0)
    for part in range(4):  # three fixed ones for each pair, as ogbl-citation2 has a thousand
        path = directory.path / f"part{part}"
        pairs = np.load(path / "links_test.npy")
        np.save(
            path / "links_test_neg.npy",
            np.stack((np.repeat(pairs[:, 0], 3), rng.integers(NODES, size=3 * len(pairs))), axis=1),
        )
    directory.meta.links["evaluator"] = evaluator  # type: ignore[union-attr]
    settings = train_settings(*COMMON, "model=gcn", "num_partitions=4")
    graphs = [read_graph(directory, part, task=settings.task) for part in range(4)]
    info = agree(directory, graphs, settings)[0]
    rows = torch.from_numpy(rng.standard_normal((NODES, 6))).float()
    first = graphs[0]
    assert isinstance(first, PlainGraph)
    stages = build_network(first.architecture(settings, info), 0)

    def worker(comm: Communicator) -> Any:
        context: Any = graphs[comm.rank].make_context(
            settings, info, comm, stages[0].conv, clock=Clock(), use="evaluate"
        )
        part = context.partition
        own = rows[part.first_id : part.first_id + part.num_inner]
        return ranking.against_fixed(ranking.Embedded.of(context, stages, [own], [Answer((1,))]), "test")

    found = run_threads(4, worker)[0]
    score = lambda pairs: (rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(dim=1)  # noqa: E731
    positive, negative = (
        score(torch.cat([each.partition.links[name] for each in graphs])) for name in ("test", "test_neg")
    )
    if evaluator == "mrr":
        answer = ogb.Evaluator("ogbl-citation2").eval({"y_pred_pos": positive, "y_pred_neg": negative.view(-1, 3)})
        assert found["ogb mrr"] == pytest.approx(float(answer["mrr_list"].mean()), abs=1e-6)
    else:
        judge = ogb.Evaluator("ogbl-collab")
        judge.K = 5
        answer = judge.eval({"y_pred_pos": positive, "y_pred_neg": negative})
        assert found["ogb hits@5"] == pytest.approx(answer["hits@5"])
