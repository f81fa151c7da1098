"""Ways to start a run on several nodes.

They are torchrun, scripts/launch.py with an ssh and an rsync that stay here, and the files
of deploy/, whose settings are read without running a container.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import hydra
import psutil
import pytest
import yaml
from support import (
    ROOT,
    Ended,
    finish,
    kill_group,
    random_graph,
    run_main,
    snapshot,
    thirds,
    wait_until,
    write_partitions,
)

from retexo.settings.compose import load_settings
from retexo.settings.run_settings import Settings
from retexo.settings.schema import CONFIG_DIR

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
    resumable = (
        "checkpoint.every=5",
        "num_rounds=[40]",
        "stopping=none",
        "resume=auto",
        "sleep_time=0.01",
    )
    process = torchrun(
        place,
        2,
        *SHORT,
        *resumable,
        f"hydra.run.dir={tmp_path}/run",
        options=("--max-restarts", "2"),
    )
    try:
        wait_until(
            lambda: list(tmp_path.glob("run/state/rank1/step1-*.state")), "a state of layer 1"
        )
        workers = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if listens(child)
        ]
        workers[-1].kill()
        finish(process)
    finally:
        kill_group(process.pid)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["resumed"]["layer"] == 1
    run_main(*SHORT, *resumable, f"hydra.run.dir={tmp_path}/whole", cwd=place)
    for layer in (0, 1):
        name = f"checkpoint/layer{layer}.safetensors"
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


SSH = """#!/bin/sh
# ssh -o BatchMode=yes HOST COMMAND
shift 2; host=$1; shift
[ "$host" = away ] && { echo "ssh: connect to host away: No route to host" >&2; exit 255; }
echo "$host" >> "$FAKE/ssh.log"
exec sh -c "$*"
"""
RSYNC = """#!/bin/sh
# rsync -a -e SSH --rsync-path MAKE FILES... HOST:THERE/
shift 5
for last; do :; done
host=${last%%:*}; there=$FAKE/disk-$host/${last#*:}
mkdir -p "$there"
for file; do [ "$file" = "$last" ] || cp -rn "$file" "$there"; done
"""
DATA = (
    "dataset_name=file",
    "dataset_file=toy.npz",
    "partition_dir=parts",
    "num_partitions=3",
    "hidden_dim=8",
    "device=cpu",
    "cluster.threads=1",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder with partitions, hosts.txt, and a folder of fake programs."""
    write_partitions(
        tmp_path / "parts", random_graph(), thirds(40), [node % 3 for node in range(40)], 3
    )
    for name, text in (("ssh", SSH), ("rsync", RSYNC)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    for name in ("main.py", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "hosts.txt").write_text("# two machines\nme@alpha\n\nbeta  # the other\n")
    return tmp_path


def command(*arguments: str) -> tuple[str, ...]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    here = (
        "distributed.interface=lo",
        "distributed.master_addr=127.0.0.1",
        f"distributed.master_port={port}",
    )
    return "--python", sys.executable, "hosts.txt", *arguments, *here


def environment(project: Path) -> dict[str, str]:
    return {
        "PATH": f"{project}/bin:{os.environ['PATH']}",
        "FAKE": str(project),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


def launch(project: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "launch.py"), *command(*arguments)],
        cwd=project,
        env={**os.environ, **environment(project)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def refused(project: Path, *arguments: str) -> Ended:
    """Run the launcher's command within this process, which must end with status 2."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        return run_main(
            *command(*arguments),
            cwd=project,
            rc=2,
            env=environment(project),
            script="scripts/launch.py",
        )
    finally:
        signal.signal(signal.SIGTERM, before)


def test_each_host_gets_its_parts_and_all_train(project: Path) -> None:
    """The command uses a configuration in the user's own folder."""
    (project / "own" / "experiment").mkdir(parents=True)
    (project / "own" / "experiment" / "short.yaml").write_text(
        "# @package _global_\nnum_rounds: [3]\n"
    )
    ended = finish(
        launch(project, "--config-dir=own", "+experiment=short", *DATA, "hydra.run.dir=run")
    )
    assert sorted((project / "ssh.log").read_text().split()) == [
        "beta",
        "me@alpha",
    ]  # they are called at once
    lines = ended.stdout.splitlines()
    assert all(line.startswith(("[me@alpha] ", "[beta] ")) for line in lines), ended.stdout
    assert any(line.startswith("[me@alpha] accuracy") for line in lines)
    summary = json.loads((project / "run" / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("done", [3, 3])
    all_files = snapshot(project / "parts" / "toy-random-vol-3")
    for host, ranks in (("me@alpha", (0, 1)), ("beta", (2,))):
        there = project / f"disk-{host}" / str(project).lstrip("/") / "parts" / "toy-random-vol-3"
        theirs = ("meta", "toy", *(f"part{rank}/" for rank in ranks))
        assert snapshot(there).keys() == {name for name in all_files if name.startswith(theirs)}


def workers(project: Path) -> list[psutil.Process]:
    """Return the processes that run in the project's folder."""
    processes = psutil.process_iter(["cwd"])
    return [process for process in processes if process.info["cwd"] == str(project)]


def test_a_host_that_cannot_be_reached_ends_the_others(project: Path) -> None:
    (project / "hosts.txt").write_text("alpha\naway\n")
    ended = finish(
        launch(project, "app=train", *DATA, "hydra.run.dir=run", "distributed.init_timeout=60"),
        rc=1,
    )
    assert "error: away ended with status 255" in ended.stderr
    assert "[away] ssh: connect to host away: No route to host" in ended.stdout
    wait_until(lambda: not workers(project), "nothing runs")


MISTAKES = {
    "no hosts": ("# none\n", (), "names no host"),
    "no host": ("a b\n", (), "'a b' is no host"),
    "option": ("-oProxyCommand=touch${IFS}x\n", (), "is no host"),
    "too many": ("a\nb\nc\nd\n", (), "4 hosts for 3 partitions"),
    "rank": ("a\n", ("node_rank=1",), "node_rank: the launcher sets it"),
    "setting": ("a\n", ("hiden_dim=1",), "hiden_dim"),
    "partitions": (
        "a\n",
        ("partition_dir=elsewhere", "dataset_name=reddit", "dataset_file=null"),
        "no partition directory",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(project: Path, name: str) -> None:
    hosts, arguments, words = MISTAKES[name]
    (project / "hosts.txt").write_text(hosts)
    ended = refused(project, "app=train", *DATA, *arguments)
    assert words in ended.stderr
    assert "Traceback" not in ended.output
    assert not (project / "ssh.log").exists()


DEPLOY = ROOT / "deploy"


def read(name: str) -> dict[str, Any]:
    """The last document of a file."""
    *_, last = yaml.safe_load_all((DEPLOY / name).read_text())
    return dict(last)


def pod(job: dict[str, Any]) -> dict[str, Any]:
    """The only container of a job's pods."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return dict(container)


def arguments(container: dict[str, Any], environ: dict[str, str]) -> list[str]:
    """The arguments as the kubelet passes them: $(NAME) is a variable of the container."""
    return [
        re.sub(r"\$\((\w+)\)", lambda name: environ[name[1]], argument)
        for argument in container["args"]
    ]


def settings_of(words: list[str], environ: dict[str, str]) -> tuple[Settings, str]:
    """Settings and run directory of the command with these arguments in this environment."""
    assert words[0] == "--config-name"
    with hydra.initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        overrides = [word for word in words[2:] if not word.startswith("hydra.")]
        settings = load_settings(
            hydra.compose(words[1], overrides), overrides, words[1], environ=environ
        )
    (run_dir,) = (word.partition("=")[2] for word in words if word.startswith("hydra.run.dir="))
    return settings, run_dir


def kubernetes() -> tuple[list[str], dict[str, str]]:
    environ = {"JOB_COMPLETION_INDEX": "1", "RETEXO_RUN_KEY": "uid"}
    return arguments(pod(read("kubernetes/train.yaml")), environ), environ


def pytorchjob() -> tuple[list[str], dict[str, str]]:
    worker = read("kubernetes/pytorchjob.yaml")["spec"]["pytorchReplicaSpecs"]["Worker"]
    environ = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "retexo-master-0",
        "MASTER_PORT": "23456",
        "RETEXO_RUN_KEY": "retexo",
    }
    return arguments(pod({"spec": worker}), environ), environ


def compose_file() -> tuple[list[str], dict[str, str]]:
    return read("compose.yaml")["services"]["node1"]["command"], {"RETEXO_RUN_KEY": "compose"}


def slurm() -> tuple[list[str], dict[str, str]]:
    environ = {
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_NODELIST": "gpu[07-08]",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "12",
    }
    (command,) = re.findall(r"srun .* main\.py (.*\\\n.*)", (DEPLOY / "slurm.sh").read_text())
    for old, new in (("=4", "=2"), ("$SLURM_JOB_ID", "12/node1"), ('"$@"', ""), ("\\\n", "")):
        command = command.replace(old, new)
    words = shlex.split(command)
    return words, environ


@pytest.mark.parametrize(
    ("case", "address", "port", "key"),
    [
        (kubernetes, "retexo-train-0.retexo", 10011, "uid"),
        (pytorchjob, "retexo-master-0", 23456, "retexo"),
        (compose_file, "node0", 10011, "compose"),
        (slurm, "gpu07", 10023, "Slurm 12 step "),
    ],
)
def test_the_environment_of_a_scheduler_becomes_settings(
    case: Any, address: str, port: int, key: str
) -> None:
    """The settings are those of the second of two nodes, which resumes after a failure."""
    settings, run_dir = settings_of(*case())
    cluster = settings
    assert (cluster.num_nodes, cluster.node_rank, cluster.parts_per_node) == (2, 1, 1)
    assert (cluster.distributed.master_addr, cluster.distributed.master_port, cluster.run_key) == (
        address,
        port,
        key,
    )
    assert settings.checkpoint.every
    assert settings.stored["resume"] == "auto"
    assert run_dir.endswith("node1")


def test_the_files_for_kubernetes_agree() -> None:
    """Number of pods, names and places, which several files and fields repeat."""
    service, job = yaml.safe_load_all((DEPLOY / "kubernetes" / "train.yaml").read_text())
    spec, name = job["spec"], job["metadata"]["name"]
    words = pod(job)["args"]
    assert f"distributed.master_addr={name}-0.{service['metadata']['name']}" in words
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert spec["completions"] == spec["parallelism"] == 2
    (rule, _) = spec["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == pod(job)["name"]
    replicas = read("kubernetes/pytorchjob.yaml")["spec"]["pytorchReplicaSpecs"]
    assert sum(replica["replicas"] for replica in replicas.values()) == 2
    shared = {"dataset_name=cora", "num_partitions=2", "partition_dir=/data/partitions"}
    for container in (
        pod(job),
        pod(read("kubernetes/partition.yaml")),
        pod({"spec": replicas["Master"]}),
    ):
        assert shared <= set(container["args"])
