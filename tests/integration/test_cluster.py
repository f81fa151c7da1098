"""Several nodes that differ, as parents on loopback; a run under torchrun."""

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
    finish,
    free_port,
    kill_group,
    random_graph,
    run_main,
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
