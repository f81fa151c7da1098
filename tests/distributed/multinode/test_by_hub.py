"""Three nodes that reach nothing but a hub, or that nobody reaches, encrypted, with secure sums;
what packets show.
"""

import contextlib
import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import firewall
import namespaces
import numpy as np
import pytest
import scipy.sparse as sp
from support import (
    Ended,
    finish,
    make_credentials,
    start_cli,
    wait_until,
)

from partitioning import datasets, node_split
from partitioning.site_folders import write_sites
from retexo.settings.compose import compose

CAPTURE = """
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
with open(sys.argv[1], "wb", 0) as file:
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


def run_nodes(
    nodes: list[namespaces.Node], folder: Path, *more: str, each: list[list[str]], run: str = "run"
) -> list[Ended]:
    processes = [
        start_cli(
            "app=train",
            "parts_per_node=1",
            f"node_rank={rank}",
            "distributed.backend=sockets",
            f"hydra.run.dir={folder}/{run}{rank}",
            *more,
            *each[rank],
            cwd=folder,
            prefix=node.prefix,
        )
        for rank, node in enumerate(nodes)
    ]
    return [finish(process) for process in processes]


CORA = (
    "dataset_name=parts",
    "num_partitions=3",
    "cluster.threads=1",
    "device=cpu",
    "exchange=plain",
    "exchange.precision=fp32",
    "stopping=none",
    "num_rounds=[40]",
    "gradient.precision=fp32",
)


def cora_with_canaries(folder: Path) -> tuple[list[Path], list[bytes], list[bytes]]:
    """Cora at three sites, with four more columns of random numbers and random ids of 48 bits: what
    to look for.
    """
    settings = compose(["dataset_name=cora"]).partition.dataset
    graph = datasets.load(settings)
    rng = np.random.default_rng(7)
    more = 0.01 * rng.standard_normal((graph.num_nodes, 4)).astype(np.float32)
    ids = rng.choice(np.arange(1 << 47, 1 << 48, 1 << 33), graph.num_nodes, replace=False)
    ids += rng.integers(1 << 33, size=graph.num_nodes)
    features = np.hstack([sp.csr_matrix(graph.features).toarray(), more])
    graph = dataclasses.replace(graph, features=features, node_ids=ids)
    split = node_split.draw(graph, settings.split, datasets.recipe("cora").split)
    masks = {"train_mask": split.train, "val_mask": split.val, "test_mask": split.test}
    owner = rng.integers(3, size=graph.num_nodes)
    sites = write_sites(folder, graph, masks, owner, ("north", "east", "south"))
    ends = np.stack([owner[graph.dst], owner[graph.src]], axis=1)
    asked = [
        ids[graph.src[(ends == pair).all(axis=1)]] for pair in itertools.permutations(range(3), 2)
    ]
    shown = {
        int(each) for some in asked for each in (some.min(), some.max())
    }  # the others are coded by these
    return (
        list(sites),
        [row.tobytes() for row in more[:100]],
        [each.to_bytes(8, "little") for each in shown],
    )


@pytest.mark.long("test_hub.py has the hub within node 0, test_residency.py the run over TLS")
@pytest.mark.timeout(400)
def test_cora_at_sites_whose_firewalls_let_nobody_in(tmp_path: Path) -> None:
    """Two of three; node 0 is the hub. A capture at each finds canaries without TLS, and none with
    it.
    """
    sites, rows, ids = cora_with_canaries(tmp_path / "sites")
    keys = make_credentials(tmp_path / "keys", "north", "east", "south")
    data = [[f"dataset_file={site}"] for site in sites]
    counted = {}
    for run in ("plain", "secure"):
        with namespaces.network(3) as nodes, contextlib.ExitStack() as stack:
            for node in nodes:
                stack.enter_context(captured(node, tmp_path / f"{run}-{node.address}"))
            if run == "plain":
                more, each = (
                    [f"distributed.master_addr={nodes[0].address}", "distributed.tls=false"],
                    data,
                )
            else:
                for node in nodes[1:]:
                    firewall.close_inbound(node.namespace)
                more = [f"distributed.hub={nodes[0].address}:7000", "gradient.secure=true"]
                each = [
                    [*own, f"distributed.credentials={key}"]
                    for own, key in zip(data, keys, strict=True)
                ]
            ended = run_nodes(nodes, tmp_path, *CORA, *more, each=each, run=run)
            assert [one.rc for one in ended] == [0, 0, 0], ended[0].output
            sent = [node.sent()[0] for node in nodes]
        packets = b"".join((tmp_path / f"{run}-{node.address}").read_bytes() for node in nodes)
        found = sum(row in packets for row in rows), sum(each in packets for each in ids)
        summary = json.loads((tmp_path / f"{run}0" / "summary.json").read_text())
        counted[run] = summary["bytes"]["by_peer"], sent, found, summary["test"]["accuracy"]
        print(run, counted[run])
    (plain, plain_sent, found, _), (secure, secure_sent, none, accuracy) = (
        counted["plain"],
        counted["secure"],
    )
    assert found[0] > 5
    assert found[1] == len(ids)
    assert none == (0, 0)
    assert accuracy > 0.75
    for own, wire in zip(plain, plain_sent, strict=True):
        assert sum(own) < wire < 1.1 * sum(own) + 100_000
    for own, wire in zip(secure[1:], secure_sent[1:], strict=True):
        assert sum(own) < wire < 1.1 * sum(own) + 100_000
    relayed = secure[1][2] + secure[2][1]  # node 0 passes on what the two others send each other
    assert sum(secure[0]) + relayed < secure_sent[0] < 1.1 * (sum(secure[0]) + relayed) + 100_000
