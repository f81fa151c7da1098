"""Nodes with credentials: they find each other, and nobody else takes a seat, reads, or keeps them
from it.
"""

import contextlib
import io
import json
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support import free_port, make_credentials, run_main, swap

pytest.importorskip("cryptography")

from test_rendezvous import Outcome, attend, cluster, connect_node

from partitioning.errors import InputError
from retexo.apps import credentials as authority
from retexo.comm.process_group import connected
from retexo.comm.transport import PeerLost
from retexo.launch import handshake
from retexo.launch.handshake import PROTOCOL
from retexo.sites.certificates import read_credentials
from retexo.sites.tls import Tls, secure_stream

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


def good(outcomes: list[Outcome]) -> bool:
    return len(set(outcomes)) == 1 and len(outcomes[0][0]) == 16


def stream_to(port: int) -> socket.socket:
    """As soon as somebody listens there."""
    for _ in range(500):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), 20)
        time.sleep(0.02)
    raise AssertionError(f"nobody listens on {port}")


def test_three_nodes_meet_and_swap_as_without_tls(folder: Path) -> None:
    """Empty messages, short ones, and some beyond what TLS and the sockets hold."""
    port, sizes = free_port(), (0, 5, 70_000, 1_500_000)

    def message(sender: int, receiver: int, size: int) -> torch.Tensor:
        return torch.arange(size, dtype=torch.float32) * (1 + sender) + receiver

    def work(node: int) -> None:
        with connect_node(tls_cluster(folder, node, port)) as met:
            assert all(link.node == other for other, link in met.links.items())
            assert met.streams is not None
            with connected(met.rendezvous, node, met.streams[node]) as transport:
                for size in sizes:
                    received = swap(
                        transport, [message(node, peer, size) for peer in range(3)], [size] * 3
                    )
                    for peer, found in enumerate(received):
                        assert torch.equal(found, message(peer, node, size))

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(work, node) for node in range(3)]:
            future.result(60)


# --- who is turned away ----------


def claim(stream: socket.socket, node: int) -> str:
    """Say that one is a node, over this connection, and what came back."""
    about = {
        "run_key": "",
        "node": node,
        "ranks": [node],
        "world_size": 3,
        "code": "",
        "settings": {},
    }
    stream.settimeout(20)
    try:
        if isinstance(stream, ssl.SSLSocket) and b"welcome" not in (answer := stream.recv(1 << 10)):
            return answer.decode()
        about |= {"partition": "", "backend": "sockets", "address": "127.0.0.1:1"}
        stream.sendall(json.dumps({"retexo": PROTOCOL, "node": about}).encode() + b"\n")
        return b"".join(iter(lambda: stream.recv(1 << 16), b"")).decode()
    except ssl.SSLError as error:
        return str(error.reason)
    except OSError as error:
        return str(error)


def client_context(own: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if own is not None:
        context.load_cert_chain(own / "certificate.pem", own / "key.pem")
    return context


TURNED_AWAY = {
    "no certificate": (None, 1, "CERTIFICATE_REQUIRED", "peer did not return a certificate"),
    "another authority": ("elsewhere/east", 1, "UNKNOWN_CA", "certificate verify failed"),
    "expired": ("expired", 1, "CERTIFICATE_EXPIRED", "certificate has expired"),
    "revoked": ("revoked", 1, "CERTIFICATE_REVOKED", "certificate revoked"),
    "of no member": ("unlisted", 1, "not in members.json", "not in members.json"),
    "another's rank": (
        "south",
        1,
        "it claims to be node 1, and has the certificate of node 2",
        "of node 2",
    ),
}


@pytest.mark.parametrize("kind", TURNED_AWAY)
def test_who_is_turned_away(folder: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """Both sides say why, and the nodes that wait go on."""
    own, node, heard, logged = TURNED_AWAY[kind]
    port = free_port()

    def attack() -> None:
        with client_context(None if own is None else folder / own).wrap_socket(
            stream_to(port)
        ) as stream:
            assert heard in claim(stream, node)

    assert good(meet(folder, port, attack))
    (line,) = [line for line in caplog.messages if "refused a connection" in line]
    assert logged in line
    key = (folder / "east" / "key.pem").read_text().splitlines()[1]
    assert key not in caplog.text


def test_who_does_not_encrypt_is_turned_away(folder: Path) -> None:
    port = free_port()

    def attack() -> None:
        with stream_to(port) as stream:
            assert "it claims to be node 1, and has no certificate" in claim(stream, 1)
        with stream_to(
            port
        ) as stream:  # a link of the run, or a stream of it, without the run's secret
            stream.sendall(b'{"from": [1, 1, 0], "proof": "00"}\n')
            assert b"refused" in stream.recv(1 << 10)

    assert good(meet(folder, port, attack))


@pytest.mark.parametrize("own", ["elsewhere/north", "expired", "revoked", "unlisted", "south"])
def test_a_node_does_not_talk_to_a_false_node_0(folder: Path, own: str) -> None:
    """And ends at once: it says whose certificate it saw."""
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


def test_nothing_can_be_replayed(folder: Path) -> None:
    """All that node 1 sent to node 0 in one run, sent again in another."""
    port, front = free_port(), socket.create_server(("127.0.0.1", 0))
    recorded: list[bytes] = []

    def pump(source: socket.socket, target: socket.socket, keep: bool) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                recorded.append(content) if keep else None
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    def relay() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, far = front.accept()[0], stream_to(port)
                for arguments in ((near, far, True), (far, near, False)):
                    threading.Thread(target=pump, args=arguments, daemon=True).start()

    threading.Thread(target=relay, daemon=True).start()
    with ThreadPoolExecutor(3) as pool:
        ports = (port, front.getsockname()[1], port)
        outcomes = list(
            pool.map(lambda node: attend(tls_cluster(folder, node, ports[node])), range(3))
        )
    front.close()
    assert good(outcomes)
    assert len(b"".join(recorded)) > 1000
    port = free_port()

    def attack() -> None:
        with stream_to(port) as stream, contextlib.suppress(OSError):
            stream.sendall(b"".join(recorded))
            while stream.recv(1 << 16):
                pass

    assert good(meet(folder, port, attack))


# --- the workers' streams ----------


def test_a_stream_to_another_worker_than_expected_is_lost(folder: Path) -> None:
    """As when somebody who sees the connection of two parents gets there first."""
    tls = [Tls(read_credentials(folder / site, node, 3)) for node, site in enumerate(SITES)]
    near, far = socket.socketpair()
    with near, far, ThreadPoolExecutor(2) as pool:
        ends = (
            pool.submit(secure_stream, near, tls[0], 1, 10.0, accepted=True),
            pool.submit(secure_stream, far, tls[2], 0, 10.0, accepted=False),
        )
        with pytest.raises(
            PeerLost, match="has the certificate of south, node 2, not of east, node 1"
        ):
            ends[0].result(20)
        ends[0].exception()
        far.close()


# --- credentials and settings ----------


def damaged(folder: Path, place: Path, how: str) -> Path:
    shutil.copytree(folder / "east", place / "own")
    own = place / "own"
    if how == "readable":
        (own / "key.pem").chmod(0o640)
    elif how == "unsigned":
        (own / "members.json").write_text(
            (own / "members.json").read_text().replace("south", "mouth")
        )
    elif how in ("revoked", "expired", "unlisted"):
        for name in ("key.pem", "certificate.pem"):
            shutil.copy(folder / how / name, own / name)
    elif how == "another key":
        shutil.copy(folder / "south" / "key.pem", own / "key.pem")
    else:
        shutil.copy(folder / "elsewhere" / "east" / "revoked.pem", own / "revoked.pem")
    return own


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("readable", "others may read it (mode 640)"),
        ("unsigned", "members.sig is not its signature"),
        ("unlisted", "this certificate is not among them"),
        ("another key", "key.pem and certificate.pem do not fit"),
        ("another list", "was not signed by authority.pem"),
    ],
)
def test_credentials_that_cannot_be_used(
    folder: Path, tmp_path: Path, how: str, words: str
) -> None:
    with pytest.raises(InputError) as error:
        read_credentials(damaged(folder, tmp_path, how), 1, 3)
    assert words in str(error.value)


def test_a_certificate_that_ended_is_refused_before_anything_is_sent(
    folder: Path, tmp_path: Path
) -> None:
    """By its own node: it is among the members, and was revoked, or has expired, since."""
    with contextlib.redirect_stdout(io.StringIO()):
        place = make_credentials(tmp_path / "keys", "a", "b")[0].parent
        authority.revoke(place / "authority", "b")
        with pytest.raises(InputError, match="sign its request"):
            authority.members(place / "authority", ("a", "b"))
        shutil.copy(place / "authority" / "revoked.pem", place / "b" / "revoked.pem")
    with pytest.raises(InputError, match="was revoked"):
        read_credentials(place / "b", 1, 2)
    old = read_credentials(place / "a", 0, 2)
    first = handshake.NodeInfo("", 0, [0], 2, "", {}, "", "sockets", "", "members 1, revoked 2")
    second = handshake.NodeInfo("", 1, [1], 2, "", {}, "", "sockets", "", old.numbers)
    assert (
        "other lists of the authority than node 0: members 1, revoked 1, not members 1, revoked 2"
        in str(handshake.find_mismatch(first, second))
    )


def test_a_site_and_its_authority_by_the_command_line(tmp_path: Path) -> None:
    """Each step, and the second certificate of a name is refused."""

    def said(*arguments: str, rc: int = 0) -> str:
        ended = run_main("credentials", *arguments, cwd=tmp_path)
        assert ended.rc == rc, ended.output
        return ended.output

    said("authority", "authority")
    asked = said("request", "a", "--name", "a")
    signed = said("sign", "authority", "a/request.pem")
    digest = asked.split()[-1]
    assert digest in signed
    assert "has a certificate; revoke it first" in said("sign", "authority", "a/request.pem", rc=2)
    assert "number 1" in said("members", "authority", "--sites", "a")
    said("revoke", "authority", "a")
    said("sign", "authority", "a/request.pem")
    assert "number 2" in said("members", "authority", "--sites", "a")
    authority.hand_out(tmp_path, ("a",))
    assert read_credentials(tmp_path / "a", 0, 1).numbers == "members 2, revoked 2"
    assert "File exists" in said("request", "a", "--name", "a", rc=2)
    assert "the name of a site" in said("request", "b", "--name", "../b", rc=2)
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
    with pytest.raises(InputError) as error:
        cluster(0, 1, **fields)
    assert words in str(error.value)
    cluster(0, 1, parts=1, **fields)  # one node sends nothing over a network
