"""scripts/launch.py with an ssh and an rsync that stay on this machine."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support import (
    ROOT,
    Ended,
    finish,
    group_members,
    kill_group,
    random_graph,
    run_main,
    thirds,
    wait_until,
    write_partitions,
)

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
def place(tmp_path: Path) -> Path:
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


def environment(place: Path) -> dict[str, str]:
    return {
        "PATH": f"{place}/bin:{os.environ['PATH']}",
        "FAKE": str(place),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


def launch(place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "launch.py"), *command(*arguments)],
        cwd=place,
        env={**os.environ, **environment(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def refused(place: Path, *arguments: str) -> Ended:
    """How the same command ends within this process."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        return run_main(
            *command(*arguments), cwd=place, env=environment(place), script="scripts/launch.py"
        )
    finally:
        signal.signal(signal.SIGTERM, before)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_each_host_gets_its_parts_and_all_train(place: Path) -> None:
    """With a configuration of the user's own."""
    (place / "own" / "experiment").mkdir(parents=True)
    (place / "own" / "experiment" / "short.yaml").write_text(
        "# @package _global_\nnum_rounds: [3]\n"
    )
    ended = finish(
        launch(place, "--config-dir=own", "+experiment=short", *DATA, "hydra.run.dir=run")
    )
    assert ended.rc == 0, ended.output
    assert sorted((place / "ssh.log").read_text().split()) == [
        "beta",
        "me@alpha",
    ]  # they are called at once
    lines = ended.stdout.splitlines()
    assert all(line.startswith(("[me@alpha] ", "[beta] ")) for line in lines), ended.stdout
    assert any(line.startswith("[me@alpha] accuracy") for line in lines)
    summary = json.loads((place / "run" / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("done", [3, 3])
    whole = files(place / "parts" / "toy-random-vol-3")
    for host, ranks in (("me@alpha", (0, 1)), ("beta", (2,))):
        there = place / f"disk-{host}" / str(place).lstrip("/") / "parts" / "toy-random-vol-3"
        theirs = ("meta", "toy", *(f"part{rank}/" for rank in ranks))
        assert files(there) == {name for name in whole if name.startswith(theirs)}


def workers(place: Path) -> list[psutil.Process]:
    """What still runs in the project's folder."""
    processes = psutil.process_iter(["cwd"])
    return [process for process in processes if process.info["cwd"] == str(place)]


@pytest.mark.long("a host that cannot be reached ends the others likewise")
@pytest.mark.parametrize(
    ("number", "status"),
    [pytest.param(signal.SIGINT, 130, id="INT"), pytest.param(signal.SIGKILL, -9, id="KILL")],
)
def test_all_end_with_the_launcher(place: Path, number: signal.Signals, status: int) -> None:
    process = launch(
        place, "app=train", *DATA, "num_rounds=[1000000]", "stopping=none", "hydra.run.dir=run"
    )
    try:
        metrics = place / "run" / "metrics.jsonl"
        wait_until(
            lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size),
            90,
            "training",
        )
        process.send_signal(number)
        ended = finish(process, timeout=40)
        assert ended.rc == status, ended.output
        wait_until(
            lambda: not workers(place) and not group_members(process.pid),
            30,
            f"nothing runs: {workers(place)}",
        )
        assert json.loads((place / "run" / "summary.json").read_text())["status"] == "failed"
    finally:
        kill_group(process.pid)


def test_a_host_that_cannot_be_reached_ends_the_others(place: Path) -> None:
    (place / "hosts.txt").write_text("alpha\naway\n")
    ended = finish(
        launch(place, "app=train", *DATA, "hydra.run.dir=run", "distributed.init_timeout=60")
    )
    assert ended.rc == 1, ended.output
    assert "error: away ended with status 255" in ended.stderr
    assert "[away] ssh: connect to host away: No route to host" in ended.stdout
    wait_until(lambda: not workers(place), 30, "nothing runs")


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
def test_mistakes(place: Path, name: str) -> None:
    hosts, arguments, words = MISTAKES[name]
    (place / "hosts.txt").write_text(hosts)
    ended = refused(place, "app=train", *DATA, *arguments)
    assert ended.rc == 2, ended.output
    assert words in ended.stderr
    assert "Traceback" not in ended.output
    assert not (place / "ssh.log").exists()
