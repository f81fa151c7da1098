"""Three nodes that reach nothing but a hub, encrypted, with secure sums; what a capture of their packets shows."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import namespaces
import numpy as np
import pytest
from support import (
    Ended,
    finish,
    kill_group,
    make_credentials,
    random_graph,
    start_cli,
    thirds,
    wait_until,
    write_partitions,
)

from retexo.apps import train
from retexo.config.compose import compose

SECURE = ("gradient.secure=true", "gradient.precision=fp32")
SMALL = ("app=train", "dataset_name=file", "dataset_file=toy.npz", "num_partitions=3", "num_rounds=[3]", "hidden_dim=6",
         "cluster.threads=1", "device=cpu", "exchange=plain", "exchange.precision=fp32")  # fmt: skip
CAPTURE = """
import socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)) as wire, open(sys.argv[1], "wb", 0) as file:
    file.write(b"begun")
    while True:
        file.write(wire.recv(1 << 16))
"""


@contextlib.contextmanager
def captured(node: namespaces.Node, file: Path) -> Iterator[None]:
    """All packets that arrive at a node, or leave it, in a file."""
    process = subprocess.Popen([*node.prefix, sys.executable, "-c", CAPTURE, str(file)])
    try:
        wait_until(lambda: file.exists() and file.stat().st_size, 20, "the capture begins")
        yield
    finally:
        process.kill()
        process.wait()


def reach_only(node: namespaces.Node, other: namespaces.Node) -> None:
    """Take all routes away but that to one other node."""
    for change in (["del", "10.0.0.0/24"], ["add", f"{other.address}/32"]):
        subprocess.run(["ip", "-n", node.namespace, "route", *change, "dev", namespaces.DEVICE], check=True)


def run_nodes(nodes: list[namespaces.Node], folder: Path, *more: str, each: list[str]) -> list[Ended]:
    processes = [
        start_cli(*SMALL, "parts_per_node=1", f"node_rank={rank}", f"partition_dir={folder}",
                  "distributed.backend=sockets", f"hydra.run.dir={folder}/run{rank}", *more, each[rank],
                  cwd=folder, prefix=node.prefix)
        for rank, node in enumerate(nodes)
    ]  # fmt: skip
    return [finish(process) for process in processes]


@pytest.mark.long("test_hub.py has the hub itself, test_residency.py the run over TLS")
@pytest.mark.timeout(300)
def test_three_nodes_that_reach_a_hub_alone(tmp_path: Path) -> None:
    graph = random_graph(60, 240)
    write_partitions(tmp_path, graph, thirds(60), [node % 5 % 3 for node in range(60)], 3)
    keys = make_credentials(tmp_path / "keys", "north", "east", "south", "hub")
    rows = [row.astype(np.float32).tobytes()[:16] for row in graph.features]
    with namespaces.network(3) as nodes, captured(nodes[0], tmp_path / "plain"):
        open_ = run_nodes(
            nodes, tmp_path, f"distributed.master_addr={nodes[0].address}", each=["distributed.tls=false"] * 3
        )
    assert [ended.rc for ended in open_] == [0, 0, 0], open_[0].output
    assert "nothing is encrypted" in open_[0].output
    packets = (tmp_path / "plain").read_bytes()
    assert sum(row in packets for row in rows) > 5
    for rank in range(3):
        (tmp_path / f"run{rank}").rename(tmp_path / f"open{rank}")

    with namespaces.network(4) as [*nodes, middle]:
        for node in nodes:
            reach_only(node, middle)
        where = f"distributed.hub={middle.address}:7000"
        hub = start_cli("app=hub", "num_partitions=3", "parts_per_node=1", "distributed.backend=sockets", where,
                        f"distributed.credentials={keys[3]}", cwd=tmp_path, prefix=middle.prefix)  # fmt: skip
        try:
            with captured(middle, tmp_path / "secure"):
                each = [f"distributed.credentials={folder}" for folder in keys[:3]]
                secure = run_nodes(nodes, tmp_path, where, *SECURE, each=each)
        finally:
            kill_group(hub.pid)
            hub.communicate()
    assert [ended.rc for ended in secure] == [0, 0, 0], secure[0].output
    packets = (tmp_path / "secure").read_bytes()
    assert len(packets) > 50_000
    assert not any(row in packets for row in rows)
    alone = train.run(compose([*SMALL, *SECURE, f"partition_dir={tmp_path}"]), tmp_path / "alone")
    assert alone["status"] == "done"
    for layer in ("layer0.safetensors", "layer1.safetensors"):
        one, other = ((tmp_path / name / "checkpoint" / layer).read_bytes() for name in ("run0", "alone"))
        assert one == other
