"""Link prediction on P partitions equals that on one.

Loops give the same ranks and areas, and a run sends the bytes of its plan.
"""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from graph_files import write_files
from support import (
    RoundRecorder,
    assert_sent_as_planned,
    edit_model,
    make_graph,
    run_main,
    split_settings,
    train_settings,
    with_arrays,
    worker_context,
    write_partitions,
)

import retexo
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.graph.graph_data import MASKS, PLAIN_RELATION
from partitioning.links.link_split import split_links
from partitioning.links.score_names import FILTER
from partitioning.links.score_ranks import measure_ranks
from partitioning.links.spectral_embedding import decompose
from retexo import load_run
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.models.matrix import to_dense
from retexo.models.stage import OutputHeads
from retexo.settings.run_settings import TrainSettings
from retexo.tasks import embedded_nodes, ranking
from retexo.trainers import registry
from retexo.trainers.lazy import run_layers
from retexo.worker.graph import read_graph

COMMON = (
    "task=link_prediction",
    "+experiment=exact",
    "num_layers=2",
    "hidden_dim=12",
    "dropout=0",
    "task.ranked=70",
    "stopping=none",
    "num_rounds=6",
    "learning_rate=0.05",
    "task.negatives=16",
    "device=cpu",
)
WIDTH = 28
"""Of spectral embeddings; a quarter of it is more than a network's 6, too."""
CASES = {
    "gcn": ("model=gcn",),
    "sage-mlp": ("model=sage", "task.scorer=mlp", "stopping.metric=ndcg@20"),
    "gin-plain-distmult": (
        *("model=gin", "exchange=plain", "task.scorer=distmult"),
        "stopping.metric=auc",
    ),
    "sage-published": ("model=sage", "base=published"),
    "full_graph": ("model=gcn", "trainer=full_graph"),
    "relations": ("model=rgcn_union",),
    "relations-full_graph": ("model=rgcn_union", "trainer=full_graph"),
}
NODES = 60


def graph() -> Any:
    rng = np.random.default_rng(7)
    edges = rng.integers(50, size=(160, 2))
    edges = np.concatenate([edges, edges[:, ::-1], [[3, 3]]])  # 50 ... 59 have none
    return make_graph(edges, rng.standard_normal((NODES, 9)), [0] * NODES, 1)


def with_relations() -> Any:
    """The same graph, whose edges are of three relations; links of the first are learned."""
    plain = graph()
    number = np.random.default_rng(9).integers(3, size=plain.num_edges)
    every = np.ones(NODES, bool)
    return dataclasses.replace(
        with_arrays(plain, edge_feat=number[:, None].astype(np.float32)),
        relation={
            "edges": number == 0,
            "sources": every,
            "destinations": every,
            "names": ["a", "b", "c"],
        },
    )


def directory_of(folder: Path, num_parts: int, learned_graph: Any = None) -> PartitionDirectory:
    split = split_links(
        learned_graph or graph(), split_settings(edges=(0.7, 0.1, 0.2)), width=WIDTH
    )
    parts = np.random.default_rng(num_parts).integers(num_parts, size=NODES)
    parts[parts == 5] = 0  # of seven one is empty
    masks = dict.fromkeys(MASKS, np.zeros(NODES, bool))
    return write_partitions(folder, split.graph, masks, parts, num_parts, links=split)


def link_settings(*overrides: str) -> TrainSettings:
    """Settings with embeddings of 6 columns, less than a quarter of WIDTH."""
    settings = train_settings(*COMMON, *overrides)
    return dataclasses.replace(settings, task=dataclasses.replace(settings.task, dim=6))


def train_workers(directory: PartitionDirectory, overrides: tuple[str, ...]) -> list[Any]:
    """Train; return by rank the nodes' ids, losses and metrics, all embeddings, and scores."""
    settings = link_settings(*overrides, f"num_partitions={directory.num_parts}")
    trainer = registry.find_trainer(settings)
    registry.check_trainer_settings(settings)

    def worker(comm: Communicator) -> Any:
        log = RoundRecorder()
        context, stages = worker_context(
            comm, directory, settings, log=log, dtype=torch.float64, use=trainer.USE
        )
        context.save_layer = lambda layer, stage: None
        result = trainer.train(context, stages)
        for stage in stages:
            stage.eval()
        heads, known = ranking.choose_link_heads(context, stages, result.logits)
        return (
            context.partition.node_ids.numpy(),
            log.scores,
            [logits.numpy() for logits in result.logits],
            ranking.score_links(context, stages, result.logits, heads, known),
        )

    return run_threads(directory.num_parts, worker)


def join_workers(workers: list[Any]) -> tuple[Any, list[np.ndarray], Any]:
    order = np.concatenate([ids for ids, *_ in workers]).argsort()
    stages = zip(*(logits for _, _, logits, _ in workers), strict=True)
    assert all(
        worker[1] == workers[0][1] and worker[3] == workers[0][3] for worker in workers
    )  # the same on all
    return workers[0][1], [np.concatenate(pieces)[order] for pieces in stages], workers[0][3]


def train_case(folder: Path, num_parts: int, name: str) -> tuple[Any, list[np.ndarray], Any]:
    learned_graph = with_relations() if name.startswith("relations") else graph()
    return join_workers(train_workers(directory_of(folder, num_parts, learned_graph), CASES[name]))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("alone")
    return {name: train_case(folder, 1, name) for name in CASES}


@pytest.mark.parametrize("num_parts", [2, 4, 7])
def test_parts_give_what_one_gives(num_parts: int, tmp_path: Path, alone: dict[str, Any]) -> None:
    for name in CASES if num_parts == 4 else ["gcn"]:
        lines, embedded, scores = train_case(tmp_path, num_parts, name)
        np.testing.assert_allclose(
            np.array(lines, float), np.array(alone[name][0], float), rtol=1e-8, err_msg=name
        )
        for own, one in zip(embedded, alone[name][1], strict=True):
            np.testing.assert_allclose(own, one, rtol=1e-8, atol=1e-8, err_msg=name)
        for part, values in scores.items():
            assert values == pytest.approx(alone[name][2][part], rel=1e-9), name


def test_pairs_between_two_parts_are_skipped(tmp_path: Path) -> None:
    directory = directory_of(tmp_path, 4)
    for rank in range(4):
        every, own = (
            read_graph(directory, rank, task=link_settings(f"task.cut_edges={cut}").task)
            for cut in ("train", "skip")
        )
        assert every.links is not None
        assert own.links is not None
        pairs, first = every.links["train"].tolist(), own.first_id
        inner = range(first, first + own.num_inner)
        assert own.links["train"].tolist() == [pair for pair in pairs if {*pair} <= {*inner}]
        assert 0 < len(own.links["train"]) < len(pairs)


@pytest.mark.parametrize(
    ("overrides", "passed"),
    [
        (("model=sage",), None),
        (("model=sage", "model.self_weight=false"), None),
        (("model=sage", "model.input_skip=false"), -1),
        (("model=sage", "base=published"), 0),
        (("model=rgcn_union",), -1),
    ],
)
def test_neighbour_dropout_leaves_what_a_node_without_neighbours_has(
    overrides: tuple[str, ...], passed: int | None, tmp_path: Path
) -> None:
    """passed: which input of the second layer is a node's own activation (seen neighbours)."""
    directory = directory_of(tmp_path, 1, with_relations() if "rgcn" in overrides[0] else None)

    def inputs(rate: float, *, edges: bool) -> list[list[torch.Tensor]]:
        settings = link_settings(*overrides, "num_partitions=1")
        part = read_graph(directory, 0, task=settings.task)
        if not edges:
            relation = part.relations[PLAIN_RELATION]
            none = relation.keep(torch.zeros(len(relation.src), dtype=torch.bool))
            part = dataclasses.replace(part, relations={PLAIN_RELATION: none})
        layers = []

        def fit(objective: Any) -> None:
            thinned = dataclasses.replace(objective, neighbour_dropout=rate)
            thinned_inputs = thinned.drop_neighbours(objective.available.inputs(slice(None)))
            layers.append(
                [to_dense(matrix) for matrix in (*thinned_inputs.matrices, *thinned_inputs.skips)]
            )

        def worker(comm: Communicator) -> None:
            own = worker_context(comm, directory, settings, part=part, log=RoundRecorder())
            list(run_layers(*own, fit))

        run_threads(1, worker)
        return layers

    dropped, without, undropped = (
        inputs(1.0, edges=True),
        inputs(0.0, edges=False),
        inputs(0.0, edges=True),
    )
    for layer, (own, without_edges, with_edges) in enumerate(
        zip(dropped, without, undropped, strict=True)
    ):
        assert any(not torch.equal(*both) for both in zip(without_edges, with_edges, strict=True))
        if layer and passed is not None:
            without_edges[passed] = with_edges[passed]
        torch.testing.assert_close(own, without_edges)


def test_scores_are_those_of_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops over embeddings, spectral products and paths of two edges give the same scores."""
    split = split_links(graph(), split_settings(edges=(0.7, 0.1, 0.2)), width=WIDTH)
    monkeypatch.setattr(ranking, "SHARES", (0.5, 0.9))
    # Of two sources, and 4 to 12 of 15 destinations.
    monkeypatch.setattr(embedded_nodes, "MAX_SCORES", 24)
    monkeypatch.setattr(embedded_nodes, "MIN_SOURCES", 2)
    _, stages, scores = join_workers(train_workers(directory_of(tmp_path, 4), CASES["gcn"]))
    by_part = {"val": split.spectral_val, "test": split.spectral}
    spectral = {part: (rows @ rows.T).astype(np.float64) for part, rows in by_part.items()}
    known = set(zip(*(ends.tolist() for ends in split.known()), strict=True))

    def ranks_of(matrix: np.ndarray, part: str) -> np.ndarray:
        ranks = []
        for u, v in split.rows[part].tolist():
            others = np.array(
                [matrix[u, w] for w in range(NODES) if w != u and (u, w) not in known]
            )
            ranks.append(1 + (others > matrix[u, v]).sum() + (others == matrix[u, v]).sum() / 2)
        return np.array(ranks)

    def best(matrices: list[np.ndarray]) -> int:
        return int(np.argmax([(1 / ranks_of(matrix, "val")).mean() for matrix in matrices]))

    first, second = (rows @ rows.T for rows in stages)
    heads = [first, second, (first + second) / 2]
    network = heads[best(heads)]
    mixed = [(1 - share) * network + share * spectral["val"] for share in ranking.SHARES]
    spectral_share = ranking.SHARES[best(mixed)]
    weight = {z: w for _, z, w in split.neighbours.tolist()}
    near = [{z for node, z, _ in split.neighbours.tolist() if node == v} for v in range(NODES)]
    paths = np.array(
        [
            [sum(weight[z] for z in near[u] & near[v]) / 2**16 for v in range(NODES)]
            for u in range(NODES)
        ]
    )
    matrices = {
        part: (1 - spectral_share) * network + spectral_share * products
        for part, products in spectral.items()
    }
    mixed = [(1 - share) * matrices["val"] + share * paths for share in ranking.SHARES]
    paths_share = ranking.SHARES[best(mixed)]
    for part in ("val", "test"):
        matrix = (1 - paths_share) * matrices[part] + paths_share * paths
        ranks, sources = ranks_of(matrix, part), split.rows[part][:, 0]
        places = []
        for rank, (u, v) in zip(ranks, split.rows[part].tolist(), strict=True):
            others = [w for source, w in split.rows[part].tolist() if source == u and w != v]
            places.append(rank + (matrix[u, others] > matrix[u, v]).sum())
        for measure, value in measure_ranks(sources, np.array([ranks, places])).items():
            assert scores[part][measure] == pytest.approx(value, abs=1e-6), measure
        own, fixed = (matrix[tuple(split.rows[name].T)] for name in (part, f"{part}_neg"))
        wins = (own[:, None] > fixed).mean() + (own[:, None] == fixed).mean() / 2
        assert scores[part]["auc"] == pytest.approx(wins)


@pytest.mark.parametrize("evaluator", ["hits@5", "mrr"])
def test_ogb_evaluators_agree(evaluator: str, tmp_path: Path) -> None:
    ogb = pytest.importorskip("ogb.linkproppred")
    directory = directory_of(tmp_path, 7)
    rng = np.random.default_rng(0)
    for part in range(7):  # three fixed ones for each pair, as ogbl-citation2 has a thousand
        path = directory.path / f"part{part}"
        pairs = np.load(path / "links_test.npy")
        np.save(
            path / "links_test_neg.npy",
            np.stack((np.repeat(pairs[:, 0], 3), rng.integers(NODES, size=3 * len(pairs))), axis=1),
        )
    directory.meta.links["evaluator"] = evaluator  # type: ignore[union-attr]
    settings = link_settings("model=gcn", "num_partitions=7")
    rows = torch.from_numpy(rng.standard_normal((NODES, 6))).float()

    def worker(comm: Communicator) -> Any:
        context, stages = worker_context(comm, directory, settings, use="evaluate")
        part = context.partition
        own = rows[part.first_id : part.first_id + part.num_inner]
        return ranking.compare_with_negatives(
            embedded_nodes.EmbeddedNodes.of(context, stages, [own], [OutputHeads((1,))]), "test"
        )[0]

    scores = run_threads(7, worker)[0]
    score = lambda pairs: (rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(dim=1)  # noqa: E731
    positive, negative = (
        score(torch.cat([directory.read_part(part).links[name] for part in range(7)]))
        for name in ("test", "test_neg")
    )
    if evaluator == "mrr":
        ogb_scores = ogb.Evaluator("ogbl-citation2").eval(
            {"y_pred_pos": positive, "y_pred_neg": negative.view(-1, 3)}
        )
        assert scores["ogb mrr"] == pytest.approx(float(ogb_scores["mrr_list"].mean()), abs=1e-6)
    else:
        judge = ogb.Evaluator("ogbl-collab")
        judge.K = 5
        ogb_scores = judge.eval({"y_pred_pos": positive, "y_pred_neg": negative})
        assert scores["ogb hits@5"] == pytest.approx(ogb_scores["hits@5"])


# --- whole runs ----------

LEAN = (
    "hidden_dim=12",
    "num_rounds=4",
    "device=cpu",
    "cluster.threads=1",
    "num_partitions=2",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of two workers on named nodes, with the defaults.

    The folder, and the arguments that all apps take.
    """
    folder = tmp_path_factory.mktemp("run")
    split = graph()
    names = np.array([f"node {number}" for number in range(NODES)])
    ends = {"src": split.edges.src, "dst": split.edges.dst}
    np.savez(folder / "g.npz", **ends, feat=split.features, node_id=names)
    data = (
        "dataset_name=file",
        f"dataset_file={folder / 'g.npz'}",
        f"partition_dir={folder}",
        *LEAN,
    )
    run_main("app=partition_data", "task=link_prediction", *data, cwd=folder)
    common = ("--config-name", "link_prediction_gcn", "task.scorer=distmult", *data)
    ended = run_main(*common, "app=train", f"hydra.run.dir={folder / 'run'}", cwd=folder)
    assert "Adamic-Adar" in ended.stdout
    return folder, common


def summary_of(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def test_rounds_send_no_rows_and_the_plan_has_every_byte(run: Any) -> None:
    folder, common = run
    summary = summary_of(folder / "run", "summary.json")
    run_main(
        *common, "app=plan", "num_rounds=[4,4]", f"hydra.run.dir={folder / 'plan'}", cwd=folder
    )
    planned = summary_of(folder / "plan", "plan.json")
    assert summary["rounds"] == [4, 4]
    assert_sent_as_planned(planned, summary)
    sent = summary["bytes"]["by_kind"]
    assert min(sent[kind] for kind in ("features", "embeddings", "predictions")) > 0


def test_a_trained_model_is_evaluated_as_training_did(run: Any) -> None:
    folder, common = run
    out = folder / "evaluate"
    arguments = ("app=evaluate", f"checkpoint_dir={folder / 'run'}", f"hydra.run.dir={out}")
    run_main(*common, *arguments, cwd=folder)
    evaluation, summary = (
        summary_of(out, "evaluation.json"),
        summary_of(folder / "run", "summary.json"),
    )
    for name in ("test", "baselines"):
        assert evaluation[name] == summary[name]


def test_partners_are_the_best_without_an_edge_and_pairs_have_their_scores(
    run: Any, tmp_path: Path
) -> None:
    """Scores are paths alone, so that many are equal."""
    folder, common = run
    answered = shutil.copytree(folder / "run", tmp_path / "run")
    edit_model(answered / "checkpoint", lambda content: content["answer"].update(paths=1))
    split = split_links(graph(), split_settings(seed=42))
    (tmp_path / "none.csv").write_text("id\n")
    nobody = (
        "predict.top=5",
        f"predict.nodes={tmp_path / 'none.csv'}",
        f"checkpoint_dir={answered}",
    )
    refused = run_main(
        *common, "app=predict", *nobody, f"hydra.run.dir={tmp_path / 'nobody'}", cwd=folder, rc=2
    )
    assert "has no ids" in refused.output
    sources = [3, int(split.rows["test"][0, 0]), 55]
    (tmp_path / "nodes.csv").write_text("id\n" + "".join(f"node {node}\n" for node in sources))
    every = [(u, v) for u in sources for v in range(NODES)]
    (tmp_path / "pairs.csv").write_text(
        "src,dst\n" + "".join(f"node {u},node {v}\n" for u, v in every)
    )
    for name, asked in (
        ("top", ("predict.top=5", f"predict.nodes={tmp_path / 'nodes.csv'}")),
        (
            "train",
            (
                "predict.top=40",
                f"predict.nodes={tmp_path / 'nodes.csv'}",
                "predict.known=train",
            ),
        ),
        ("pairs", (f"predict.pairs={tmp_path / 'pairs.csv'}",)),
    ):
        arguments = ("app=predict", "predict.format=csv", f"checkpoint_dir={answered}", *asked)
        run_main(*common, *arguments, f"hydra.run.dir={tmp_path / name}", cwd=folder)

    def lines(name: str) -> list[Any]:
        rows = [
            line.split(",")
            for line in (tmp_path / name / "predictions.csv").read_text().splitlines()
        ]
        assert rows[0] == ["id", "partner", "score"]
        return [(int(src[5:]), int(dst[5:]), float(score)) for src, dst, score in rows[1:]]

    scores = {(u, v): score for u, v, score in lines("pairs")}
    assert scores.keys() == set(every)
    loaded, directory = load_run(answered), next(folder.glob("g-links-*-2"))
    named = [(f"node {u}", f"node {v}") for u, v in every]
    assert loaded.score(directory, named) == pytest.approx(
        [scores[pair] for pair in every], rel=1e-5
    )
    with pytest.raises(InputError, match="pairs: the graph has no node with the id node 99"):
        loaded.score(directory, [("node 99", "node 1")])
    known = set(zip(*(ends.tolist() for ends in split.known()), strict=True))
    trained_on = set(
        zip(split.graph.edges.src.tolist(), split.graph.edges.dst.tolist(), strict=True)
    )
    for name, left_out, top in (("top", known, 5), ("train", trained_on, 40)):
        for node in sources:
            new = [v for v in range(NODES) if v != node and (node, v) not in left_out]
            best = sorted(new, key=lambda v: -scores[node, v])[:top]
            partners = [(v, score) for u, v, score in lines(name) if u == node]
            assert [score for _, score in partners] == pytest.approx(
                [scores[node, v] for v in best], rel=1e-5, abs=1e-6
            )
            assert len({v for v, _ in partners}) == len(partners)
            assert [score for _, score in partners] == pytest.approx(
                [scores[node, v] for v, _ in partners], rel=1e-5, abs=1e-6
            )
    assert any((u, v) in known for u, v, _ in lines("train"))


def test_a_graph_in_memory_has_the_spectral_filter_of_training(run: Any, tmp_path: Path) -> None:
    """The share of its score was chosen with this one."""
    folder, _ = run
    answered = shutil.copytree(folder / "run", tmp_path / "run")
    shares = {"spectral": 1.0, "paths": 0.0}
    edit_model(answered / "checkpoint", lambda content: content["answer"].update(shares))
    links = json.loads(next(folder.glob("g-links-*-2/meta.json")).read_text())["links"]
    columns, a, b, c = (links[name] for name in FILTER)
    pairs = split_links(graph(), split_settings(edges=(1.0, 0.0, 0.0))).rows["train"]
    rows = decompose(pairs, NODES, columns, a).embed(columns, b / a, c)
    expected = (rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(axis=1)
    named = [(f"node {u}", f"node {v}") for u, v in pairs.tolist()]
    scores = load_run(answered).attach(folder / "g.npz").score(named)
    assert scores / scores.mean() == pytest.approx(expected / expected.mean(), rel=1e-3, abs=1e-5)


def test_a_loaded_model_scores_pairs_of_a_relation_as_its_partitions_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model does not read relations, though its edges have one."""
    monkeypatch.setattr(embedded_nodes, "MAX_SCORES", 4)
    monkeypatch.setattr(embedded_nodes, "MIN_SOURCES", 1)
    rng, data = np.random.default_rng(0), tmp_path / "shop"
    bought = [(f"u{u}", f"i{v}") for u, v in rng.integers((12, 9), size=(40, 2)).tolist()]
    files = {"edges/user__bought__item.csv": pd.DataFrame(bought, columns=["src", "dst"])}
    for kind, count in (("user", 12), ("item", 9)):
        ids = [f"{kind[0]}{node}" for node in range(count)]
        files[f"nodes/{kind}.csv"] = pd.DataFrame({"id": ids, "x": rng.random(count)})
    write_files(data, files)
    run_main(
        *("--config-name", "link_prediction_sage", "app=train", "dataset_name=file", *LEAN[:-1]),
        *(f"dataset_file={data}", f"partition_dir={tmp_path}", "num_partitions=1"),
        *("task.relation=bought", "split.edges=[1.0,0.0,0.0]", f"hydra.run.dir={tmp_path}/run"),
        cwd=tmp_path,
    )
    pairs = [(f"user:{u}", f"item:{v}") for u, v in bought]
    partitioned = load_run(tmp_path / "run")
    expected = partitioned.score(tmp_path / "shop-links-random-vol-1", pairs)
    model = retexo.load(tmp_path / "run").attach(data)
    assert model.score(pairs) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    directory = tmp_path / "shop-links-random-vol-1"
    assert partitioned.score(directory, bought) == pytest.approx(expected)
    assert model.score(bought) == pytest.approx(model.score(pairs))
    assert model.top(["u3"], 2).partner.tolist() == model.top(["user:u3"], 2).partner.tolist()
    unknown = {f"i{item}" for item in range(9)} - {item for user, item in bought if user == "u3"}
    best = model.top(["u1", "u3"], 9).query("id.str.endswith('u3')")
    assert {partner.removeprefix("item:") for partner in best.partner} == unknown
    assert best.score.is_monotonic_decreasing
    assert best.score.tolist() == pytest.approx(
        model.score([("u3", partner.removeprefix("item:")) for partner in best.partner])
    )
    with pytest.raises(InputError, match="output=json: choose one of frame, tensors, arrays"):
        model.top(["u3"], output="json")
    with pytest.raises(InputError, match="user:i3"):
        model.score([("i3", "i4")])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (
            ("app=train", "gradient=fp32", "exchange=fp32", "gradient.secure=true"),
            "gradient.secure=true",
        ),
        (
            (
                "app=partition_data",
                "task=link_prediction",
                "task.relation=a__b__c",
                "overwrite=true",
            ),
            "has one type of nodes",
        ),
        (("app=predict", "predict.top=5"), "predict.nodes"),
        (("app=predict", "predict.pairs=unknown.csv"), "the graph has no node with the id node 99"),
        (("app=predict", "predict.pairs=none.csv"), "predict.pairs=none.csv: expected"),
        (
            ("app=predict", "predict.pairs=unknown.csv", "predict.known=train"),
            "predict.known=train: only for predict.top",
        ),
        (
            ("app=evaluate", "task=node_classification", "smoothing.steps=0"),
            "task=node_classification",
        ),
        (("app=train", "trainer=sign"), "trainer=sign: task=link_prediction"),
        (("app=train", "smoothing.steps=2"), "smoothing.steps=2"),
        (("app=train", "model=gat", "heads=2"), "task.cut_edges=skip"),
        (("app=train", "task.scorer=cosine"), "task.scorer=cosine"),
        (("app=train", "task=node_classification", "task.scorer=auto"), "no partition directory"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments: tuple[str, ...], named: str, run: Any) -> None:
    folder, common = run
    (folder / "unknown.csv").write_text("node 1,node 99\n")
    place = f"hydra.run.dir={folder / 'refused' / str(abs(hash(arguments)))}"
    ended = run_main(
        *common, *arguments, f"checkpoint_dir={folder / 'run'}", place, cwd=folder, rc=2
    )
    assert named in ended.output
