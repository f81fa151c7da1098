"""A client that sends arbitrary data only loses its own connection: the nodes of the run are still
served.
"""

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import free_port, make_credentials
from test_rendezvous import SETTINGS, attend, cluster, node_info, visit, wait_for

from retexo.launch import handshake, rendezvous
from retexo.launch.control_channel import connect
from retexo.launch.handshake import Coordinator, NodeInfo, code_version, parse_node_info
from retexo.launch.protocols import Security
from retexo.settings.flatten import flatten
from retexo.sites.certificates import read_credentials
from retexo.sites.hub import Hub, OwnHub
from retexo.sites.tls import Tls

SITES = ("north", "east")
SURROGATES = st.text(st.characters(), max_size=6)
"""Includes lone surrogates, which UTF-8 cannot encode."""
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | SURROGATES
    | st.sampled_from([10**400, 2**64, -1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SURROGATES, inner, max_size=3),
    max_leaves=6,
)
HELLO = st.fixed_dictionaries(
    {name: JSON | st.sampled_from([1, [1], {}, "", "sockets"]) for name in NodeInfo.__annotations__}
)
MESSAGE = JSON | st.fixed_dictionaries(
    {},
    optional={
        "retexo": st.just(1),
        "node": HELLO,
        "from": JSON | st.lists(st.integers(0, 3), max_size=3),
        "proof": JSON,
        "token": JSON,
        "listen": JSON,
        "reach": JSON,
    },
)
CONTENT = st.binary(max_size=100) | st.lists(MESSAGE, min_size=1, max_size=3).map(
    lambda messages: b"".join(json.dumps(message).encode() + b"\n" for message in messages)
)


def say(port: int, content: bytes) -> None:
    """Send this and nothing else, and wait until the other end has closed the connection."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 20) as stranger,
    ):
        stranger.sendall(content)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(1 << 16):
            pass


def annoy(port: int) -> None:
    @given(CONTENT)
    @example(b'{"from": [1], "proof": "\\ud800"}\n')
    @example(b'{"from": [1], "proof": "\xed\xa0\x80"}\n')
    @example(b'{"from": ' + b"[" * 100_000 + b"\n")
    @example(b'{"from": [1' + b"0" * 4000 + b'], "proof": ""}\n')
    @example(b'{"reach": 1}\n{"listen": 1}\nx')
    def strangers(content: bytes) -> None:
        say(port, content)

    strangers()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_credentials(tmp_path_factory.mktemp("strangers") / "keys", *SITES)[0].parent


@pytest.fixture(params=["in the clear", "tls"])
def node_of(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """The settings of a node."""
    if request.param == "tls":
        folder = request.getfixturevalue("folder")
        return lambda node, port: cluster(
            node, port, backend="sockets", credentials=str(folder / SITES[node])
        )
    return lambda node, port: cluster(node, port, backend="sockets", tls=False)


def test_strangers_before_a_run(node_of: Callable[..., Any]) -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(attend, node_of(0, port))
        annoy(wait_for(port))
        assert not first.done()
        assert attend(node_of(1, port)) == first.result(20)


MATCHING = {
    "ranks": [1],
    "code": code_version(),
    "settings": flatten(SETTINGS),
    "partition": "abc",
}
"""The info of node 1, in the clear."""


def test_a_stranger_who_knows_nothing_of_a_run_does_not_end_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long before the other node it comes."""
    monkeypatch.setattr(handshake, "MISMATCH_WAIT", 0.0)
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(attend, cluster(0, port))
        for fields in ({"code": "other"}, {"world_size": 9}, {"node": 0}, {"node": 7}):
            assert b"refused" in visit(port, node_info(**fields))
        assert attend(cluster(1, port)) == first.result(20)


@pytest.mark.parametrize("name", ["code", "settings", "partition"])
def test_a_mismatch_is_forgotten_once_a_matching_node_comes(name: str) -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(attend, cluster(0, port))
        other = {} if name == "settings" else "other"
        assert b"mistake" in visit(port, node_info(**{**MATCHING, name: other}))
        assert attend(cluster(1, port)) == first.result(20)


def test_a_mismatch_in_a_place_that_is_taken_does_not_end_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "MISMATCH_WAIT", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        port = listener.getsockname()[1]
        info = parse_node_info(json.loads(node_info(**MATCHING)))
        assert info is not None
        coordinator = Coordinator(listener, replace(info, node=0), 3)
        waiting = pool.submit(coordinator.wait, 20.0)
        nodes = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(2)]
        nodes[0].sendall(node_info(**MATCHING))
        assert b"mistake" in visit(port, node_info(**{**MATCHING, "code": "other"}))
        nodes[1].sendall(node_info(**MATCHING, node=2))
        waiting.result(20)
        assert set(coordinator.joined) == {1, 2}
        assert coordinator.problem is None
        for each in (*nodes, *coordinator.joined.values()):
            each.close()


def test_strangers_while_nodes_connect_to_each_other() -> None:
    """At the port of node 0, which waits for node 1."""
    listener = socket.create_server(("127.0.0.1", 0))
    port, own = listener.getsockname()[1], NodeInfo("", 0, [0], 2, "", {}, "", "sockets", "")
    participant = rendezvous.Participant(
        cluster(0, 1), "lo", own, listener, Security(), rendezvous.TimeLimit("", 20.0)
    )
    with listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(rendezvous._accept, participant, "secret", {(1,)})
        annoy(port)
        assert not accepting.done()
        peer = connect("127.0.0.1", port, 5.0)
        peer.send({"from": [1], "proof": rendezvous._proof("secret", (1,))})
        found, problem = accepting.result(20)
        assert problem is None
        assert set(found) == {(1,)}


@pytest.fixture
def own_hub(folder: Path) -> Iterator[Hub]:
    """The hub within node 0, as node 1 sees it."""
    tls = [Tls(read_credentials(folder / site, node, 2)) for node, site in enumerate(SITES)]
    listener = socket.create_server(("127.0.0.1", 0))
    serving = OwnHub(listener, tls[0])
    yield Hub("127.0.0.1", listener.getsockname()[1], tls[1], 0)
    serving.close()


def test_strangers_at_a_hub(own_hub: Hub) -> None:
    annoy(own_hub.port)
    own_hub.reach(0, 5.0).close()


def test_who_sends_a_hub_more_than_its_token_fails_alone(own_hub: Hub) -> None:
    link = connect(own_hub.address, own_hub.port, 5.0, own_hub.tls, own_hub.node)
    link.send({"reach": 0})
    token = link.receive_one(5.0)
    with socket.create_connection((own_hub.address, own_hub.port), 5.0) as stream:
        stream.sendall(json.dumps(token).encode() + b"\nx")
        assert b"refused" in stream.recv(1000)
    own_hub.reach(0, 5.0).close()
