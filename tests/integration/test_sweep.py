"""A sweep at the real command line: it goes on after what fails, resumes, and ends with all that it started."""

import csv
import json
from pathlib import Path

import pytest
from support import finish, group_members, random_graph, run_cli, save_npz, start_cli, thirds, wait_until

CASES = "{s0: 'seed=0', s1: 'seed=1', absent: 'dataset_file=none.npz', broken: 'device=cuda'}"
SMALL = ("hidden_dim=8", "cluster.threads=1", "num_partitions=2", "partition_dir=parts")
SWEEP = ("dataset_name=file", "dataset_file=toy.npz", *SMALL, "sweep.dir=runs", f"sweep.axes={{case: {CASES}}}")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    save_npz(tmp_path / "toy.npz", random_graph(), thirds(40))
    return tmp_path


@pytest.mark.timeout(240)
def test_a_sweep_goes_on_after_failures_and_resumes(place: Path) -> None:
    first = run_cli(*SWEEP, "num_rounds=[4]", "hydra.run.dir=first", cwd=place, timeout=120)
    assert first.rc == 1, first.output
    assert "runs: 4 runs, 0 of them done before" in first.stdout
    assert "[4/4] broken: failed, device=cuda: torch sees no GPU here" in first.stdout
    assert "missing: absent: none.npz" in first.stdout
    assert "1 of 4 runs failed" in first.stderr
    with (place / "first" / "summary.csv").open() as file:
        (row,) = csv.DictReader(file)
    summaries = [json.loads((place / "runs" / name / "summary.json").read_text()) for name in ("s0", "s1")]
    accuracies = [summary["test"]["accuracy"] for summary in summaries]
    assert row["n"] == "2"
    assert float(row["test accuracy, mean"]) == pytest.approx(sum(accuracies) / 2)
    made = (place / "runs" / "s0" / "summary.json").stat().st_mtime_ns

    fewer = ("~sweep.axes.case.absent", "~sweep.axes.case.broken")
    again = run_cli(*SWEEP, "num_rounds=[4]", *fewer, "hydra.run.dir=second", cwd=place)
    assert again.rc == 0, again.output
    assert "runs: 2 runs, 2 of them done before" in again.stdout
    assert (place / "runs" / "s0" / "summary.json").stat().st_mtime_ns == made
    assert (place / "second" / "report.html").exists()

    other = run_cli(*SWEEP, "num_rounds=[5]", "hydra.run.dir=third", cwd=place)
    assert other.rc == 2, other.output
    assert "runs/s0 holds a run with another num_rounds; choose another sweep.dir" in other.stderr


@pytest.mark.timeout(180)
def test_a_stopped_sweep_leaves_nothing_behind_and_is_alone_in_its_folder(place: Path) -> None:
    long = (*SWEEP, "num_rounds=[1000000]", "stopping=none")
    process = start_cli(*long, "hydra.run.dir=first", cwd=place)
    metrics = place / "runs" / "s0" / "metrics.jsonl"
    wait_until(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size), 90, "training")
    beside = run_cli(*long, "hydra.run.dir=second", cwd=place)
    assert beside.rc == 2, beside.output
    assert "another sweep, or a run of one, is at work there" in beside.stderr
    process.terminate()
    ended = finish(process)
    assert ended.rc == 143, ended.output
    assert not group_members(process.pid)
    summary = json.loads((place / "runs" / "s0" / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("failed", "terminated (SIGTERM)")
