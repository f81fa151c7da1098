"""Heterogeneous graphs, in float64 with plain SGD: P partitions equal one.

One partition equals a closed form on dense matrices. End-to-end training is compared likewise, its
bytes are counted by hand, and whole runs send what app=plan says.
"""

import copy
import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hetero_support import (
    hetero_parts,
    random_assignment,
    random_hetero,
    write_hetero,
    write_hetero_sites,
)
from support import (
    RANDOM_STATE,
    RoundRecorder,
    assert_sent_as_planned,
    graph_info,
    random_graph,
    thirds,
    train_settings,
    write_partitions,
)
from test_resume import run_until_death
from torch import Tensor

from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import find_partition_directory
from partitioning.errors import InputError
from partitioning.graph.graph_data import GraphData, Relation
from retexo import load_run
from retexo.apps import evaluate, plan, predict, train
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import KINDS
from retexo.errors import TrainingError
from retexo.models.conv import rgcn
from retexo.models.network import Architecture, build_network, projections
from retexo.results.predictions import read_table
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings, TrainSettings
from retexo.tasks.output_heads import choose_heads
from retexo.trainers import registry, sign
from retexo.trainers.context import Clock, Context
from retexo.trainers.label_propagation import make_smoother, propagate
from retexo.worker.make_context import make_context, schema_of

pytestmark = pytest.mark.timeout(120)
SIZES = {"movie": (40, 6), "person": (25, 4), "studio": (5, 0), "city": (6, 3), "film fan": (9, 2)}
RELATIONS = {
    ("person", "acts_in", "movie"): 90,
    ("movie", "rev_acts_in", "person"): 90,
    ("person", "directs", "movie"): 30,
    ("studio", "makes", "movie"): 40,
    ("movie", "rev_makes", "studio"): 40,
    ("movie", "sequel_of", "movie"): 12,
    ("city", "home_of", "person"): 25,
    ("film fan", "likes", "movie"): 0,
}
GRAPH = random_hetero(SIZES, RELATIONS, weighted=[("person", "directs", "movie")])
ROUNDS = 3
COMMON = (
    "hidden_dim=12",
    "dropout=0",
    f"num_rounds=[{ROUNDS}]",
    "learning_rate=[0.1]",
    "optimizer._target_=torch.optim.SGD",
    "stopping=none",
    "best_val_model=false",
    "device=cpu",
    "smoothing.steps=3",
)
CASES = {
    "rgcn": ("model=rgcn", "num_layers=3", "+experiment=exact"),
    "sage": (
        "model=hetero_sage",
        "model.norm=none",
        "num_layers=2",
        "+experiment=exact",
        "smoothing.reach=hops",
    ),
    "rgat": ("model=rgat", "heads=2", "num_layers=3", "+experiment=exact", "batch_size=60"),
    "plain": ("model=rgcn", "num_layers=2", "+experiment=exact", "exchange=plain"),
}
ROUNDED = {"bf16": (*CASES["sage"], "exchange.precision=bf16")}


def known_sizes(parts: list[Partition]) -> Any:
    number = {
        name: sum(int(getattr(part, f"{name}_mask").sum()) for part in parts)
        for name in ("train", "val", "test")
    }
    untrained = frozenset(part.rank for part in parts if not part.train_mask.any())
    return graph_info(
        **{f"num_{name}": count for name, count in number.items()},
        num_classes=3,
        untrained_ranks=untrained,
    )


def network(settings: TrainSettings, part: Partition) -> list[Any]:
    """The stages, or the layers of a network that is trained end to end, in float64."""
    return [
        stage.double()
        for stage in build_network(
            Architecture(settings.model, schema_of(part, known_sizes([part])), 3), seed=1
        )
    ]


def context_of(
    settings: TrainSettings, parts: Any, comm: Communicator, first: Any, **more: Any
) -> Context:
    """The context of a worker in float64; first: the first stage or layer."""
    return make_context(
        settings,
        parts[comm.rank],
        known_sizes(parts),
        comm,
        first.conv,
        clock=Clock(),
        dtype=torch.float64,
        **more,
    )


def train_parts(settings: TrainSettings, graph: GraphData = GRAPH) -> dict[str, Any]:
    """Losses of every round, rows of all movies, the trained layers, and bytes by kind.

    Rows are the logits of each layer; of lazy training also the smoothed predictions, and what each
    step of smoothing makes of the last logits, the 0th included.
    """
    num_parts, trainer = settings.num_partitions, registry.find_trainer(settings)
    registry.check_trainer_settings(settings)
    parts = hetero_parts(graph, num_parts)
    layers = network(settings, parts[0])

    def worker(comm: Communicator) -> Any:
        log: Any = RoundRecorder()
        context = context_of(settings, parts, comm, layers[0], log=log, use=trainer.USE)
        with RANDOM_STATE:
            trained = copy.deepcopy(layers)
        rows = [logits.detach() for logits in trainer.train(context, trained).logits]
        if settings.trainer.name == "lazy":
            answer = choose_heads(context, rows, make_smoother(context))[1]
            rows += [answer, *propagate(context, rows[-1], 3)]
        sent = comm.meter.table(len(layers)).sum(dim=(1, 2)).tolist()
        return log.scores, rows, trained, sent

    results = run_threads(num_parts, worker)
    order = torch.cat([part.nodes["movie"].node_ids for part in parts]).argsort()
    return {
        "losses": np.array([score[0] for score in results[0][0] if score[0] is not None]),
        "rows": [
            torch.cat(pieces)[order]
            for pieces in zip(*(result[1] for result in results), strict=True)
        ],
        "layers": results[0][2],
        "sent": dict(
            zip(KINDS, np.sum([result[3] for result in results], axis=0).tolist(), strict=True)
        ),
    }


def outcome(case: str, num_parts: int) -> dict[str, Any]:
    options = (CASES | ROUNDED)[case]
    return train_parts(train_settings(*COMMON, *options, f"num_partitions={num_parts}"))


@functools.cache
def outcome_of_one_part(case: str) -> dict[str, Any]:
    return outcome(case, 1)


LONG = pytest.mark.long("this case runs with another number of parts")


@pytest.fixture
def one_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """All relations of R-GCN with the same source type share one matrix."""
    monkeypatch.setattr(rgcn, "NUM_BASES", 1)


@pytest.mark.usefixtures("one_base")
@pytest.mark.parametrize(
    ("case", "num_parts"),
    [
        pytest.param(case, num_parts, marks=[] if place % 2 == turn else LONG)
        for place, case in enumerate(CASES)
        for turn, num_parts in enumerate((7, 2))
    ],
)
def test_parts_equal_one(case: str, num_parts: int) -> None:
    one, several = outcome_of_one_part(case), outcome(case, num_parts)
    np.testing.assert_allclose(several["losses"], one["losses"], rtol=1e-8)
    for own, other in zip(several["rows"], one["rows"], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-8, atol=1e-10, equal_nan=True)


def test_rounded_rows() -> None:
    """With exchange.precision=bf16 other parts' rows are rounded, a worker's own are not."""
    rounded, exact = outcome("bf16", 4), outcome_of_one_part("sage")
    np.testing.assert_allclose(rounded["losses"], exact["losses"], rtol=1e-2)
    assert np.abs(rounded["losses"] - exact["losses"]).max() > 1e-7
    np.testing.assert_array_equal(outcome_of_one_part("bf16")["losses"], exact["losses"])


def adjacencies() -> dict[Any, Tensor]:
    """[to, from] the weights of edges, without self loops."""
    matrices = {}
    for name, relation in GRAPH.relations.items():
        matrix = torch.zeros(SIZES[name[2]][0], SIZES[name[0]][0], dtype=torch.float64)
        weight = (
            torch.ones(relation.num_edges)
            if relation.edge_weight is None
            else torch.from_numpy(relation.edge_weight)
        )
        ends = torch.from_numpy(relation.dst), torch.from_numpy(relation.src)
        matrix.index_put_(ends, weight.double(), accumulate=True)
        matrix = matrix.fill_diagonal_(0) if name[0] == name[2] else matrix
        matrices[name] = matrix
    return matrices


def divided(matrix: Tensor) -> Tensor:
    total = matrix.sum(1, keepdim=True)
    return matrix / torch.where(total > 0, total, 1)


def means() -> dict[Any, Tensor]:
    """A_r, dense."""
    return {name: divided(matrix) for name, matrix in adjacencies().items()}


def attended(conv: Any, place: int, name: Any, rows: Tensor, own: Tensor, weight: Tensor) -> Tensor:
    """The heads of one relation, side by side."""
    z = (rows @ weight).view(len(rows), conv.attention_heads, -1)
    score = (z * conv.attention_src[place]).sum(-1)[None] + (own @ conv.attention_dst[place])[
        :, None
    ]
    power = torch.nn.functional.leaky_relu(score, 0.2).exp()
    heads = [
        divided(adjacencies()[name] * power[:, :, head]) @ z[:, head]
        for head in range(conv.attention_heads)
    ]
    return torch.cat(heads, dim=1)


@pytest.mark.usefixtures("one_base")
@pytest.mark.parametrize("case", ["rgcn", "sage", "rgat"])
def test_closed_form(case: str) -> None:
    """Stage by stage with the trained parameters, and one step of smoothing."""
    run, mean = outcome_of_one_part(case), means()
    x = {
        name: torch.from_numpy(np.asarray(table.features)).double()
        for name, table in GRAPH.nodes.items()
    }
    part = hetero_parts(GRAPH, 1)[0]
    schema, rows = schema_of(part, known_sizes([part])), x
    raw = [
        mean[name] @ x[name[0]] for name in RELATIONS if name[2] == "movie" and SIZES[name[0]][1]
    ]
    stages = run["layers"]
    for layer, stage in enumerate(stages):
        inputs = (
            raw
            if layer == 0
            else [*raw, *(mean[name] @ rows[name[0]] for name in schema.target_relations(layer))]
        )
        weights = [
            stage.conv.weight_of(g, p)
            for g, group in enumerate(stage.conv.groups)
            for p in range(len(group))
        ]
        products = [matrix @ weight for matrix, weight in zip(inputs, weights, strict=True)]
        if case == "rgat":
            last = schema.target_relations(layer)
            for place, name in enumerate(last):
                number = place + len(products) - len(last)
                products[number] = attended(
                    stage.conv, place, name, rows[name[0]], x["movie"], weights[number]
                )
        groups = [sum(products[: len(raw)]), *([sum(products[len(raw) :])] if layer else [])]
        hidden = torch.cat(
            (x["movie"] @ stage.skips["features"], torch.cat(groups, 1) + stage.conv.bias), dim=1
        )
        hidden = torch.relu(stage.norm(hidden))
        computed = ~run["rows"][layer].isnan().any(1)
        torch.testing.assert_close(
            run["rows"][layer][computed],
            stage.head(hidden).detach()[computed],
            rtol=1e-8,
            atol=1e-10,
        )
        weight = projections(stage, schema, layer)
        rows = {name: matrix for name, matrix in rows.items() if matrix.shape[1]}
        passed = {}
        for to in schema.types_with_rows(layer + 1):
            into = [name for name in schema.relations_into(to) if name[0] in rows]
            near = [
                mean[name] @ rows[name[0]] @ weight[name[0]] for name in into if name[0] in weight
            ]
            far = [mean[name] @ rows[name[0]] for name in into if name[0] not in weight]
            passed[to] = torch.cat([*([sum(near)] if near else []), *far], dim=1)
        rows = passed
        assert layer or ("city" not in weight and rows["person"].shape[1] == stage.conv.width + 3)


def test_smoothing() -> None:
    """One step of smoothing is the mean over persons, studios and sequels."""
    before, after, *_ = outcome_of_one_part("sage")["rows"][-4:]
    mean = means()
    reached = {name: (matrix.sum(1, keepdim=True) > 0).double() for name, matrix in mean.items()}
    persons = mean["movie", "rev_acts_in", "person"] @ before
    studios = mean["movie", "rev_makes", "studio"] @ before
    brought = {
        ("person", "acts_in", "movie"): persons,
        ("person", "directs", "movie"): persons,
        ("studio", "makes", "movie"): studios,
        ("movie", "sequel_of", "movie"): before,
    }
    total = sum(mean[name] @ rows for name, rows in brought.items())
    count = sum(reached[name] for name in brought)
    torch.testing.assert_close(
        after, torch.where(count > 0, total / count.clamp(min=1), before), rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize("num_parts", [1, 4])
def test_hops(num_parts: int) -> None:
    """Two hops of trainer=sign, by the type that the features are of."""
    settings = train_settings(
        *COMMON, "model=rgcn", "num_layers=2", "+experiment=exact", f"num_partitions={num_parts}"
    )
    parts, mean = hetero_parts(GRAPH, num_parts), means()
    stages = network(settings, parts[0])

    def worker(comm: Communicator) -> list[Tensor]:
        context = context_of(settings, parts, comm, stages[0], log=RoundRecorder(), use="evaluate")
        return sign.make_hops(context, stages[0], 2)

    order = torch.cat([part.nodes["movie"].node_ids for part in parts]).argsort()
    hops = [
        torch.cat(list(pieces))[order]
        for pieces in zip(*run_threads(num_parts, worker), strict=True)
    ]
    state = {
        name: {name: torch.from_numpy(np.asarray(table.features)).double()}
        for name, table in GRAPH.nodes.items()
    }
    expected = [state["movie"]["movie"]]
    for _ in range(2):
        brought: dict[str, dict[str, list[Tensor]]] = {}
        for name, matrix in mean.items():
            for origin, rows in state[name[0]].items():
                if rows.shape[1]:
                    brought.setdefault(name[2], {}).setdefault(origin, []).append(matrix @ rows)
        state = {
            name: {
                origin: torch.stack(terms).mean(0)
                for origin, terms in brought.get(name, {}).items()
            }
            for name in state
        }
        expected += state["movie"].values()
    assert len(hops) == len(expected)
    unmatched = list(expected)
    for hop in hops:
        fits = [
            candidate
            for candidate in unmatched
            if candidate.shape == hop.shape
            and torch.allclose(candidate, hop, rtol=1e-8, atol=1e-10)
        ]
        assert fits
        unmatched = [candidate for candidate in unmatched if candidate is not fits[0]]


EPOCHS = 4
ONCE = 2 * 3 * 2 * 3 * 8
"""Bytes of the labels by class of two parts: 3 splits, with or without, 3 classes."""
END_TO_END = (
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
    "rgcn": ("model=rgcn", "num_layers=3"),
    "sage": ("model=hetero_sage", "num_layers=2"),
    "rgat": ("model=rgat", "heads=2", "num_layers=3"),
}


def settings_of(model: str, num_parts: int, *more: str) -> TrainSettings:
    return train_settings(*END_TO_END, *MODELS[model], f"num_partitions={num_parts}", *more)


@functools.cache
def train_one_part(model: str) -> dict[str, Any]:
    return train_parts(settings_of(model, 1, "trainer=full_graph"))


def assert_equal(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    np.testing.assert_allclose(actual["losses"], expected["losses"], rtol=1e-8)
    torch.testing.assert_close(actual["rows"], expected["rows"], rtol=1e-7, atol=1e-9)
    assert expected["losses"][-1] < expected["losses"][0]


@pytest.mark.usefixtures("one_base")
@pytest.mark.parametrize(("model", "num_parts"), [("rgcn", 4), ("sage", 4), ("rgat", 2)])
def test_full_graph_equals_one_part(model: str, num_parts: int) -> None:
    several_parts = train_parts(settings_of(model, num_parts, "trainer=full_graph"))
    assert_equal(several_parts, train_one_part(model))
    assert several_parts["sent"]["embeddings"] > 0


@pytest.mark.usefixtures("one_base")
def test_local_training_has_the_edges_within_parts() -> None:
    owner, within = random_assignment(GRAPH, 4), {}
    for (source, name, to), edges in GRAPH.relations.items():
        is_within = owner[to][edges.dst] == owner[source][edges.src]
        weight = None if edges.edge_weight is None else edges.edge_weight[is_within]
        within[source, name, to] = Relation(edges.src[is_within], edges.dst[is_within], weight)
    local = train_parts(settings_of("rgcn", 4, "trainer=local"))
    full_graph = settings_of("rgcn", 1, "trainer=full_graph")
    assert_equal(local, train_parts(full_graph, replace(GRAPH, relations=within)))
    assert local["sent"]["features"] == local["sent"]["embeddings"] == 0


def test_plain_bytes_are_those_by_hand() -> None:
    """The bytes are one layer's halo rows of persons, studios and sequels, forth and back.

    The parameters' gradients.
    """
    settings = settings_of("sage", 2, "trainer=full_graph", "exchange=plain")
    results = train_parts(settings)
    assert_equal(results, train_one_part("sage"))
    halo = {
        name: sum(part.nodes[name].num_halo for part in hetero_parts(GRAPH, 2)) for name in SIZES
    }
    one_pass = 8 * 8 * sum(halo[name] for name in results["layers"][0].types)  # float64
    parameters = sum(
        parameter.numel() for layer in results["layers"] for parameter in layer.parameters()
    )
    parameters -= (
        2 * 8
    )  # of the relation without edges the weight in the first layer has no gradient
    assert results["sent"]["features"] == 8 * sum(
        halo[name] * width for name, (_, width) in SIZES.items()
    )
    assert (
        results["sent"]["embeddings"] == EPOCHS * 2 * one_pass + one_pass
    )  # the last: the final test
    assert (
        results["sent"]["metrics"] == (EPOCHS + 1) * one_pass + 2 * 40 + ONCE
    )  # the last counts go alone
    assert results["sent"]["gradients"] == EPOCHS * 2 * 8 * (parameters + 5)
    exact = train_parts(settings_of("sage", 2, "trainer=full_graph"))
    assert exact["sent"]["embeddings"] < results["sent"]["embeddings"]


RUN_GRAPH = random_hetero()
SMALL = "hidden_dim=12", "num_rounds=[5]", "cluster.threads=1", "num_partitions=3", "device=cpu"
EXACT = (
    "model=rgcn",
    "num_layers=2",
    "+experiment=exact",
    "checkpoint.every=1",
    "distributed.max_restarts=0",
)
RUN_CASES = [
    ("model=rgcn", "num_layers=2", "smoothing.reach=hops"),
    ("model=hetero_sage", "+experiment=exact", "num_layers=3", "exchange.precision=bf16"),
    ("model=rgat", "num_layers=2", "heads=2", "gradient=local", "local_epochs=2"),
    ("model=rgcn", "num_layers=2", "exchange=plain", "exchange.precision=fp32"),
]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(tmp_path_factory.mktemp("parts"))
    write_hetero(folder, RUN_GRAPH, 3)
    return folder


def settings(parts: Path, app: str, *more: str) -> Settings:
    return compose(
        [
            *SMALL,
            *more,
            f"app={app}",
            "dataset_name=file",
            "dataset_file=toy.npz",
            f"partition_dir={parts}",
        ]
    )


@pytest.fixture(scope="module")
def trained(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Train once for each choice of settings; return the run's folder and its summary."""

    @functools.cache
    def run(*overrides: str) -> tuple[Path, dict[str, Any]]:
        folder = Path(tmp_path_factory.mktemp("run"))
        return folder, train.run(settings(parts, "train", *overrides), folder)

    return run


LONG_RUN = pytest.mark.long("other models and encodings are planned likewise")


@pytest.mark.parametrize(
    "case",
    [
        RUN_CASES[0],
        RUN_CASES[2],
        *(pytest.param(RUN_CASES[number], marks=LONG_RUN) for number in (1, 3)),
    ],
)
def test_what_was_sent_is_what_was_planned(
    case: tuple[str, ...], parts: Path, trained: Any, tmp_path: Path
) -> None:
    _, summary = trained(*case)
    assert_sent_as_planned(plan.run(settings(parts, "plan", *case), tmp_path / "plan"), summary)
    assert summary["bytes"]["by_kind"]["features"] > 0


def refused(*arguments: Any, folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        train.run(settings(*arguments), folder)
    return str(caught.value)


def test_refusals(parts: Path, trained: Any, tmp_path: Path) -> None:
    """Models of the other kind of graph, unsupported trainers and wrong directories are refused."""
    assert "node_classification_rgcn" in refused(parts, "train", "model=gcn", folder=tmp_path)
    write_partitions(tmp_path, random_graph(30, 90), thirds(30), np.arange(30) % 3, 3)
    assert "node_classification_gcn" in refused(tmp_path, "train", "model=rgcn", folder=tmp_path)
    assert "model=rgcn" in refused(tmp_path, "train", "model=rgcn", folder=tmp_path)
    assert "lazy" in refused(parts, "train", "model=rgcn", "trainer=bns", folder=tmp_path)
    assert "model.self_weight" in refused(
        parts, "train", "model=rgcn", "+experiment=retexo", folder=tmp_path
    )
    checkpoint, _ = trained(*RUN_CASES[0])
    with pytest.raises(InputError, match="plain graph"):
        load_run(checkpoint).predict(next(tmp_path.glob("toy-*")))
    other = random_hetero({"movie": (40, 6), "person": (25, 3), "studio": (5, 0)})
    write_hetero(tmp_path / "other", other, 3)
    with pytest.raises((InputError, TrainingError), match="person"):
        evaluate.run(
            settings(tmp_path / "other", "evaluate", f"checkpoint_dir={checkpoint}"),
            tmp_path / "evaluate",
        )
    assert (
        json.loads((checkpoint / "checkpoint" / "model.json").read_text())["architecture"]["target"]
        == "movie"
    )


def test_sites(parts: Path, trained: Any, tmp_path: Path) -> None:
    """Sites equal partitions of the same assignment, and give rows only to those who asked."""
    write_hetero_sites(
        tmp_path / "sites",
        RUN_GRAPH,
        thirds(40),
        random_assignment(RUN_GRAPH, 3),
        ["north", "east", "south"],
    )

    def of_sites(app: str, *more: str) -> Settings:
        sites = "dataset_name=parts", f"dataset_file={tmp_path}/sites"
        return compose([*SMALL, *EXACT, *more, f"app={app}", *sites])

    summary = train.run(of_sites("train"), tmp_path / "run")
    folder, of_directory = trained(*EXACT)
    assert [summary[field] for field in ("test", "rounds")] == [
        of_directory[field] for field in ("test", "rounds")
    ]
    assert summary["bytes"]["by_kind"]["features"] == of_directory["bytes"]["by_kind"]["features"]
    disclosed = json.loads((tmp_path / "run" / "disclosure-1.json").read_text())["to"]
    part = find_partition_directory([*parts.iterdir()], 3).read_part(0)
    asked = sum(int((nodes.halo_owner == 1).sum()) for nodes in part.nodes.values())
    assert disclosed["north"]["nodes_with_rows"] == asked > 0
    assert (tmp_path / "sites/east/asked-person.npz").is_file()
    assert_sent_as_planned(plan.run(of_sites("plan"), tmp_path / "plan"), summary)
    predict.run(
        of_sites("predict", f"checkpoint_dir={tmp_path}/run", "predict.format=npy"),
        tmp_path / "predict",
    )
    table = load_run(folder).predict(next(parts.iterdir()))
    written = read_table(tmp_path / "predict" / "predictions.npy")
    np.testing.assert_array_equal(written["id"], table.ids)
    np.testing.assert_array_equal(written["class"], table.classes)
    limited = ("train", "sites.max_rows_shared=100")
    run_until_death(of_sites(*limited), tmp_path / "died", 60)
    resumed = train.run(of_sites(*limited, "resume=auto"), tmp_path / "died")
    assert resumed["test"] == pytest.approx(summary["test"], rel=1e-5)
    for name in ("layer0.safetensors", "layer1.safetensors"):
        assert (
            len({(tmp_path / run / "checkpoint" / name).read_bytes() for run in ("died", "run")})
            == 1
        )
    with pytest.raises(TrainingError, match=r"sites\.max_rows_shared=1\S*: .* asks for"):
        train.run(of_sites("train", "sites.max_rows_shared=1"), tmp_path / "few")
    for name in ("north", "south"):
        shutil.rmtree(tmp_path / "sites" / name)
    disclosure = plan.run(of_sites("plan"), tmp_path / "plan")
    part = find_partition_directory([*parts.iterdir()], 3).read_part(1)
    assert disclosure["nodes"] == sum(nodes.num_inner for nodes in part.nodes.values())
    expected = {"ids_asked_for": 0, "edges_told": 0}
    for (source, *_), edges in part.relations.items():  # edges from north, which has rank 0
        halo = edges.src[edges.src >= part.nodes[source].num_inner] - part.nodes[source].num_inner
        expected["edges_told"] += int((part.nodes[source].halo_owner[halo] == 0).sum())
    for nodes in part.nodes.values():
        expected["ids_asked_for"] += int((nodes.halo_owner == 0).sum())
    to_north = disclosure["to"]["north"]
    assert {name: to_north[name] for name in expected} == expected
    assert to_north["own_nodes_with_rows"] > 0
