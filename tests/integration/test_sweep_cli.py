"""A sweep at the real command line: stopped, it leaves nothing behind; started again, it goes on, and reports."""

import csv
import json
from pathlib import Path

import pytest
from support import (
    finish,
    group_members,
    random_graph,
    run_main,
    save_npz,
    start_cli,
    thirds,
    wait_until,
)

SWEEP = (
    "dataset_name=file",
    "dataset_file=toy.npz",
    "hidden_dim=8",
    "num_rounds=[4]",
    "cluster.threads=1",
    "num_partitions=2",
    "partition_dir=parts",
    "sweep.dir=runs",
    "sweep.axes={seed: {s0: 'seed=0', s1: 'seed=1'}}",
)


def status(run: Path) -> str | None:
    path = run / "summary.json"
    return json.loads(path.read_text())["status"] if path.exists() else None


@pytest.mark.timeout(400)
def test_a_sweep_is_stopped_and_goes_on(tmp_path: Path) -> None:
    save_npz(tmp_path / "toy.npz", random_graph(), thirds(40))
    first, second = tmp_path / "runs" / "s0", tmp_path / "runs" / "s1"
    process = start_cli(*SWEEP, "hydra.run.dir=first", cwd=tmp_path)
    wait_until(lambda: process.poll() is not None or status(first) == "done", 150, "the first run")
    process.terminate()
    ended = finish(process)
    assert ended.rc == 143, ended.output
    wait_until(lambda: not group_members(process.pid), 60, "a fork server that was still importing")
    assert status(second) != "done"
    made = (first / "summary.json").stat().st_mtime_ns

    again = run_main(*SWEEP, "hydra.run.dir=second", cwd=tmp_path)
    assert again.rc == 0, again.output
    assert "runs: 2 runs, 1 of them done before" in again.stdout
    assert "[2/2] s1: done, test accuracy 0." in again.stdout
    assert (first / "summary.json").stat().st_mtime_ns == made
    summaries = [json.loads((run / "summary.json").read_text()) for run in (first, second)]
    assert summaries[0]["partition_digest"] != summaries[1]["partition_digest"]
    with (tmp_path / "second" / "summary.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["n"] == "2"
    mean = sum(summary["test"]["accuracy"] for summary in summaries) / 2
    assert float(row["test accuracy, mean"]) == pytest.approx(mean)
    assert "report.html" in {path.name for path in (tmp_path / "second").iterdir()}
