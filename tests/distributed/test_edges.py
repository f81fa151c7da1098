"""Weights and features of edges: P parts equal one, and a weight of k is k edges.

The exchange sends weights only where that saves bytes. Features of typed edges are followed from
tables to predictions.
"""

import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import test_trainers
import torch
from graph_files import write_files
from support import MODELS, dgl_directory, make_plan, with_arrays, write_partitions
from test_oracle import (
    SKIPS,
    assert_same,
    assignment,
    join_workers,
    oracle_graph,
    oracle_masks,
    settings_of,
    train_as_threads,
)

from examples.make_sites import write_sites
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.graph.graph_data import GraphData
from partitioning.sites.site_folders import find_sites
from retexo import load_run
from retexo.apps import predict, train
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.exchange.exchange_plan import PlanOptions
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings
from retexo.trainers.context import edge_means

HOPS = (*SKIPS, "smoothing.reach=hops")
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "gcn": ("few", MODELS["gcn"]),
    "gcn-spread": ("spread", MODELS["gcn"]),
    "gcn-plain": ("few", (*MODELS["gcn"], "exchange=plain")),
    "gcn-skips": ("few", (*MODELS["gcn"], *SKIPS)),
    "sage-mean": ("few", MODELS["sage-mean"]),
    "gin": ("few", MODELS["gin"]),
    "gat": ("few", MODELS["gat-mean"]),
    "gat-hops": ("few", (*MODELS["gat-mean"], *HOPS)),
    "gcn-features": ("features", (*MODELS["gcn"], *SKIPS)),
    "sage-mean-features": ("features", MODELS["sage-mean"]),
    "sage-pool-features": ("features-alone", MODELS["sage-pool"]),
    "gat-features": ("features", MODELS["gat-mean"]),
}


def graph_of(kind: str) -> GraphData:
    graph, rng = oracle_graph("dense"), np.random.default_rng(11)
    weights: dict[str, Any] = {
        "few": rng.choice(np.array([0, 0.5, 1, 3], np.float32), graph.num_edges),
        "spread": rng.random(graph.num_edges, np.float32) + np.float32(0.1),
    }
    weight = weights["few"] if kind == "features" else weights.get(kind)
    feat = (
        rng.standard_normal((graph.num_edges, 3)).astype(np.float32)
        if kind.startswith("features")
        else None
    )
    return with_arrays(graph, edge_weight=weight, edge_feat=feat)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @functools.cache
    def of(num_parts: int, case: str) -> Any:
        kind, settings = CASES[case]
        graph = graph_of(kind)
        folder = tmp_path_factory.mktemp("edges")
        directory = write_partitions(
            folder, graph, oracle_masks(), assignment(num_parts), num_parts
        )
        return join_workers(
            train_as_threads(
                num_parts, (directory, settings_of(num_parts, *settings, "num_rounds=[3]"), 1 << 18)
            )
        )

    return of


LONG = pytest.mark.long("this case runs with another number of parts")


@pytest.mark.parametrize(
    ("case", "num_parts"),
    [
        pytest.param(case, num_parts, marks=[] if place % 3 == turn else LONG)
        for place, case in enumerate(CASES)
        for turn, num_parts in enumerate((2, 4, 7))
    ],
)
def test_parts_equal_one_part(trained: Any, case: str, num_parts: int) -> None:
    assert_same(trained(num_parts, case), trained(1, case.removesuffix("-plain")))


@pytest.mark.parametrize("case", ["gcn", "gat", "gcn-features", "gat-features"])
def test_edges_make_a_difference(trained: Any, case: str) -> None:
    """Weights and features change the network; otherwise the tests above would prove nothing."""
    plain = {
        "gcn": "gcn-spread",
        "gat": "gat-features",
        "gcn-features": "gcn-skips",
        "gat-features": "gat",
    }[case]
    assert not np.allclose(trained(1, case)[1][0][:, :4], trained(1, plain)[1][0][:, :4])


def test_a_directory_of_dgl_with_edata(trained: Any, tmp_path: Path) -> None:
    """Degrees are asked for; halo edges of DGL's are no in-edges."""
    directory = dgl_directory(tmp_path, graph_of("few"), oracle_masks(), assignment(4))
    settings = settings_of(4, *MODELS["gcn"], "num_rounds=[3]")
    assert_same(
        join_workers(train_as_threads(4, (directory, settings, 1 << 18))), trained(1, "gcn")
    )


def test_the_mean_over_the_in_edges_is_weighted(tmp_path: Path) -> None:
    graph = graph_of("features")
    part = write_partitions(tmp_path, graph, oracle_masks(), assignment(1), 1).read_part(0)
    in_degree = part.edges.sum_at(part.edges.dst, part.num_inner)
    means = edge_means(part.edges, in_degree, torch.float64)
    between = graph.edges.src != graph.edges.dst
    for node in range(60):
        into = (graph.edges.dst == node) & between
        weight = graph.edges.edge_weight[into].astype(float)
        total = weight.sum()
        expected = (
            graph.edges.edge_weight[into].astype(float)
            @ graph.edges.edge_feat[into].astype(float)
            / total
            if total
            else [0] * 3
        )
        np.testing.assert_allclose(means[node], expected, rtol=1e-12)  # type: ignore[index]


def make_plans(directory: PartitionDirectory, num_parts: int, vector_bytes: int) -> list[Any]:
    sizes = tuple(directory.read_part(part).num_inner for part in range(num_parts))
    options = PlanOptions(
        2, sizes, True, True, False, vector_bytes=(vector_bytes, vector_bytes // 100)
    )

    def work(comm: Communicator) -> Any:
        return make_plan(directory.read_part(comm.rank), options, comm), int(
            comm.meter.table(2).sum()
        )

    return run_threads(num_parts, work)


def test_weights_are_told_where_they_pay(tmp_path: Path) -> None:
    """Both ends have the weights of targets with several edges, where sums save more.

    Those are pairs of partitions where sums save more than weights take.
    """
    directory = write_partitions(tmp_path, graph_of("few"), oracle_masks(), assignment(2), 2)
    with_weights = make_plans(directory, 2, 1 << 20)
    for rank, (plan, _) in enumerate(with_weights):
        incoming, outgoing = plan.incoming[1 - rank], with_weights[1 - rank][0].outgoing[rank]
        np.testing.assert_array_equal(incoming.weight, outgoing.weight)
        several = np.bincount(incoming.target)[incoming.target] > 1
        np.testing.assert_array_equal(np.isnan(incoming.weight), ~several)
        assert 0 < several.sum() < len(several)
    without_weights = make_plans(directory, 2, 0)
    for plan, _ in without_weights:
        assert all(np.isnan(boundary.weight).all() for boundary in (*plan.incoming, *plan.outgoing))
    num_sent = [
        int((~np.isnan(plan.incoming[1 - rank].weight)).sum())
        for rank, (plan, _) in enumerate(with_weights)
    ]
    more = sum(sent for _, sent in with_weights) - sum(sent for _, sent in without_weights)
    assert more == sum(
        2 + 4 * 4 + (2 * count + 7) // 8 for count in num_sent
    )  # two bits for one of four values


def test_a_maximum_takes_no_weights(tmp_path: Path) -> None:
    directory = write_partitions(tmp_path, graph_of("few"), oracle_masks(), assignment(1), 1)
    with pytest.raises(
        InputError, match=r"model.aggregator=pool: the edges have weights, .* model.aggregator=mean"
    ):
        train_as_threads(1, (directory, settings_of(1, *MODELS["sage-pool"]), 1 << 18))


# --- other trainers ----------

TRAINERS = {
    "full_graph": ("few", "gcn", "num_layers=3", "trainer=full_graph"),
    "full_graph-gat": ("features", "gat-mean", "num_layers=2", "trainer=full_graph"),
    "bns": ("few", "sage-mean", "num_layers=2", "trainer=bns", "bns.p=1"),
    "fedgcn": ("few", "gcn", "num_layers=2", "trainer=fedgcn"),
    "sign": ("few", "gcn", "num_layers=2", "trainer=sign"),
}


def train_and_join(
    folder: Path, num_parts: int, graph: GraphData, model: str, *settings: str
) -> np.ndarray:
    directory = write_partitions(folder, graph, oracle_masks(), assignment(num_parts), num_parts)
    return test_trainers.joined_logits(
        test_trainers.train_workers(
            directory, settings_of(num_parts, *MODELS[model], "num_rounds=[3]", *settings)
        )
    )


@pytest.mark.parametrize("case", TRAINERS)
def test_other_trainers_take_weights(case: str, tmp_path: Path) -> None:
    kind, *settings = TRAINERS[case]
    one_part = train_and_join(tmp_path / "1", 1, graph_of(kind), *settings)
    np.testing.assert_allclose(
        train_and_join(tmp_path / "4", 4, graph_of(kind), *settings),
        one_part,
        rtol=1e-8,
        atol=1e-11,
    )
    assert not np.allclose(
        train_and_join(tmp_path / "0", 1, oracle_graph("dense"), *settings), one_part, rtol=1e-3
    )


def test_features_of_edges_that_a_trainer_does_not_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trainer=sign: the edges have features, .* trainer=lazy"):
        train_and_join(tmp_path, 1, graph_of("features"), "gcn", "num_layers=2", "trainer=sign")


def test_sites_equal_a_directory(trained: Any, tmp_path: Path) -> None:
    """They ask for degrees, which are sums of weights."""
    graph, parts = graph_of("features"), assignment(4)
    write_sites(tmp_path, graph, oracle_masks(), parts, ["a", "b", "c", "d"])
    settings = settings_of(4, *CASES["gcn-features"][1], "num_rounds=[3]")
    assert_same(
        join_workers(train_as_threads(4, (find_sites(tmp_path, 4), settings, 1 << 18))),
        trained(1, "gcn-features"),
    )


ACCOUNTS, SHOPS, PAYMENTS = 120, 15, 700
EDGES = "edges/shop__paid_by__account.csv"


def write_tables(folder: Path, *, seed: int = 0) -> Path:
    """An account's class is whether its payments are large on average; nothing else tells it."""
    rng = np.random.default_rng(seed)
    account = np.concatenate((np.arange(ACCOUNTS), rng.integers(ACCOUNTS, size=PAYMENTS)))
    amount = rng.normal(500, 100, len(account)) + 300 * (account % 2)
    payments = pd.DataFrame(
        {
            "src": rng.integers(SHOPS, size=len(account)),
            "dst": account,
            "amount": amount.round(2),
            "kind": rng.choice(["card", "cash"], len(account)),
        }
    )
    payments.loc[::9, "amount"] = np.nan
    classes = np.where(np.arange(ACCOUNTS) % 2, "large", "small")
    nodes = pd.DataFrame({"id": np.arange(ACCOUNTS), "label": classes})
    accounts = nodes.assign(age=rng.integers(18, 90, ACCOUNTS))
    shops = pd.DataFrame({"id": np.arange(SHOPS), "area": rng.random(SHOPS)})
    files = {EDGES: payments, "nodes/account.csv": accounts, "nodes/shop.csv": shops}
    return write_files(folder, files)


def table_settings(tables: Path, app: str, parts: int, *more: str, model: str = "rgcn") -> Settings:
    common = (
        f"app={app} dataset_name=file dataset_file={tables} num_partitions={parts}"
        f" partition_dir={tables}-parts{parts}{app}{len(more)} device=cpu cluster.threads=1"
    )
    return compose([*common.split(), *more], f"node_classification_{model}")


TRAIN = (
    "+experiment=exact",
    *("split=fraction", "split.train=0.5", "split.val=0.2", "split.test=0.3"),
    *("hidden_dim=8", "heads=2", "dropout=0", "num_rounds=[30]", "learning_rate=[0.05]", "seed=0"),
    *("stopping=none", "smoothing.steps=0", "classifiers=last", "best_val_model=false"),
    "num_layers=2",
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tables(Path(tmp_path_factory.mktemp("typed")) / "payments")


def test_what_they_tell_is_learned_on_any_number_of_parts(
    tables: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Reordered and additional columns change no prediction; a missing column is refused."""
    probabilities = {}
    for parts in (1, 3):
        run_dir = tmp_path / f"run{parts}"
        summary = train.run(table_settings(tables, "train", parts, *TRAIN), run_dir)
        assert summary["test"]["accuracy"] > 0.9
        directory = next(tables.parent.glob(f"payments-parts{parts}*/*"))
        probabilities[parts] = load_run(run_dir).predict(directory).probabilities
    np.testing.assert_allclose(probabilities[1], probabilities[3], atol=1e-4)
    of_one = load_run(tmp_path / "run1").predict(directory).probabilities
    np.testing.assert_allclose(of_one, probabilities[1], atol=1e-5)

    payments = pd.read_csv(tables / EDGES)
    changed = payments[["kind", "dst", "amount", "src"]].sample(frac=1, random_state=0)
    for name, edges in (
        ("same", changed.assign(note=1.5)),
        ("odd", payments.replace("cash", "shells")),
        ("fewer", payments.drop(columns="amount")),
    ):
        shutil.copytree(tables, tmp_path / name)
        edges.to_csv(tmp_path / name / EDGES, index=False)
    overrides = (f"checkpoint_dir={tmp_path / 'run1'}", "predict.format=npy")

    def predict_tables(name: str) -> np.ndarray:
        predict.run(
            table_settings(tmp_path / name, "predict", 2, *overrides), tmp_path / f"{name}-out"
        )
        table = np.load(tmp_path / f"{name}-out" / "predictions.npy")
        return np.column_stack([table["p0"], table["p1"]])

    np.testing.assert_allclose(predict_tables("same"), probabilities[1], atol=1e-5)
    assert "`note`: left out, the model was trained without them" in caplog.text
    predict_tables("odd")
    assert "rows have a category that the model does not know" in caplog.text
    with pytest.raises(InputError, match=r"no table has such a column|no column `?amount"):
        predict_tables("fewer")
