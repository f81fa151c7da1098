"""The command line: mistakes, workers that die, signals, several nodes, every configuration.

Also searches by Hydra's sweepers and launchers, as docs/experiments.md shows them.
"""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
import yaml
from graph_files import flip_bit
from support import (
    finish,
    group_members,
    random_graph,
    read_rounds,
    run_main,
    running_cli,
    save_npz,
    start_cli,
    thirds,
    wait_until,
)

import retexo
from retexo import __main__ as retexo_main
from retexo.apps import train
from retexo.comm.traffic_meter import KINDS
from retexo.errors import TrainingError
from retexo.settings.compose import compose

DATA = ("dataset_name=file", "dataset_file=toy.npz", "partition_dir=parts", "num_partitions=2")
SMALL = ("hidden_dim=8", "num_rounds=[6]", "device=cpu", "cluster.threads=2")
ENDLESS = (
    "app=train",
    *DATA,
    "hidden_dim=8",
    "num_rounds=[1000000]",
    "stopping=none",
    "device=cpu",
    "sleep_time=0.02",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with toy.npz and its two partitions below parts/."""
    folder = Path(tmp_path_factory.mktemp("cli"))
    save_npz(folder / "toy.npz", random_graph(), thirds(40))
    ended = run_main("app=partition_data", *DATA, cwd=folder)
    assert "40 nodes" in ended.stdout
    return folder


# --- mistakes ----------

TRAIN = ("app=train", *DATA, *SMALL)
MISTAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unknown": ((*TRAIN, "num_round=[5]"), ("num_round", "did you mean num_rounds?")),
    "unknown config": (
        ("--config-name", "node_clasification_sage", *TRAIN),
        ("=node_clasification_sage: ", "did you mean node_classification_sage? choose one of"),
    ),
    "other task": (
        ("--config-name", "graph_classification_gcn"),
        ("graph_classification_gcn", "choose one of", "node_classification_gcn"),
    ),
    "plus": ((*TRAIN, "+dataset_name=cora"), ("+dataset_name", "leave the + out")),
    "unknown group": ((*TRAIN, "model=gru"), ("gru",)),
    "misspelt group": (
        (*TRAIN, "model=gcnn"),
        ("model=gcnn: ", "did you mean gcn? choose one of gat,"),
    ),
    "misspelt app": (("app=tran",), ("app=tran: did you mean train? choose one of train,",)),
    "a group that is a number": ((*TRAIN, "model=1.5"), ("model=1.5",)),
    "a variable that is not set": (
        (*TRAIN, "smoothing.reach=${oc.env:NOWHERE_AT_ALL}"),
        ("smoothing.reach", "NOWHERE_AT_ALL"),
    ),
    "row precision": (
        (*TRAIN, "exchange.precision=[int8,int2]"),
        ("exchange.precision=int2", "int8, int4"),
    ),
    "plain is fp32": (
        (*TRAIN, "exchange=plain", "exchange.precision=bf16"),
        ("exchange.precision=bf16", "exchange=fp32"),
    ),
    "rank": ((*TRAIN, "gradient.compression=powersgd", "gradient.rank=0"), ("gradient.rank=0",)),
    "path with =": (
        ("dataset_file=a=b.csv",),
        ("dataset_file=a=b.csv", "'dataset_file=\"a=b.csv\"'"),
    ),
    "path with (": (("dataset_file=a(1).csv",), ("'dataset_file=\"a(1).csv\"'",)),
    "path with [": (("partition_dir=[a].b",), ("'partition_dir=\"[a].b\"'",)),
    "a list": (("partition_dir=[a]",), ("'partition_dir=\"[a]\"'",)),
    "path with comma": (("dataset_file=a,b.csv",), ("'dataset_file=\"a,b.csv\"'", "--multirun")),
    "umlauts": (("dataset_file=Käse.csv",), ("'dataset_file=\"Käse.csv\"'",)),
    "without a name": (("1=2",), ("1=2", "NAME=VALUE")),
    "long list": (
        (f"num_rounds=[{'1,' * 20_000}1]",),
        ("num_rounds: 40,014 characters, 4,000 at most", "--config-dir"),
    ),
    "nested": ((f"features={'[' * 500}",), ("features: nested more than 20 deep",)),
    "large seed": ((f"seed={10**400}",), ("seed: a number of more than 308 digits",)),
    "large share": ((f"dropout={10**400}",), ("dropout: a number of more than 308 digits",)),
    "number as a name": (("split={1:2}",), ("split.1: no such setting; split has by,",)),
    "column that is true": (("features={true:cat}",), ("features.kind=cat", "given, degree")),
    "callback": (("+hydra.callbacks.a._target_=numpy.load",), ("hydra.callbacks.a._target_",)),
    "a pickle": (("--experimental-rerun=job.pickle",), ("--experimental-rerun",)),
    "other configuration": (("--config-path=conf",), ("--config-path=conf", "--config-dir")),
    "malformed": ((*TRAIN, "sleep_time", "0.1"), ("sleep_time",)),
    "missing": (
        ("partition_dir=elsewhere",),
        ("elsewhere", "app=partition_data", "app=train dataset_name=cora"),
    ),
    "missing method": (
        (*TRAIN, "partition_method=metis", "parts_per_node=1"),
        ("toy-metis-vol-2", "app=partition_data", "copy"),
    ),
    "number of parts": (
        ("app=train", *DATA[:2], "partition_dir=renamed", "num_partitions=3"),
        ("2 parts", "num_partitions=3"),
    ),
    "flipped": ((*TRAIN, "partition_dir=flipped"), ("feat.npy", "checksum")),
    "unreadable": (
        ("app=partition_data", "dataset_name=file", "dataset_file=broken.npz"),
        ("broken.npz",),
    ),
    "cuda": ((*TRAIN, "device=cuda"), ("device=cuda", "GPU")),
    "used": ((*TRAIN, "hydra.run.dir=used"), ("used", "summary.json")),
    "no run directory": ((*TRAIN, "hydra.run.dir=''"), ("hydra.run.dir=''",)),
}


@pytest.fixture(scope="module")
def spoilt(place: Path) -> Path:
    """The place, with the damaged files and directories that the mistakes are about."""
    shutil.copytree(place / "parts", place / "flipped")
    flip_bit(place / "flipped" / "toy-random-vol-2" / "part1" / "feat.npy", 0.9)
    shutil.copytree(place / "parts" / "toy-random-vol-2", place / "renamed" / "toy-random-vol-3")
    (place / "broken.npz").write_bytes(b"PK\x03\x04 not a zip")
    (place / "used").mkdir()
    (place / "used" / "summary.json").write_text("{}")
    return place


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_and_ends_with_status_2(spoilt: Path, name: str) -> None:
    """One of the commands is a process of its own."""
    arguments, words = MISTAKES[name]
    if not any(argument.startswith("hydra.run.dir=") for argument in arguments):
        arguments = (*arguments, f"hydra.run.dir=runs/{name.replace(' ', '-')}")
    if name == "missing":
        ended = finish(start_cli(*arguments, cwd=spoilt), rc=2)
    else:
        ended = run_main(*arguments, cwd=spoilt, rc=2)
    assert "Traceback" not in ended.output
    assert all(word in ended.stderr for word in words), ended.stderr


@pytest.mark.parametrize(
    ("command", "use"),
    [
        ("credentials init here --sites a b", "retexo credentials"),
        (
            "app=hub distributed.hub=127.0.0.1:7 distributed.credentials=here",
            "distributed.credentials",
        ),
    ],
)
def test_the_use_of_a_missing_package_is_named(
    command: str, use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    message = run_main(*command.split(), cwd=tmp_path, rc=2).stderr
    assert message.startswith(f"error: {use}: needs cryptography")
    assert "'.[sites]'" in message


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("app=report report.runs=nowhere", "app=report"),
        ("app=evaluate dataset_name=cora", "app=evaluate dataset_name=cora"),
    ],
)
def test_the_first_line_names_the_data_set_that_is_read(
    command: str, line: str, tmp_path: Path
) -> None:
    assert run_main(*command.split(), cwd=tmp_path, rc=2).stdout.endswith(f"[INFO] {line}\n")


@pytest.mark.parametrize(
    "arguments", ["dataset_file=\udcff", "\udcff", "--config-dir=\ud800", "credentials \udcff"]
)
def test_an_argument_that_is_no_utf_8_is_named(tmp_path: Path, arguments: str) -> None:
    """Python keeps such bytes as lone surrogates, which no log can write."""
    ended = run_main(*arguments.split(), cwd=tmp_path, rc=2)
    assert re.fullmatch(r"error: '.*\\ud.*': holds bytes that are no UTF-8; .*\n", ended.output)
    assert not [*tmp_path.iterdir()]


def test_a_refused_command_leaves_nothing(place: Path, tmp_path: Path) -> None:
    """A refusal writes no file, nor a line in the log of the run that owns the directory.

    An empty directory of the user's stays.
    """
    (tmp_path / "made").mkdir()
    (tmp_path / "used").mkdir()
    for name in ("summary.json", "main.log"):
        (tmp_path / "used" / name).write_text("first\n")
    data = (f"dataset_file={place}/toy.npz", f"partition_dir={place}/parts")
    for arguments in (
        ["app=trian"],
        [*TRAIN, *data, "device=cuda:9"],
        ["app=trian", "hydra.run.dir=made"],
        ["app=trian", "hydra.run.dir=new"],
        [*TRAIN, *data, "hydra.run.dir=used"],
        [*TRAIN, *data, "stopping.metric=roc_auc", "hydra.run.dir=new"],  # of three classes
        [*TRAIN, *data, "class_weights=[1,2]", "hydra.run.dir=new"],
    ):
        run_main(*arguments, cwd=tmp_path, rc=2)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert left == {"made", "used", "used/summary.json", "used/main.log"}
    assert (tmp_path / "used" / "main.log").read_text() == "first\n"


def test_help_and_the_configuration_are_printed(place: Path) -> None:
    help_page = run_main("--help", cwd=place)
    assert help_page.stderr == ""
    assert "rounds without a better validation metric" in help_page.stdout
    configuration = run_main(
        "--config-name=node_classification_gat", "--cfg", "job", "stopping.patience=3", cwd=place
    )
    assert "stopping:\n  patience: 3\n" in configuration.stdout
    assert "dropout: 0.3\n" in configuration.stdout


# --- a run that is under way ----------

LONG_SIGNAL = pytest.mark.long("the other signal takes the same way")


def catches(process: psutil.Process, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal, as Linux's /proc says it."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    handlers = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    assert handlers
    return bool(int(handlers[1], 16) >> (number - 1) & 1)


def assert_nothing_left(process: subprocess.Popen[str]) -> None:
    wait_until(lambda: not group_members(process.pid), "no process left")


@pytest.mark.parametrize(
    ("number", "status", "keeps_no_state"),
    [
        pytest.param(signal.SIGTERM, 143, "trainer=full_graph", marks=LONG_SIGNAL, id="TERM"),
        pytest.param(signal.SIGINT, 130, "checkpoint=none", id="INT"),
    ],
)
def test_a_signal_ends_a_run_that_keeps_no_state_at_once(
    place: Path, tmp_path: Path, number: signal.Signals, status: int, keeps_no_state: str
) -> None:
    """Ctrl-C in a terminal reaches the whole group, SIGTERM the parent alone."""
    arguments = (*ENDLESS, keeps_no_state, f"hydra.run.dir={tmp_path}")
    with running_cli(*arguments, cwd=place, trains_in=tmp_path) as process:
        for member in group_members(process.pid):
            entries = member.net_connections("inet")
            listening = {entry.laddr.ip for entry in entries if entry.status == psutil.CONN_LISTEN}
            assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        for member in psutil.Process(process.pid).children(recursive=True):
            assert not catches(member, signal.SIGTERM), "the parent waits for this worker"
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        ended = finish(process, rc=status)
        assert "Traceback" not in ended.output
        assert_nothing_left(process)
        assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"


@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGTERM, -15, id="TERM"),
        pytest.param(signal.SIGINT, 130, marks=LONG_SIGNAL, id="INT"),
    ],
)
def test_a_command_that_is_ended_while_it_starts_leaves_nothing(
    place: Path, number: signal.Signals, status: int
) -> None:
    """It imports torch then, and so does the fork server."""
    with running_cli(*TRAIN, "hydra.run.dir=ended", cwd=place) as process:
        wait_until(lambda: psutil.Process(process.pid).children(), "the fork server")
        if number == signal.SIGINT:  # as a terminal sends it
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        ended = finish(process, rc=status)
        assert "Traceback" not in ended.output
        assert_nothing_left(process)
        assert not (place / "ended" / "summary.json").exists()


# --- every configuration, in this process's workers ----------

FIELDS = {
    "sha256",
    "baseline",
    "confusion",
    "chosen",
    "classes",
    "status",
    "run_id",
    "versions",
    "settings",
    "train",
    "val",
    "test",
    "rounds",
    "val_by_layer",
    "seconds",
    "bytes",
    "peak_memory_bytes",
    "peak_private_bytes",
    "restarts",
    "partition_digest",
    "data_checksums",
    "features",
    "resumed",
}


def test_equal_runs_are_equal_and_say_all_there_is(place: Path, tmp_path: Path) -> None:
    here = (f"dataset_file={place}/toy.npz", f"partition_dir={place}/parts", "dropout=0.5")
    settings = compose([*TRAIN, *here], "node_classification_gat")
    for name in ("a", "b"):
        train.run(settings, tmp_path / name)
    summary, again = (
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("a", "b")
    )
    assert summary["test"] == again["test"]
    assert summary["rounds"] == again["rounds"]
    lines = [read_rounds(tmp_path / name) for name in ("a", "b")]
    assert lines[0] == lines[1]
    assert len(lines[0]) == sum(summary["rounds"]) + 2
    assert 0 <= summary["test"]["accuracy"] <= 1
    assert set(summary) - {"warnings"} == FIELDS
    assert len(summary["rounds"]) == 2
    assert {"total", "train", "phase"} <= set(summary["seconds"])
    assert set(summary["seconds"]["phase"]) == {
        "load",
        "plan",
        "exchange",
        "aggregate",
        "rounds",
        "embed",
        "evaluate",
    }
    assert sum(summary["seconds"]["phase"].values()) <= summary["seconds"]["total"]
    assert list(summary["data_checksums"]) == ["dataset_file"]
    assert {"total", "by_kind", "by_layer", "by_peer"} <= set(summary["bytes"])
    assert set(summary["bytes"]["by_kind"]) == set(KINDS)
    for part in ("val", "test"):
        assert set(summary[part]) >= {"accuracy", "micro_f1", "macro_f1", "log_loss"}
    for name in ("peak_memory_bytes", "peak_private_bytes"):
        assert [2**23 < size < 2**33 for size in summary[name]] == [True] * 2
    assert summary["settings"]["model"]["name"] == "gat"
    assert sorted(path.name for path in (tmp_path / "a" / "checkpoint").iterdir()) == [
        "layer0.safetensors",
        "layer1.safetensors",
        "model.json",
    ]


def test_multirun(place: Path) -> None:
    """Jobs share partitions, go on when one fails, and are not run again when they are done."""
    command = ("-m", *TRAIN, "seed=1,2", "dropout=0.1,2", "hydra.sweep.dir=jobs")
    ended = run_main(*command, cwd=place, rc=2)
    assert "2 of 4 jobs failed" in ended.stdout
    assert ended.stderr.count("error: dropout=2.0: must be in [0, 1)") == 2
    files = [place / "jobs" / job / "summary.json" for job in ("0", "2")]
    first, second = (json.loads(file.read_text()) for file in files)
    assert [first["settings"]["seed"], second["settings"]["seed"]] == [1, 2]
    assert first["partition_digest"] != second["partition_digest"]
    between = files[1].stat().st_mtime - files[0].stat().st_mtime
    assert second["seconds"]["total"] < between, "from the start of the job"
    assert len(list((place / "parts").glob("*/toy-random-vol-2"))) == 2

    first_written = files[0].stat().st_mtime_ns
    files[1].write_text(json.dumps({**second, "status": "failed"}))
    again = run_main(*command, cwd=place, rc=2)
    assert again.output.count("this run is finished already") == 1
    assert files[0].stat().st_mtime_ns == first_written
    repeated = json.loads(files[1].read_text())
    assert (repeated["status"], repeated["test"]) == ("done", second["test"])
    assert len(list((place / "parts").glob("*/toy-random-vol-2"))) == 2
    other = run_main(*command, "hidden_dim=9", cwd=place, rc=2)
    assert "hidden_dim=9: the run in" in other.stderr


SWEEP_DATA = ("dataset_name=file", "dataset_file=toy.npz", "num_partitions=2", "num_rounds=[3]")
SEARCH = ("+hparams_search=optuna", *SWEEP_DATA, "hidden_dim=8", "hydra.sweep.dir=search")


def test_optuna_finds_the_best_run_and_continues(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    save_npz(tmp_path / "toy.npz", random_graph(), thirds(40))
    search = (*SEARCH, "objective=val.log_loss")
    ended = run_main(*search, "hydra.sweeper.n_trials=2", cwd=tmp_path, rc=2)
    assert "direction=maximize: objective=val.log_loss needs" in ended.stderr
    command = (*search, "hydra.sweeper.direction=minimize")
    run_main(*command, "hydra.sweeper.n_trials=1", cwd=tmp_path)
    again = run_main(*command, "hydra.sweeper.n_trials=2", cwd=tmp_path)
    assert again.output.count("this run is finished already") == 1, again.output
    files = list(tmp_path.glob("search/*/summary.json"))
    varied = "dropout=* learning_rate=* weight_decay=*"
    for file in files:  # hidden_dim, the data and so on are the same in all jobs
        names = [re.sub("=.*", "=*", override) for override in file.parent.name.split(",")]
        assert " ".join(sorted(names)) == varied
    runs = [json.loads(file.read_text()) for file in files]
    losses = {run["settings"]["dropout"]: run["val"]["log_loss"] for run in runs}
    results = yaml.safe_load((tmp_path / "search" / "optimization_results.yaml").read_text())
    assert len(losses) == 2
    assert results["best_value"] == min(losses.values())
    assert losses[results["best_params"]["dropout"]] == results["best_value"]
    best = re.search(r"best of 2 jobs: \S+ in (.+)", again.stdout)
    summary = json.loads(Path(best[1], "summary.json").read_text(encoding="utf-8"))
    assert summary["val"]["log_loss"] == results["best_value"]
    assert len(list(tmp_path.glob("data/partitions/*/toy-random-vol-2"))) == 1


def test_a_sweeper_that_is_missing_is_named_with_its_remedy(tmp_path: Path) -> None:
    ended = run_main("-m", "hydra/sweeper=nevergrad", "seed=1,2", cwd=tmp_path, rc=2)
    assert "pip install -e '.[sweeps]'" in ended.stderr


UNEXPECTED = ZeroDivisionError("no idea")
OF_A_WORKER = "rank 0 (node 0) failed: KeyError: 5; phase: load"


@pytest.mark.parametrize(
    ("where", "error", "last"),
    [
        (train, UNEXPECTED, "ZeroDivisionError: no idea"),
        (train, TrainingError(f"{OF_A_WORKER}\nTraceback (most recent call last)\n"), OF_A_WORKER),
        ("check_sweeper", UNEXPECTED, "ZeroDivisionError: no idea"),
        ("options_first", UNEXPECTED, "ZeroDivisionError: no idea"),
    ],
)
def test_an_unexpected_error_shows_its_traceback(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    error: Exception,
    last: str,
) -> None:
    """An error in a worker shows the worker's traceback alone."""
    module, name = (train, "check_trainer_settings") if where is train else (retexo_main, where)
    monkeypatch.setattr(module, name, mock.Mock(side_effect=error))
    ended = run_main("app=train", *DATA, f"hydra.run.dir={tmp_path}", cwd=place, rc=1)
    assert ended.stderr.splitlines()[-1] == f"error: {last}"
    assert ended.output.count("Traceback (most recent call last)") == 1
    assert where is not train or "Traceback" in (tmp_path / "main.log").read_text(encoding="utf-8")


def test_what_hydra_refuses_is_one_line(tmp_path: Path) -> None:
    for override in ("hydra.sweeper.max_batch_size=0", "hydra.sweep.dir=/proc/nowhere"):
        ended = run_main("-m", "seed=1,2", override, cwd=tmp_path, rc=2)
        assert "Traceback" not in ended.output
        assert override in ended.stderr.splitlines()[-1]


def test_a_callback_ends_a_run_in_the_middle_of_a_layer(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends with all its processes, as when a trial is pruned."""

    class Prune(retexo.Callback):
        def on_round(self, line: Mapping[str, Any]) -> None:
            if line["round"] == 3:
                raise LookupError("pruned")

    monkeypatch.chdir(place)
    overrides = [
        *DATA,
        "hidden_dim=8",
        "num_rounds=100000",
        "stopping=none",
        "hydra.run.dir=pruned",
    ]
    with pytest.raises(LookupError, match="pruned"):
        retexo.train([*overrides, "progress=none"], callbacks=[Prune()])
    summary = json.loads((place / "pruned" / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "failed"
    assert summary["error"].endswith("raised by the callback Prune, which ended the run")
    assert not [child for child in multiprocessing.active_children() if "rank" in child.name]
