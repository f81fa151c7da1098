"""Nodes that only open connections meet by a hub, which joins connections and cannot read them."""

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest
import torch
from support import (
    finish,
    free_port,
    kill_group,
    make_credentials,
    random_graph,
    run_main,
    start_cli,
    swap,
    thirds,
    wait_until,
    write_partitions,
)

pytest.importorskip("cryptography")

from test_rendezvous import attend, cluster, connect_node
from test_tls import SITES, client_context, stream_to

from partitioning.errors import InputError
from retexo.apps import train
from retexo.comm.process_group import connected
from retexo.errors import TrainingError
from retexo.launch import addresses
from retexo.launch.control_channel import Channel, ChannelClosed, connect
from retexo.settings.compose import compose
from retexo.sites import hub
from retexo.sites.certificates import read_credentials
from retexo.sites.hub import Hub, HubListener, HubServer
from retexo.sites.tls import Tls


@dataclass
class Served:
    folder: Path
    port: int
    seen: list[bytes]
    """What went through the hub."""

    def tls(self, node: int) -> Tls:
        return Tls(read_credentials(self.folder / (*SITES, "hub")[node], node, 3))

    def seen_by(self, node: int) -> Hub:
        return Hub("127.0.0.1", self.port, self.tls(node), 3)

    def cluster(self, node: int, **fields: Any) -> Any:
        own = {"parts": 3, "backend": "sockets", "credentials": str(self.folder / SITES[node])}
        return cluster(node, 1, **{**own, "hub": f"127.0.0.1:{self.port}", **fields})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_credentials(tmp_path_factory.mktemp("hub") / "keys", *SITES, "hub")[0].parent


@pytest.fixture
def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A hub in a thread, and nodes that cannot listen."""
    seen: list[bytes] = []
    forward = hub._forward

    class Noted:
        def __init__(self, stream: socket.socket) -> None:
            self._stream = stream

        def recv(self, count: int) -> bytes:
            content = self._stream.recv(count)
            seen.append(content)
            return content

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    def noted(source: Any, target: socket.socket, nodes: tuple[int, int]) -> None:
        forward(Noted(source), target, nodes)  # type: ignore[arg-type]

    def refuse(address: str, port: int) -> socket.socket:
        raise AssertionError("a node listens")

    monkeypatch.setattr(hub, "_forward", noted)
    monkeypatch.setattr(addresses, "listen", refuse)
    ended = threading.Event()
    with (
        socket.create_server(("127.0.0.1", 0), backlog=64) as listener,
        ThreadPoolExecutor(1) as pool,
    ):
        there = Served(folder, listener.getsockname()[1], seen)
        server = HubServer(listener, there.tls(3))

        def serve() -> None:
            while not ended.is_set():
                server.step(0.05)

        serving = pool.submit(serve)
        yield there
        ended.set()
        serving.result(10)


def test_three_nodes_that_only_open_connections(served: Served) -> None:
    """They meet, hear each other, and swap; the hub sees none of it."""
    canaries = [os.urandom(4000) for _ in range(3)]

    def work(node: int) -> str:
        with connect_node(served.cluster(node)) as met:
            assert set(met.links) == {0, 1, 2} - {node}
            for link in met.links.values():
                link.send({"canary": canaries[node].hex()[:100]})
            assert met.streams is not None
            with connected(met.rendezvous, node, met.streams[node]) as transport:
                own = torch.frombuffer(bytearray(canaries[node]), dtype=torch.uint8)
                received = swap(transport, [own] * 3, [4000] * 3)
                assert [bytes(each.tolist()) for each in received] == canaries
            return met.run_id

    with ThreadPoolExecutor(3) as pool:
        ids = [future.result(60) for future in [pool.submit(work, node) for node in range(3)]]
    assert len(set(ids)) == 1
    through = b"".join(served.seen)
    assert len(through) > 6 * 4000
    assert not any(each[:20] in through or each.hex()[:40].encode() in through for each in canaries)


def met(clusters: list[Any]) -> list[dict[int, str]]:
    """Nodes that meet and swap; of each, by the other worker, the address that its stream comes
    from or goes to.
    """

    def work(node: int) -> dict[int, str]:
        with connect_node(clusters[node]) as here:
            assert set(here.links) == {0, 1, 2} - {node}
            for link in here.links.values():
                link.send({"from": node})
            assert {link.receive_one(20)["from"] for link in here.links.values()} == set(here.links)
            assert here.streams is not None
            assert set(here.streams[node]) == set(here.links)
            ports = {peer: each.getpeername()[1] for peer, each in here.streams[node].items()}
            ports |= {~peer: each.getsockname()[1] for peer, each in here.streams[node].items()}
            with connected(here.rendezvous, node, here.streams[node]) as transport:
                received = swap(
                    transport, [torch.tensor([10 * node + peer]) for peer in range(3)], [1] * 3
                )
                assert [int(each) for each in received] == [10 * peer + node for peer in range(3)]
            return ports

    with ThreadPoolExecutor(3) as pool:
        return [future.result(60) for future in [pool.submit(work, node) for node in range(3)]]


def test_node_0_is_the_hub_where_no_other_is_listed(tmp_path: Path) -> None:
    folder, port = make_credentials(tmp_path / "keys", *SITES)[0].parent, free_port()
    there = Served(folder, port, [])
    ports = met([there.cluster(node) for node in range(3)])
    assert ports[1][2] == ports[2][1] == port
    assert ports[1][0] == ports[2][0] == port
    assert ports[0][~1] == ports[0][~2] == port, "node 0 has them by way of itself"
    with socket.create_server(("127.0.0.1", port)):
        kind, said = attend(there.cluster(0))
    assert kind == "InputError"
    assert "members.json lists no hub after the nodes, so node 0 is the hub" in said


def test_a_node_that_comes_late_is_waited_for(served: Served) -> None:
    with ThreadPoolExecutor(3) as pool:
        late = [pool.submit(attend, served.cluster(node)) for node in (1, 2)]
        with pytest.raises(ChannelClosed, match="node 0 is not at the hub"):
            served.seen_by(2).reach(0, 5.0)
        outcomes = [future.result(60) for future in (pool.submit(attend, served.cluster(0)), *late)]
    assert len(set(outcomes)) == 1
    assert len(outcomes[0][0]) == 16


def test_who_is_no_member_gets_nothing_of_a_hub(served: Served) -> None:
    """No seat for who has no certificate, a token of nobody's, or one that was used."""
    with waiting_at(served, 0) as listener:
        with stream_to(served.port) as stream:
            stream.sendall(json.dumps({"listen": True}).encode() + b"\n")
            assert b"not a node of this hub" in stream.recv(1000)
        with (
            contextlib.suppress(OSError),
            client_context(None).wrap_socket(stream_to(served.port)) as stream,
        ):
            stream.sendall(b'{"reach": 0}\n')
            assert b"token" not in stream.recv(1000)
        link = connect("127.0.0.1", served.port, 5.0, served.tls(1), 3)
        link.send({"reach": 0})
        token = link.receive_one(5.0)["token"]
        first, second = (connect("127.0.0.1", served.port, 5.0) for _ in range(2))
        first.send({"token": token})
        while not (arrived := accepted(listener)):
            pass
        assert first.receive_one(5.0) == {"joined": True}
        second.send({"token": token})
        assert "refused" in second.receive_one(5.0)
        first.detach().sendall(b"through")
        assert arrived.recv(100) == b"through"


@contextlib.contextmanager
def waiting_at(served: Served, node: int) -> Iterator[HubListener]:
    listener = served.seen_by(node).wait(5.0)
    yield listener
    listener.close()


def accepted(listener: HubListener) -> socket.socket | None:
    with contextlib.suppress(BlockingIOError):
        return listener.accept()[0]
    return None


def test_a_hub_that_ends_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        there = Served(folder, server.getsockname()[1], [])
        waiting = pool.submit(there.seen_by(0).wait, 5.0)
        channel = Channel(server.accept()[0], there.tls(3))
        while not (messages := channel.receive()):
            pass
        assert messages == [{"listen": True}]
        listener = waiting.result(5)
        channel.close()
        connection.wait([listener], 5)  # type: ignore[list-item]
        with pytest.raises(TrainingError, match=f"the hub 127.0.0.1:{there.port} has ended"):
            accepted(listener)
    outcome = attend(there.cluster(1, init_timeout=1.0))
    assert outcome[0] == "TrainingError"
    assert f"distributed.hub=127.0.0.1:{there.port}: not reached" in outcome[1]


@pytest.mark.long("test_restart.py has other lost connections")
@pytest.mark.timeout(240)
def test_a_run_restarts_when_its_hub_is_killed_and_started_again(tmp_path: Path) -> None:
    """All connections break with it. The files equal those of a run on one node."""
    graph = random_graph(60, 240, width=30)
    write_partitions(tmp_path, graph, thirds(60), [node % 5 % 3 for node in range(60)], 3)
    common = [
        "app=train",
        "dataset_name=file",
        "dataset_file=toy.npz",
        "num_partitions=3",
        "num_rounds=[30]",
        "stopping=none",
        "hidden_dim=8",
        "cluster.threads=1",
        "device=cpu",
        "parts_per_node=1",
        "distributed.backend=sockets",
        "checkpoint.every=5",
        f"partition_dir={tmp_path}",
    ]
    train.run(compose([*common, "parts_per_node=null"]), tmp_path / "alone")
    keys = make_credentials(tmp_path / "keys", *SITES, "hub")
    where = f"distributed.hub=127.0.0.1:{free_port()}"

    def start_hub() -> subprocess.Popen[str]:
        own = (
            "app=hub",
            "num_partitions=3",
            "parts_per_node=1",
            "distributed.backend=sockets",
            where,
        )
        return start_cli(*own, f"distributed.credentials={keys[3]}", cwd=tmp_path)

    nodes = [
        start_cli(
            *common,
            where,
            f"distributed.credentials={keys[node]}",
            f"node_rank={node}",
            "sleep_time=0.05",
            f"hydra.run.dir={tmp_path}/run{node}",
            cwd=tmp_path,
        )
        for node in range(3)
    ]
    server = start_hub()
    try:
        saved = tmp_path / "run0" / "state" / "rank0" / "step0-5.state"
        wait_until(saved.exists, 90, "a saved round")
        kill_group(server.pid)
        server.communicate()
        server = start_hub()
        ended = [finish(process, timeout=120) for process in nodes]
    finally:
        kill_group(server.pid)
        server.communicate()
    assert [each.rc for each in ended] == [0, 0, 0], "".join(each.output for each in ended)
    summary = json.loads((tmp_path / "run0" / "summary.json").read_text())
    assert summary["restarts"]["count"] == 1
    assert "is lost: connection closed" in summary["restarts"]["causes"][0]
    for layer in ("layer0.safetensors", "layer1.safetensors"):
        one, other = (
            (tmp_path / name / "checkpoint" / layer).read_bytes() for name in ("run0", "alone")
        )
        assert one == other


def test_settings_of_a_hub(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"node 0 is reached at distributed\.master_port, or at the hub"
    ):
        cluster(0, 1, inbound_port=5)
    with pytest.raises(InputError, match="a hub joins encrypted connections only"):
        cluster(0, 1, hub="a:1")
    ended = run_main("app=hub", "num_partitions=3", "parts_per_node=1", cwd=tmp_path)
    assert ended.rc == 2
    assert "app=hub: needs distributed.hub=ADDRESS:PORT" in ended.stderr
