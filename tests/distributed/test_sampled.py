"""trainer=sampled: full neighbourhoods equal full-graph training; dead processes are named; bad
input is rejected.
"""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pytest
from support import (
    Ended,
    finish,
    graph_info,
    group_members,
    kill_group,
    need_dgl,
    random_graph,
    start_cli,
    thirds,
    train_settings,
    wait_until,
    write_partitions,
)

from partitioning import dgl_import
from partitioning.directory.read_directory import find
from partitioning.errors import InputError
from retexo.apps import evaluate, train
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings
from retexo.trainers import sampled
from retexo.trainers.sampled_dgl.client import SHARED_MEMORY
from retexo.worker import graph

WORLD = 2
MODELS = ("gcn", "sage", "gin", "gat")
DATA = ("dataset_name=file", "dataset_file=toy.npz", f"num_partitions={WORLD}")
ALIKE = (
    "hidden_dim=8",
    "dropout=0",
    "num_rounds=[5]",
    "stopping=none",
    "device=cpu",
    "cluster.threads=1",
    "optimizer._target_=torch.optim.SGD",
    "learning_rate=[0.5]",
    "best_val_model=false",
    "base=published",
)
PROCESS = 100 << 20
"""Less memory than a process with torch and DGL uses."""
LONG = pytest.mark.long("each starts two servers and two trainers")
SAMPLED = ("trainer=sampled", "sampled.fanout=[-1]", "batch_size=1000")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    masks = thirds(60)
    assignment = [
        int(node >= 36) for node in range(60)
    ]  # 12 and 8 training nodes: two labels travel
    write_partitions(folder, random_graph(60, 240), masks, assignment, WORLD, with_dgl_files=True)
    return folder


def settings(parts: Path, model: str, *more: str) -> Settings:
    return compose([*DATA, f"partition_dir={parts}", *more], f"node_classification_{model}")


def losses(run_dir: Path) -> np.ndarray:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return np.array([[line[name] for name in ("train_loss", "val_metric")] for line in lines[:-1]])


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("model", "trainers"), [("gcn", 2), *(pytest.param(name, 1, marks=LONG) for name in MODELS)]
)
def test_all_neighbours_are_full_graph_training(
    parts: Path, tmp_path: Path, model: str, trainers: int
) -> None:
    """With all neighbours and full batches, every round equals that of trainer=full_graph."""
    given = *ALIKE, *SAMPLED, f"sampled.trainers={trainers}"
    found = train.run(settings(parts, model, *given), tmp_path / "sampled")
    wanted = train.run(settings(parts, model, *ALIKE, "trainer=full_graph"), tmp_path / "full")
    np.testing.assert_allclose(losses(tmp_path / "sampled"), losses(tmp_path / "full"), rtol=1e-4)
    assert found["rounds"] == wanted["rounds"]
    for name in ("train", "val", "test"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-4)
    assert found.keys() == wanted.keys()
    more = np.subtract(found["peak_memory_bytes"], wanted["peak_memory_bytes"])
    assert min(more) > trainers * PROCESS  # the servers and the further trainers are among them
    kinds = found["bytes"]["by_kind"]
    assert (
        min(kinds[name] for name in ("structure", "labels", "features", "metrics", "gradients")) > 0
    )
    # A label is an int64, asked for by an int64 beside the pickled name, in each of the rounds that
    # use a batch.
    assert kinds["labels"] % 5 == 0
    asked = ["app=evaluate", f"checkpoint_dir={tmp_path / 'sampled'}"]
    assert evaluate.run(settings(parts, model, *asked), tmp_path / "again")[
        "test"
    ] == pytest.approx(found["test"], rel=1e-4)


def start(parts: Path, run_dir: Path, *more: str) -> Any:
    """Start a long run and wait until it trains."""
    need_dgl()
    small = (
        "hidden_dim=8",
        "num_rounds=[100000]",
        "stopping=none",
        "cluster.threads=1",
        "trainer=sampled",
        "distributed.heartbeat_timeout=4",
    )
    process = start_cli(
        "--config-name",
        "node_classification_sage",
        *DATA,
        f"partition_dir={parts}",
        *small,
        *more,
        f"hydra.run.dir={run_dir}",
        cwd=run_dir.parent,
    )
    log = run_dir / "metrics.jsonl"

    def trains() -> bool:
        return log.exists() and log.read_text().count("\n") > 2

    try:
        wait_until(lambda: process.poll() is not None or trains(), 110, "rounds")
    except BaseException:
        kill_group(process.pid)
        raise
    return process


def running(group: int, module: str) -> list[psutil.Process]:
    return [each for each in group_members(group) if module in each.cmdline()]


@LONG
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("who", "how", "said"),
    [
        (
            "server",
            signal.SIGKILL,
            "cannot continue: the DGL server of its partition was killed by SIGKILL",
        ),
        ("server", signal.SIGSTOP, "the DGL server of its part was stopped"),
        ("trainer", signal.SIGKILL, "was killed by SIGKILL"),
        (
            "batches",
            signal.SIGKILL,
            "cannot continue: trainer 1 of its partition was killed by SIGK",
        ),
    ],
)
def test_who_dies_is_named(
    parts: Path, tmp_path: Path, who: str, how: signal.Signals, said: str
) -> None:
    process = start(parts, tmp_path / "run", *["sampled.trainers=2"] * (who == "batches"))
    found = running(process.pid, "retexo.trainers.sampled_dgl.server")
    assert len(found) == WORLD
    for server in found:
        listening = {
            each.laddr.ip
            for each in server.net_connections("inet")
            if each.status == psutil.CONN_LISTEN
        }
        assert listening <= {"127.0.0.1"}
    workers = [server.ppid() for server in found]
    others = running(process.pid, "retexo.trainers.sampled_dgl.batches")
    victim = {"server": found, "batches": others, "trainer": [found[0].parent()]}[who][0]
    assert victim is not None
    os.kill(victim.pid, how)
    ended: Ended = finish(process, timeout=60)
    assert ended.rc == 1
    last = ended.stderr.splitlines()[-1]
    assert "rank " in last
    assert said in last
    assert "phase: round" in last
    wait_until(lambda: not group_members(process.pid), 20, "all processes have ended")
    assert not [name for worker in workers for name in SHARED_MEMORY.glob(f"retexo-{worker}-*")]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("gradient=local",), "set gradient=sync"),
        (("gradient.secure=true",), "lets all workers read"),
        (("exchange.precision=bf16",), "exchange.precision=bf16"),
        (("sampled.fanout=[-2]",), "sampled.fanout"),
        (("sampled.fanout=many",), "sampled.fanout"),
        (
            ("parts_per_node=1", "distributed.backend=sockets", "distributed.credentials=keys"),
            "sends unencrypted",
        ),
    ],
)
def test_what_is_refused(
    parts: Path, tmp_path: Path, overrides: tuple[str, ...], words: str
) -> None:
    need_dgl()
    with pytest.raises(InputError, match=words.replace("[", r"\[")):
        train.run(settings(parts, "sage", "trainer=sampled", *overrides), tmp_path / "run")


def test_graphs_of_other_kinds_are_refused(parts: Path, tmp_path: Path) -> None:
    need_dgl()
    for config, words in (
        ("link_prediction_sage", "task=link_prediction needs trainer=lazy or full_graph"),
        ("node_classification_rgcn", "trainer=sampled: not for heterogeneous graphs"),
    ):
        given = compose([*DATA, f"partition_dir={parts}", "trainer=sampled"], config)
        with pytest.raises(InputError, match=words):
            train.run(given, tmp_path / "run")
    given = train_settings("trainer=sampled", "num_partitions=2")
    directory = find([parts / "toy-random-vol-2"], WORLD)
    graph.check_directory(given, directory)
    with (
        mock.patch.object(type(directory), "sites", ("a", "b")),
        pytest.raises(
            InputError,
            match="dataset_name=parts: trainer=sampled lets all workers read all rows and label",
        ),
    ):
        graph.check_directory(given, directory)
    for known in ({"weighted": True}, {"num_edge_features": 3}):
        context: Any = SimpleNamespace(settings=given, graph_info=graph_info(**known))
        with pytest.raises(InputError, match="does not support edge weights or edge features"):
            sampled.train(context, [])


def test_without_dgl_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dgl_import, "has_dgl", lambda: False)
    with pytest.raises(InputError, match="trainer=sampled: needs DGL, which is not installed"):
        train.run(settings(tmp_path, "sage", "trainer=sampled"), tmp_path / "run")


def test_it_needs_dgls_files(tmp_path: Path) -> None:
    write_partitions(
        tmp_path, random_graph(60, 240), thirds(60), [node % 2 for node in range(60)], WORLD
    )
    need_dgl()
    with pytest.raises(InputError, match=r"partition again with partition\.dgl_files=true"):
        train.run(settings(tmp_path, "sage", "trainer=sampled"), tmp_path / "run")
