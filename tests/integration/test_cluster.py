"""Several nodes as real commands: deaths, mistakes, torchrun and Slurm. Nodes are parent processes
on loopback.
"""

import contextlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from support import (
    ROOT,
    Ended,
    finish,
    free_port,
    kill_group,
    random_graph,
    run_main,
    start_cli,
    thirds,
    wait_until,
    write_partitions,
)

from partitioning.errors import InputError
from retexo.apps import train
from retexo.launch import handshake
from retexo.settings.compose import compose

TRAIN = (
    "app=train",
    "dataset_name=file",
    "dataset_file=toy.npz",
    "partition_dir=parts",
    "num_partitions=2",
    "hidden_dim=8",
    "device=cpu",
    "cluster.threads=1",
)
SHORT = (*TRAIN, "num_rounds=[4]")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two partitions below parts/; the graph itself need not be where training is."""
    folder = Path(tmp_path_factory.mktemp("cluster"))
    write_partitions(
        folder / "parts", random_graph(), thirds(40), [node % 2 for node in range(40)], 2
    )
    return folder


def listens(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(entry.status == psutil.CONN_LISTEN for entry in process.net_connections("tcp"))
    return False


def error_of(ended: Ended) -> str:
    """The one line that says why."""
    lines = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, ended.output
    assert "Traceback" not in ended.output
    return lines[0]


def test_two_nodes_that_differ_end_before_anything_is_started(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parents, in threads; neither comes as far as its workers. test_rendezvous.py has all
    that is compared.
    """
    monkeypatch.setattr(handshake, "MISMATCH_WAIT", 0.5)
    own, says = ("hidden_dim=16",), "other settings than node 0: hidden_dim=16 instead of 8"
    common = (
        *SHORT,
        f"partition_dir={place}/parts",
        "parts_per_node=1",
        "distributed.interface=lo",
        f"distributed.master_port={free_port()}",
    )
    both = [compose([*common, *own * node, f"node_rank={node}"]) for node in (0, 1)]

    def run(node: int) -> str:
        with pytest.raises(InputError) as refused:
            train.run(both[node], tmp_path / f"node{node}")
        return str(refused.value)

    with ThreadPoolExecutor(2) as pool:
        for message in pool.map(run, (0, 1)):
            assert f"node 1 (rank 1) has {says}" in message
    assert not (tmp_path / "node0" / "summary.json").exists()


# --- torchrun ----------


def torchrun(
    place: Path, processes: int, *arguments: str, options: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc_per_node",
            str(processes),
            *options,
            str(ROOT / "main.py"),
            *arguments,
        ],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_torchrun_starts_again_and_the_run_goes_on(place: Path, tmp_path: Path) -> None:
    """--max-restarts with resume=auto: a killed worker costs a few rounds, and nothing else."""
    kept = (
        "checkpoint.every=5",
        "num_rounds=[40]",
        "stopping=none",
        "resume=auto",
        "sleep_time=0.01",
    )
    process = torchrun(
        place, 2, *SHORT, *kept, f"hydra.run.dir={tmp_path}/run", options=("--max-restarts", "2")
    )
    try:
        wait_until(
            lambda: list(tmp_path.glob("run/state/rank1/step1-*.state")), 90, "a state of layer 1"
        )
        workers = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if listens(child)
        ]
        workers[-1].kill()
        ended = finish(process)
    finally:
        kill_group(process.pid)
    assert ended.rc == 0, ended.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["resumed"]["layer"] == 1
    whole = run_main(*SHORT, *kept, f"hydra.run.dir={tmp_path}/whole", cwd=place)
    assert whole.rc == 0, whole.output
    for layer in (0, 1):
        name = f"checkpoint/layer{layer}.safetensors"
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


# --- Slurm, and contradictions ----------


def slurm(rank: int, **more: str) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": str(rank),
        "SLURM_NODELIST": "node7",
        "SLURM_JOB_ID": str(free_port() - 10_011),
        "SLURM_STEP_ID": "0",
        **more,
    }


@pytest.mark.long("test_launcher_env.py has its variables, torchrun starts a run")
def test_slurm_needs_nothing_else(place: Path, tmp_path: Path) -> None:
    """As srun would start two tasks on one machine, both in one run directory."""
    job = {"SLURM_JOB_ID": str(free_port() - 10_011)}
    command = (*SHORT, f"hydra.run.dir={tmp_path}/run")
    other = start_cli(*command, cwd=place, env=slurm(1, **job))
    for ended in (run_main(*command, cwd=place, env=slurm(0, **job)), finish(other)):
        assert ended.rc == 0, ended.output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "done"


CONTRADICTIONS = {
    "tasks": ({"SLURM_NTASKS": "3"}, (), ("num_partitions=2", "Slurm started 3 process(es)")),
    "node_rank": ({}, ("node_rank=0",), ("node_rank=0", "Slurm")),
    "torchrun": (
        {"RANK": "0", "WORLD_SIZE": "4"},
        (),
        ("num_partitions=2", "torchrun started 4 process(es)"),
    ),
    "no number": ({"RANK": "first", "WORLD_SIZE": "2"}, (), ("RANK=first",)),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_ends_with_status_2(place: Path, tmp_path: Path, name: str) -> None:
    environment, arguments, words = CONTRADICTIONS[name]
    run_dir = f"hydra.run.dir={tmp_path}/run"
    ended = run_main(*SHORT, *arguments, run_dir, cwd=place, env=slurm(0, **environment))
    assert ended.rc == 2, ended.output
    for word in words:
        assert word in error_of(ended)
