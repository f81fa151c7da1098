"""A run that dies anywhere, resumed, ends as the one that never died.

init=RUN starts from the parameters of a trained run.
"""

import functools
import importlib.util
import json
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

import numpy as np
import pytest
import torch
from graph_files import flip_bit
from support import assert_same_run, random_graph, snapshot, thirds, write_partitions

from partitioning.errors import InputError
from retexo.apps import resume, train
from retexo.comm.process_group import GlooTransport
from retexo.comm.socket_transport import Streams
from retexo.errors import TrainingError
from retexo.results.checkpoint import open_checkpoint
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings
from retexo.worker import train as train_worker

UninterruptedRun = Callable[[tuple[str, ...]], Path]
SYNC = ("base=published", "checkpoint.every=2", "stopping.patience=3")
LOCAL = (
    "checkpoint.every=1",
    "gradient=local",
    "local_epochs=2",
    "gradient.rank=1",
    "hidden_dim=8",
)
MOMENTUM = ("optimizer._target_=torch.optim.SGD", "+optimizer.momentum=0.9")
DEFAULTS = (
    "checkpoint.every=1",
    "smoothing.steps=2",
    "stopping=none",
    "num_layers=auto",
    "max_layers=4",
    "model.lookahead=1",
    "model.residual=true",
)
LONG = pytest.mark.long("another message of a layer, of which one is tried, or masks")
SECURE = (
    "base=published",
    "checkpoint.every=1",
    "gradient.secure=true",
    "gradient.compression=powersgd",
    "num_partitions=3",
)
HAS_KEYS = importlib.util.find_spec("cryptography") is not None
OPTIMIZER = (
    "base=published",
    "checkpoint.every=1",
    "stopping=none",
    "stopping.min_delta=0.9",  # no round improves, so the sixth lowers the learning rate
    "num_rounds=[2,9]",
    "scheduler=plateau",
    *MOMENTUM,
    "model=gat",
    "heads=2",
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    graph = random_graph(60, 240)
    for world in (2, 3):
        assignment = [node % 5 % world for node in range(60)]
        write_partitions(folder, graph, thirds(60), assignment, world)
    return folder


def settings(parts: Path, *more: str) -> Settings:
    small = (
        "hidden_dim=6",
        "num_rounds=[5,4]",
        "learning_rate=[0.05]",
        "cluster.threads=1",
        "num_partitions=2",
        "distributed.max_restarts=0",
    )
    return compose(
        [
            *small,
            *more,
            "app=train",
            "dataset_name=file",
            "dataset_file=toy.npz",
            f"partition_dir={parts}",
        ]
    )


def dies_at(message: int, rank: int, job: Any, parent: socket, streams: Streams | None) -> None:
    """A worker; rank 1 is killed before it takes part in a message, counted from the start."""
    if rank == 1:
        swap, left = GlooTransport.swap, [message]

        def counted(self: GlooTransport, *arguments: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return swap(self, *arguments)

        GlooTransport.swap = counted  # type: ignore[method-assign]
    train_worker.main(rank, job, parent, streams)


def replaces_features(
    file: Path, rank: int, job: Any, parent: socket, streams: Streams | None
) -> None:
    """A worker, of which rank 1 finds other features than the parent has checked."""
    if rank == 1:
        np.save(file, np.load(file) + 1)
    train_worker.main(rank, job, parent, streams)


def run_until_death(settings_of_run: Settings, run_dir: Path, message: int) -> None:
    """Train until rank 1 is killed at a message, which ends the run."""
    killed = pytest.raises(TrainingError, match=r"rank 1 \(node 0\) was killed by SIGKILL")
    with pytest.MonkeyPatch.context() as patched, killed:
        patched.setattr(train, "main", partial(dies_at, message))
        train.run(settings_of_run, run_dir)


def assert_same_run_and_bytes(resumed: Path, uninterrupted: Path) -> None:
    assert_same_run(resumed, uninterrupted)
    here, there = (
        json.loads((path / "summary.json").read_text())["bytes"]
        for path in (resumed, uninterrupted)
    )
    world = len(there["by_peer"])
    agreement = 4 * 8 * world * (world - 1)  # on where to go on
    setup = there["by_kind"]["setup"] + agreement
    assert here["by_kind"] == {**there["by_kind"], "setup": setup}


@pytest.fixture(scope="module")
def uninterrupted_run(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> UninterruptedRun:
    """Make, by options, the directory of a run that nothing interrupts."""

    @functools.cache
    def run(options: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("whole")
        train.run(settings(parts, *options), folder)
        return folder

    return run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (LOCAL, 18),
        (OPTIMIZER, 37),
        (DEFAULTS, 38),
        pytest.param(
            SECURE,
            30,
            marks=[LONG, pytest.mark.skipif(not HAS_KEYS, reason="cryptography is not installed")],
        ),
        *(pytest.param(SYNC, message, marks=LONG) for message in (0, 3, 9, 14, 20, 24, 33)),
        *(pytest.param(LOCAL, message, marks=LONG) for message in (13, 31)),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else value[-1],
)
def test_a_death_at_any_message_changes_nothing(
    options: tuple[str, ...],
    message: int,
    parts: Path,
    uninterrupted_run: UninterruptedRun,
    tmp_path: Path,
) -> None:
    run_until_death(settings(parts, *options), tmp_path, message)
    resumed = train.run(settings(parts, *options, "resume=auto"), tmp_path)["resumed"]
    assert options != DEFAULTS or resumed["layer"] == 1
    assert options != OPTIMIZER or (resumed["layer"], resumed["round"]) == (1, 8)
    assert_same_run_and_bytes(tmp_path, uninterrupted_run(options))


def test_two_deaths(
    parts: Path,
    uninterrupted_run: UninterruptedRun,
    tmp_path: Path,
) -> None:
    """A resumed run can be resumed; another directory is left as it was."""
    first, second = tmp_path / "first", tmp_path / "second"
    run_until_death(settings(parts, *SYNC), first, 22)
    before = snapshot(first)
    run_until_death(settings(parts, *SYNC, f"resume={first}"), second, 9)
    train.run(settings(parts, *SYNC, "resume=auto"), second)
    assert_same_run_and_bytes(second, uninterrupted_run(SYNC))
    assert snapshot(first) == before


@pytest.fixture(scope="module")
def interrupted_once(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that died in layer 0 after 4 rounds, of which 2 and 4 are kept."""
    run_dir = tmp_path_factory.mktemp("interrupted")
    run_until_death(settings(parts, *SYNC), run_dir, 18)
    assert {path.name for path in (run_dir / "state" / "rank1").glob("*.state")} == {
        "step0-2.state",
        "step0-4.state",
    }
    return run_dir


@pytest.fixture
def interrupted(interrupted_once: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(interrupted_once, tmp_path / "interrupted"))


@pytest.mark.parametrize(
    ("file", "damage", "resumed"),
    [
        ("rank1/step0-4.state", flip_bit, 2),
        ("rank0/tape", lambda path: path.write_bytes(path.read_bytes()[:100]), 4),
    ],
    ids=["step", "tape"],
)
def test_of_damaged_state_the_rest_is_used(
    file: str,
    damage: Any,
    resumed: int,
    parts: Path,
    uninterrupted_run: UninterruptedRun,
    interrupted: Path,
) -> None:
    damage(interrupted / "state" / file)
    summary = train.run(settings(parts, *SYNC, "resume=auto"), interrupted)
    assert summary["resumed"] == {"layer": 0, "round": resumed, "run_dir": str(interrupted)}
    assert_same_run_and_bytes(interrupted, uninterrupted_run(SYNC))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["resume=auto", "hidden_dim=8"], "hidden_dim=8: .* was started with hidden_dim=6"),
        (["resume=auto", "cluster.threads=2"], "threads 1, here 2; set cluster.threads=1"),
        ([], "resume=auto"),
    ],
)
def test_another_run_is_not_gone_on_with(
    options: list[str], says: str, parts: Path, interrupted: Path
) -> None:
    before = snapshot(interrupted)
    with pytest.raises(InputError, match=says):
        train.run(settings(parts, *SYNC, *options), interrupted)
    assert snapshot(interrupted) == before


def test_a_part_that_was_replaced_after_its_check_is_refused(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(shutil.copytree(parts, tmp_path / "parts"))
    (file,) = own.glob("*-2/part1/feat.npy")
    monkeypatch.setattr(train, "main", partial(replaces_features, file))
    with pytest.raises((InputError, TrainingError), match=r"part1/feat.npy: its checksum is not"):
        train.run(settings(own, *SYNC), tmp_path / "run")


def test_a_state_without_a_description_is_of_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A kill before run.json was written leaves this: the same command begins anew, and says so."""
    (tmp_path / "state" / "rank0").mkdir(parents=True)
    (tmp_path / "state" / "rank0" / "tape").write_bytes(b"1")
    for setting in (None, "auto"):
        resume.check_place(setting, tmp_path)
    resume.prepare_resume("auto", tmp_path, range(1), {}, {})
    assert "killed before it began; removed" in caplog.text
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["run.json"]


def test_a_run_with_a_setting_that_is_gone_is_not_gone_on_with(tmp_path: Path) -> None:
    resume.prepare_resume(None, tmp_path, range(1), {}, {"seed": 1, "max_grad_norm": 1.0})
    with pytest.raises(InputError, match=r"^max_grad_norm: .*1\.0, which is no setting any more;"):
        resume.check_same("auto", tmp_path, {}, {"seed": 1})
    resume.check_same("auto", tmp_path, {}, {"seed": 1, "max_grad_norm": 1.0})
    summary = {"status": "done", "settings": {"seed": 1, "model": {"output": "activation"}}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert resume.finished("auto", tmp_path, {"seed": 1}, set()) == summary
    with pytest.raises(InputError, match=r"seed=2: .*seed=1; leave it as it was"):
        resume.finished("auto", tmp_path, {"seed": 2}, set())


def test_a_directory_without_state(
    parts: Path, uninterrupted_run: UninterruptedRun, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="to resume from"):
        train.run(settings(parts, *SYNC, f"resume={tmp_path}"), tmp_path / "new")
    done = uninterrupted_run(SYNC)
    before = (done / "summary.json").read_bytes()
    assert train.run(settings(parts, *SYNC, "resume=auto"), done)["status"] == "done"
    assert (done / "summary.json").read_bytes() == before
    with pytest.raises(
        InputError, match=r"^hidden_dim=7: the run in .* was started with hidden_dim=6"
    ):
        train.run(settings(parts, *SYNC, "resume=auto", "hidden_dim=7"), done)
    assert (done / "summary.json").read_bytes() == before


def test_nothing_is_kept(parts: Path, tmp_path: Path) -> None:
    """A death then ends the run, which says so, and nothing can go on."""
    run_until_death(settings(parts, "checkpoint=none"), tmp_path, 18)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "metrics.jsonl",
        "summary.json",
    ]
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"
    with pytest.raises(InputError, match="holds summary"):
        train.run(settings(parts, "resume=auto"), tmp_path)
    with pytest.raises(InputError, match=r"^resume=auto: checkpoint=none"):
        settings(parts, "checkpoint=none", "resume=auto")


LAZY = ("model=sage", "model.lookahead=1")


@pytest.mark.parametrize("options", [LAZY, ("trainer=full_graph",)])
def test_training_starts_from_a_run(
    options: tuple[str, ...], parts: Path, uninterrupted_run: UninterruptedRun, tmp_path: Path
) -> None:
    """Steps of length zero keep its parameters and scores, also where no round improves on it."""
    first = uninterrupted_run(options)
    still = f"init={first}", "learning_rate=[1e-12]", "num_rounds=[2]"
    again = train.run(settings(parts, *options, *still), tmp_path)
    stages = (open_checkpoint(run).stages() for run in (first, tmp_path))
    for before, after in zip(*stages, strict=True):
        for name, value in before.state_dict().items():
            torch.testing.assert_close(after.state_dict()[name], value, rtol=1e-6, atol=1e-7)
    first_summary = json.loads((first / "summary.json").read_text())
    assert again["val"] == pytest.approx(first_summary["val"], rel=1e-4)
    assert again["test"] == pytest.approx(first_summary["test"], rel=1e-4)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("init=nowhere", r"^init=nowhere: has no checkpoint/model.json"),
        ("hidden_dim=7", r"^hidden_dim=7: the model of .*/checkpoint has hidden_dim=6"),
        ("trainer=full_graph", r"trainer=full_graph: the model of .* trainer=lazy"),
    ],
)
def test_another_model_is_refused(
    parts: Path, uninterrupted_run: UninterruptedRun, tmp_path: Path, override: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        train.run(
            settings(parts, *LAZY, f"init={uninterrupted_run(LAZY)}", override), tmp_path / "again"
        )
    assert not (tmp_path / "again" / "checkpoint").exists()


def test_the_fewest_states_of_a_worker_are_counted(tmp_path: Path) -> None:
    for name in ("run.json", "rank0/1.state", "rank0/2.state", "rank1/1.state"):
        (tmp_path / "state" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "state" / name).touch()
    counts = [resume.count_saved("auto", tmp_path, range(number)) for number in (1, 2, 3)]
    assert counts == [2, 1, 0]
