"""Nodes with certificates find each other, and nobody else takes a seat, reads, or interferes.

A hub joins nodes that only open connections, and cannot read what they send. Masks hide the shares
of sums.
"""

import contextlib
import io
import itertools
import json
import re
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest
import torch
from support import (
    assert_sent_as_planned,
    finish,
    free_port,
    make_credentials,
    random_graph,
    run_main,
    running_cli,
    snapshot,
    swap,
    thirds,
    together,
    write_partitions,
)
from test_rendezvous import Outcome, attend, cluster, connect_node, node_info, stream_to

from partitioning.errors import InputError
from retexo.apps import credentials as authority
from retexo.apps import plan, train
from retexo.comm.masks import PairwiseMasks
from retexo.comm.process_group import connected
from retexo.comm.socket_transport import Streams
from retexo.comm.transport import PeerLost
from retexo.errors import TrainingError
from retexo.launch import addresses, handshake, hub
from retexo.launch.certificates import read_credentials
from retexo.launch.channels import Channel, ChannelClosed, connect
from retexo.launch.hub import Hub, HubListener, HubServer
from retexo.launch.tls import Tls
from retexo.settings.compose import compose
from retexo.worker import train as train_worker

pytest.importorskip("cryptography")


SITES = ("north", "east", "south")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Credentials of three sites; and some that are good for nothing."""
    place = tmp_path_factory.mktemp("credentials")
    with contextlib.redirect_stdout(io.StringIO()):
        for site, days in (("revoked", 1), ("expired", 0), ("unlisted", 1)):
            authority.request(place / site, site)
            if site == "revoked":
                authority.authority(place / "authority")
            authority.sign(place / "authority", place / site / "request.pem", days)
            shutil.copy(
                place / "authority" / "issued" / f"{site}.pem", place / site / "certificate.pem"
            )
        authority.revoke(place / "authority", "revoked")
        for site in SITES:
            authority.request(place / site, site)
            authority.sign(place / "authority", place / site / "request.pem")
        authority.members(place / "authority", SITES)
        authority.hand_out(place, SITES)
    make_credentials(place / "elsewhere", *SITES)
    return place


def tls_cluster(folder: Path, node: int, port: int, **fields: Any) -> Any:
    own = {"parts": 3, "backend": "sockets", "credentials": str(folder / SITES[node])}
    return cluster(node, port, **{**own, **fields})


def meet(folder: Path, port: int, meanwhile: Callable[[], None] = lambda: None) -> list[Outcome]:
    """Nodes 0 and 1 wait, something else happens, and then node 2 comes."""
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(attend, tls_cluster(folder, node, port)) for node in (0, 1)]
        try:
            meanwhile()
        finally:
            last = pool.submit(attend, tls_cluster(folder, 2, port))
        return [future.result(60) for future in (*waiting, last)]


def is_one_outcome(outcomes: list[Outcome]) -> bool:
    return len(set(outcomes)) == 1 and len(outcomes[0][0]) == 16


def message(sender: int, receiver: int, size: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32) * (1 + sender) + receiver


def swap_between(clusters: list[Any]) -> None:
    """Empty messages, short ones, and some beyond what TLS and the sockets hold."""

    def work(node: int) -> None:
        with connect_node(clusters[node]) as met:
            assert set(met.links) == {0, 1, 2} - {node}
            assert all(link.node == other for other, link in met.links.items())
            with connected(met.rendezvous, node, met.streams[node]) as transport:
                for size in (0, 5, 70_000, 1_500_000):
                    messages = [message(node, peer, size) for peer in range(3)]
                    for peer, received in enumerate(swap(transport, messages, [size] * 3)):
                        assert torch.equal(received, message(peer, node, size))

    together(*(partial(work, node) for node in range(3)))


def test_three_nodes_meet_and_swap_as_without_tls(folder: Path) -> None:
    port = free_port()
    swap_between([tls_cluster(folder, node, port) for node in range(3)])


# --- who is turned away ----------


def claim(stream: socket.socket, node: int) -> str:
    """Say that one is a node, over this connection, and what came back."""
    stream.settimeout(20)
    try:
        if isinstance(stream, ssl.SSLSocket) and b"welcome" not in (answer := stream.recv(1 << 10)):
            return answer.decode()
        stream.sendall(node_info(node=node))
        return b"".join(iter(lambda: stream.recv(1 << 16), b"")).decode()
    except ssl.SSLError as error:
        return str(error.reason)
    except OSError as error:
        return str(error)


def secured(stream: socket.socket, own: Path | None) -> ssl.SSLSocket:
    """Wrap a stream in TLS with the certificate of a folder; None: without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if own is not None:
        context.load_cert_chain(own / "certificate.pem", own / "key.pem")
    return context.wrap_socket(stream)


TURNED_AWAY = {
    "": ("claims to be node 1, and has no certificate", "has no certificate"),
    "nobody": ("CERTIFICATE_REQUIRED", "peer did not return a certificate"),
    "elsewhere/east": ("UNKNOWN_CA", "certificate verify failed"),
    "expired": ("CERTIFICATE_EXPIRED", "certificate has expired"),
    "revoked": ("CERTIFICATE_REVOKED", "certificate revoked"),
    "unlisted": ("not in members.json", "not in members.json"),
    "south": ("it claims to be node 1, and has the certificate of node 2", "of node 2"),
}
"""By the folder of credentials (none: without TLS), what a stranger hears, and what is logged."""


@pytest.mark.parametrize("own", TURNED_AWAY)
def test_who_is_turned_away(folder: Path, caplog: pytest.LogCaptureFixture, own: str) -> None:
    """Both sides say why, and the nodes that wait go on."""
    heard, logged = TURNED_AWAY[own]
    port = free_port()

    def attack() -> None:
        stream = stream_to(port)
        with secured(stream, None if own == "nobody" else folder / own) if own else stream as end:
            assert heard in claim(end, 1)

    assert is_one_outcome(meet(folder, port, attack))
    (line,) = [line for line in caplog.messages if "refused a connection" in line]
    assert logged in line
    key = (folder / "east" / "key.pem").read_text().splitlines()[1]
    assert key not in caplog.text


@pytest.mark.parametrize("own", ["elsewhere/north", "expired", "revoked", "unlisted", "south"])
def test_a_node_does_not_talk_to_a_false_node_0(folder: Path, own: str) -> None:
    """The node ends at once, without having sent anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / own / "certificate.pem", folder / own / "key.pem")
    heard = []

    def serve(listener: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            context.wrap_socket(listener.accept()[0], server_side=True) as stream,
        ):
            heard.append(stream.recv(100))

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        pool.submit(serve, listener)
        kind, message = attend(tls_cluster(folder, 1, listener.getsockname()[1]))
    assert kind == "TrainingError"
    assert "refused its certificate" in message
    assert not any(heard), "it said something"


# --- the workers' streams ----------


def test_a_stream_to_another_worker_than_expected_is_lost(folder: Path) -> None:
    """Somebody who sees the connection of two parents may get there first."""
    tls = [read_credentials(folder / site, node, 3) for node, site in enumerate(SITES)]
    near, far = socket.socketpair()
    with near, far, ThreadPoolExecutor(2) as pool:
        ends = (
            pool.submit(tls[0].secure_stream, near, 1, 60.0, accepted=True),
            pool.submit(tls[2].secure_stream, far, 0, 60.0, accepted=False),
        )
        with pytest.raises(
            PeerLost, match="has the certificate of south, node 2, not of east, node 1"
        ):
            ends[0].result(60)
        ends[0].exception()
        far.close()


# --- credentials and settings ----------


def replace_by(own: Path, source: Path, *names: str) -> None:
    for name in names:
        shutil.copy(source / name, own / name)


DAMAGE: dict[str, Callable[[Path, Path], Any]] = {
    "others may read it (mode 640)": lambda own, _: (own / "key.pem").chmod(0o640),
    "lists north 0, east 1, south 2, and certificate.pem is of unlisted;": lambda own, every: (
        replace_by(own, every / "unlisted", "key.pem", "certificate.pem")
    ),
    "key.pem and certificate.pem do not fit": lambda own, every: replace_by(
        own, every / "south", "key.pem"
    ),
    "was not signed by authority.pem": lambda own, every: replace_by(
        own, every / "elsewhere/east", "revoked.pem"
    ),
}


@pytest.mark.parametrize("words", DAMAGE)
def test_credentials_that_cannot_be_used(folder: Path, tmp_path: Path, words: str) -> None:
    own = Path(shutil.copytree(folder / "east", tmp_path / "own"))
    DAMAGE[words](own, folder)
    with pytest.raises(InputError, match=re.escape(words)):
        read_credentials(own, 1, 3)


def test_a_certificate_that_ended_is_refused_before_anything_is_sent(
    folder: Path, tmp_path: Path
) -> None:
    """A member's own node refuses its certificate once it was revoked or has expired."""
    with contextlib.redirect_stdout(io.StringIO()):
        place = make_credentials(tmp_path / "keys", "a", "b")[0].parent
        authority.revoke(place / "authority", "b")
        with pytest.raises(InputError, match="sign its request"):
            authority.members(place / "authority", ("a", "b"))
        shutil.copy(place / "authority" / "revoked.pem", place / "b" / "revoked.pem")
    with pytest.raises(InputError, match="was revoked"):
        read_credentials(place / "b", 1, 2)
    old = read_credentials(place / "a", 0, 2)
    first = handshake.NodeInfo("", 0, "", "", "members a, b; 1 revoked", handshake.RunInfo({}, ""))
    second = handshake.NodeInfo("", 1, "", "", old.lists, handshake.RunInfo({}, ""))
    assert "other lists of the authority than node 0: members a, b; 0 revoked by 20" in str(
        handshake.find_mismatch(first, second, cluster(0, 1))
    )


def test_a_site_and_its_authority_by_the_command_line(tmp_path: Path) -> None:
    """Each step, and the second certificate of a name is refused."""

    def run_credentials(*arguments: str, rc: int = 0) -> str:
        ended = run_main("credentials", *arguments, cwd=tmp_path, rc=rc)
        return ended.output

    run_credentials("authority", "authority")
    asked = run_credentials("request", "a", "--name", "a")
    signed = run_credentials("sign", "authority", "a/request.pem")
    digest = asked.split()[-1]
    assert digest in signed
    assert "has a certificate; revoke it first" in run_credentials(
        "sign", "authority", "a/request.pem", rc=2
    )
    run_credentials("members", "authority", "--sites", "a")
    run_credentials("revoke", "authority", "a")
    run_credentials("sign", "authority", "a/request.pem")
    authority.hand_out(tmp_path, ("a",))
    assert read_credentials(tmp_path / "a", 0, 1).lists.startswith("members a; 1 revoked by 20")
    assert "File exists" in run_credentials("request", "a", "--name", "a", rc=2)
    assert "the name of a site" in run_credentials("request", "b", "--name", "../b", rc=2)
    assert (tmp_path / "a" / "key.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"backend": "sockets"},
            "distributed.credentials=null: distributed.backend=sockets encrypts",
        ),
        ({"tls": True}, "distributed.tls=true: gloo cannot encrypt"),
        ({"credentials": "keys"}, "distributed.credentials=keys: gloo cannot encrypt"),
        ({"backend": "sockets", "tls": False, "credentials": "keys"}, "leave one of them out"),
    ],
)
def test_settings_that_do_not_go_together(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        cluster(0, 1, **fields)
    cluster(0, 1, parts=1, **fields)  # one node sends nothing over a network


@dataclass
class Served:
    folder: Path
    port: int
    seen: list[bytes]
    """What went through the hub."""

    def tls(self, node: int) -> Tls:
        return read_credentials(self.folder / (*SITES, "hub")[node], node, 3)

    def seen_by(self, node: int) -> Hub:
        return Hub(("127.0.0.1", self.port), self.tls(node), 3)

    def cluster(self, node: int, **fields: Any) -> Any:
        own = {"parts": 3, "backend": "sockets", "credentials": str(self.folder / SITES[node])}
        return cluster(node, 1, **{**own, "hub": f"127.0.0.1:{self.port}", **fields})


@pytest.fixture(scope="module")
def hub_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_credentials(tmp_path_factory.mktemp("hub") / "keys", *SITES, "hub")[0].parent


@pytest.fixture
def served(hub_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
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

    def record(source: Any, target: socket.socket, nodes: tuple[int, int]) -> None:
        forward(Noted(source), target, nodes)  # type: ignore[arg-type]

    def refuse(*_: Any) -> socket.socket:
        raise AssertionError("a node listens")

    monkeypatch.setattr(hub, "_forward", record)
    monkeypatch.setattr(addresses, "listen", refuse)
    ended = threading.Event()
    with (
        socket.create_server(("127.0.0.1", 0), backlog=64) as listener,
        ThreadPoolExecutor(1) as pool,
    ):
        there = Served(hub_folder, listener.getsockname()[1], seen)
        server = HubServer(listener, there.tls(3))

        def serve() -> None:
            while not ended.is_set():
                server.step(0.05)

        serving = pool.submit(serve)
        yield there
        ended.set()
        serving.result(60)


def test_three_nodes_that_only_open_connections(served: Served) -> None:
    """They meet, hear each other, and swap; the hub sees none of it."""
    swap_between([served.cluster(node) for node in range(3)])
    through = b"".join(served.seen)
    assert len(through) > 6 * 4 * 1_500_000
    for sender, receiver in itertools.permutations(range(3), 2):
        assert message(sender, receiver, 100).numpy().tobytes() not in through


def test_a_node_that_comes_late_is_waited_for(served: Served) -> None:
    with ThreadPoolExecutor(3) as pool:
        late = [pool.submit(attend, served.cluster(node)) for node in (1, 2)]
        with pytest.raises(ChannelClosed, match="node 0 is not at the hub"):
            served.seen_by(2).reach(0, 60.0)
        outcomes = [future.result(60) for future in (pool.submit(attend, served.cluster(0)), *late)]
    assert is_one_outcome(outcomes)


def test_who_is_no_member_gets_nothing_of_a_hub(served: Served) -> None:
    """No seat for who has no certificate, a token of nobody's, or one that was used."""
    with contextlib.closing(HubListener(served.seen_by(0), 5.0)) as listener:
        for request in (b'{"listen": true}\n', b'{"reach": 0}\n'):
            with stream_to(served.port) as stream:
                stream.sendall(request)
                assert b"not a node of this hub" in stream.recv(1000)
        with contextlib.suppress(OSError), secured(stream_to(served.port), None) as stream:
            stream.sendall(b'{"reach": 0}\n')
            assert b"token" not in stream.recv(1000)
        tokens = []
        for _ in range(2):
            link = connect(("127.0.0.1", served.port), 5.0, served.tls(1), 3)
            link.send({"reach": 0})
            tokens.append(link.receive_one(5.0))
        first, second = (connect(("127.0.0.1", served.port), 5.0) for _ in range(2))
        first.send(tokens[0])
        while not (arrived := accepted(listener)):
            pass
        assert first.receive_one(60.0) == {"joined": True}
        second.send(tokens[0])
        assert "refused" in second.receive_one(60.0)
        with stream_to(served.port) as stream:  # more than its token
            stream.sendall(json.dumps(tokens[1]).encode() + b"\nx")
            assert b"refused" in stream.recv(1000)
        first.detach().sendall(b"through")
        assert arrived.recv(100) == b"through"


def accepted(listener: HubListener) -> socket.socket | None:
    with contextlib.suppress(BlockingIOError):
        return listener.accept()[0]
    return None


def link_of(server: socket.socket, tls: Tls) -> Channel:
    """The link of a node that waits at a hub."""
    channel = Channel(server.accept()[0], tls)
    while not (messages := channel.receive()):
        pass
    assert messages == [{"listen": True}]
    return channel


def test_a_hub_that_ends_is_named(hub_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that only closed the link, because strangers flood it, is asked again first."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        there = Served(hub_folder, server.getsockname()[1], [])
        waiting = pool.submit(HubListener, there.seen_by(0), 5.0)
        link_of(server, there.tls(3)).close()
        listener = waiting.result(60)
        connection.wait([listener], 60)  # type: ignore[list-item]
        again = pool.submit(accepted, listener)
        link = link_of(server, there.tls(3))
        assert again.result(60) is None
        link.close()
        connection.wait([listener], 60)  # type: ignore[list-item]
        monkeypatch.setattr(hub, "RELISTEN_SECONDS", 0.2)
        with pytest.raises(TrainingError, match=f"the hub 127.0.0.1:{there.port} has ended"):
            accepted(listener)
    outcome = attend(there.cluster(1, init_timeout=5.0))
    assert outcome[0] == "TrainingError"
    assert f"distributed.hub=127.0.0.1:{there.port}: not reached" in outcome[1]


def test_settings_of_a_hub(tmp_path: Path) -> None:
    for fields, words in (
        ({"inbound_port": 5}, r"node 0 is reached at distributed\.master_port, or at the hub"),
        ({"hub": "a:1"}, "a hub joins encrypted connections only"),
    ):
        with pytest.raises(InputError, match=words):
            cluster(0, 1, **fields)
    ended = run_main("app=hub", "num_partitions=3", "parts_per_node=1", cwd=tmp_path, rc=2)
    assert "app=hub: needs distributed.hub=ADDRESS:PORT" in ended.stderr
    keys = make_credentials(tmp_path / "keys", *SITES)[0].parent
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        kind, message = attend(Served(keys, port, []).cluster(0))
    assert kind == "InputError"
    assert "members.json lists no hub after the nodes, so node 0 is the hub" in message


@pytest.mark.long("other tests have the hub in a thread")
def test_the_command_of_a_hub(hub_folder: Path, tmp_path: Path) -> None:
    there = Served(hub_folder, free_port(), [])
    settings = ("num_partitions=3", "parts_per_node=1", "distributed.backend=sockets")
    where = (f"distributed.hub=127.0.0.1:{there.port}", f"distributed.credentials={hub_folder}/hub")
    with running_cli("app=hub", *settings, *where, cwd=tmp_path) as process:
        stream_to(there.port).close()
        with pytest.raises(ChannelClosed, match="node 0 is not at the hub"):
            there.seen_by(2).reach(0, 60.0)
        process.terminate()
        finish(process, rc=143)


SECURE = ("gradient.secure=true", "gradient.precision=fp32")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    graph = random_graph(60, 240)
    graph.features[:, 2] = 0  # a column that no node has
    write_partitions(folder, graph, thirds(60), [node % 5 % 3 for node in range(60)], 3)
    masks = {
        name: mask & ((torch.arange(60) % 5 % 3).numpy() > 0) for name, mask in thirds(60).items()
    }
    write_partitions(folder / "few", graph, masks, [node % 5 % 3 for node in range(60)], 3)
    return folder


def arguments(parts: Path, *more: str) -> list[str]:
    small = (
        "hidden_dim=6",
        "num_rounds=[5,4]",
        "cluster.threads=1",
        "num_partitions=3",
        "distributed.backend=sockets",
    )
    return [*small, "dataset_name=file", "dataset_file=toy.npz", f"partition_dir={parts}", *more]


def in_the_open(rank: int, job: Any, parent: socket.socket, streams: Streams | None) -> None:
    """A worker whose masks are all zero."""
    PairwiseMasks.add_to = lambda self, shares: None  # type: ignore[method-assign]
    train_worker.main(rank, job, parent, streams)


def test_masks_change_no_bit_and_the_plan_knows_the_bytes(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other settings are the defaults: low-rank factors with error feedback, smoothing."""
    overrides = arguments(parts, *SECURE, "stopping=none")
    secure = train.run(compose(overrides), tmp_path / "secure")
    with monkeypatch.context() as patched:
        patched.setattr(train, "main", in_the_open)
        open_ = train.run(compose(overrides), tmp_path / "open")
    secure_files, open_files = (
        snapshot(tmp_path / run / "checkpoint") for run in ("secure", "open")
    )
    assert secure_files == open_files
    for key in ("test", "val", "train", "bytes"):
        assert secure[key] == open_[key]
    planned = plan.run(compose([*overrides, "app=plan"]), tmp_path / "plan")
    assert_sent_as_planned(planned, secure)


def test_too_few_sites_are_refused(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match=r"gradient.secure=true: 2 of 3 partitions have training nodes"
    ):
        train.run(compose(arguments(parts / "few", *SECURE)), tmp_path)
