"""Nodes that connect before a run, each in a thread, over real sockets on loopback.

A client that sends arbitrary data only loses its own connection.
"""

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import free_port, together

from partitioning.errors import InputError
from partitioning.setting_fields import with_values
from retexo.errors import TrainingError
from retexo.launch import addresses, channels, fork_server, handshake, rendezvous
from retexo.launch.channels import AcceptedConnections, Channel, connect
from retexo.launch.handshake import (
    Coordinator,
    NodeInfo,
    RunInfo,
    code_version,
    parse_node_info,
)
from retexo.settings.cluster_settings import ClusterSettings
from retexo.settings.compose import compose
from retexo.settings.flatten import flatten
from retexo.settings.schema import DEFINED

DEFAULT = compose()
SETTINGS = {"seed": 1, "model": {"name": "gcn"}, "learning_rate": [0.003]}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "MISMATCH_WAIT", 0.5)
    monkeypatch.setattr(rendezvous, "REPLY_MARGIN", 5.0)
    monkeypatch.setattr(fork_server, "wait_until_warm", lambda _: None)


def cluster(
    node: int, port: int, parts: int = 2, per_node: int = 1, **fields: Any
) -> ClusterSettings:
    there = {
        "num_partitions": parts,
        "parts_per_node": per_node,
        "node_rank": node,
        "master_port": port,
    }
    values = {**there, "interface": "lo", "init_timeout": 20.0, **fields}
    return with_values(DEFAULT, {named(name): value for name, value in values.items()})


def named(name: str) -> str:
    """The setting of a name, with its group."""
    return f"distributed.{name}" if f"distributed.{name}" in DEFINED else name


Outcome = tuple[str, str]
"""run id and store's port, or the kind of error and its message"""


def connect_node(
    settings: ClusterSettings,
    shared: dict[str, Any] = SETTINGS,
    partition: str = "abc",
    **state: Any,
) -> AbstractContextManager[rendezvous.Node]:
    run = handshake.RunInfo(shared, partition, **state)
    return rendezvous.connect_nodes(settings, run)


def attend(settings: ClusterSettings, *run: Any, **state: Any) -> Outcome:
    """Return how a node's rendezvous ends. The node leaves at once."""
    try:
        with connect_node(settings, *run, **state) as node:
            assert node.rendezvous.run_id == node.run_id
            assert isinstance(node.rendezvous.store, tuple | None)
            return node.run_id, str(node.rendezvous.store and node.rendezvous.store[1])
    except (InputError, TrainingError) as error:
        kind = InputError if isinstance(error, InputError) else TrainingError
        return kind.__name__, str(error)


def test_nodes_that_do_not_reach_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reaches node 0, but there is a wall between two of them."""
    monkeypatch.setattr(rendezvous, "CONNECT_TIMEOUT", 1.0)
    port, reach = free_port(), addresses.connect  # type: ignore[attr-defined]

    def connect(address: tuple[str, int], *others: Any) -> Any:
        host, to = address
        return reach((host, to if to == port else 1), *others)

    monkeypatch.setattr(addresses, "connect", connect)
    outcomes = together(
        *(lambda node=node: attend(cluster(node, port, parts=3)) for node in range(3))
    )
    assert len(set(outcomes)) == 1
    kind, message = outcomes[0]
    assert kind == "TrainingError"
    assert all(word in message for word in ("node 1 (rank 1)", "node 2 (rank 2)", "reach"))


MISMATCHES: dict[str, tuple[dict[str, Any], dict[str, Any], str, tuple[str, ...]]] = {
    "world size": ({"parts": 3}, SETTINGS, "abc", ("num_partitions=3 instead of 2",)),
    "settings": ({}, {**SETTINGS, "seed": 2}, "abc", ("other settings", "seed=2 instead of 1")),
    "nested": (
        {},
        {**SETTINGS, "model": {"name": "gat"}},
        "abc",
        ("model.name=gat instead of gcn",),
    ),
    "partition": ({}, SETTINGS, "abd", ("another partitioning",)),
    "backend": (
        {"backend": "sockets", "tls": False},
        SETTINGS,
        "abc",
        ("distributed.backend=sockets instead of gloo",),
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_mismatch_ends_all_nodes_with_the_same_sentence(name: str) -> None:
    fields, shared, partition, words = MISMATCHES[name]
    port = free_port()
    first, second = together(
        lambda: attend(cluster(0, port)),
        lambda: attend(cluster(1, port, **fields), shared, partition),
    )
    assert first == second
    assert first[0] == "InputError"
    assert "node 1 (rank 1" in first[1]
    assert all(word in first[1] for word in words)


@pytest.mark.parametrize(
    ("states", "victim"),
    [((None, 2), 0), ((2, None), 1), ((None, None), None), ((1, 0), None), ((2, 3), None)],
)
def test_nodes_resume_together_unless_one_lacks_its_state(
    states: tuple[int | None, ...], victim: int | None
) -> None:
    port = free_port()
    (kind, message), other = together(
        *(
            lambda n=n: attend(cluster(n, port), num_saved=states[n])  # type: ignore[misc]
            for n in (0, 1)
        )
    )
    assert (kind, message) == other
    if victim is None:
        assert len(kind) == 16, message
    else:
        assert kind == "InputError"
        assert f"node {victim} (rank {victim}) has no saved state in its run directory" in message


def test_a_rank_taken_twice_ends_all() -> None:
    port = free_port()
    outcomes = together(
        *(lambda node=node: attend(cluster(node, port, parts=3)) for node in (0, 1, 1))
    )
    assert len(set(outcomes)) == 1
    assert outcomes[0] == (
        "InputError",
        "node 1 (rank 1) has joined already; give every node its own node_rank",
    )


def test_who_is_missing_is_named_by_node_and_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, port = Coordinator.wait, free_port()

    def wait_for_node_2(self: Coordinator, timeout: float) -> None:
        while 2 not in self.joined:
            wait(self, 0.05)

    monkeypatch.setattr(Coordinator, "wait", wait_for_node_2)
    outcomes = together(
        *(lambda node=node: attend(cluster(node, port, parts=7, per_node=2)) for node in (0, 2))
    )
    kind, message = outcomes[0]
    assert outcomes == [(kind, message)] * 2
    assert kind == "TrainingError"
    assert "node 1 (ranks 2, 3) and node 3 (rank 6) did not come" in message


@pytest.mark.parametrize(
    ("node", "fields", "kind", "words"),
    [
        (1, {"init_timeout": 1.0}, "TrainingError", r"node 0 \(rank 0\) was not reached.*refused"),
        (0, {"interface": "eth9"}, "InputError", "distributed.interface=eth9.*lo"),
        *(
            (
                0,
                {"master_addr": address, "interface": None},
                "InputError",
                rf"^distributed.master_addr={address}: set distributed.interface=lo on every node",
            )
            for address in ("127.0.0.1", "localhost")
        ),
    ],
)
def test_a_node_alone_says_what_is_wrong(
    node: int, fields: dict[str, Any], kind: str, words: str
) -> None:
    actual_kind, message = attend(cluster(node, free_port(), **fields))
    assert actual_kind == kind
    assert re.search(words, message)


def test_a_name_that_is_known_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may start after the others; a name that stays unknown is refused."""
    lookup, asked = socket.getaddrinfo, []

    def late(host: str, *others: Any, **named: Any) -> Any:
        asked.append(host)
        if host == "never" or (host == "late" and asked.count("late") < 9):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return lookup("localhost" if host == "late" else host, *others, **named)

    monkeypatch.setattr(socket, "getaddrinfo", late)
    port = free_port()
    ends = together(
        *(lambda node=node: attend(cluster(node, port, master_addr="late")) for node in (0, 1))
    )
    assert ends[0] == ends[1]
    kind, message = attend(cluster(0, port, master_addr="never", init_timeout=1.0))
    assert (kind, "distributed.master_addr=never" in message) == ("InputError", True)


def test_a_taken_port_is_a_mistake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        kind, message = attend(cluster(0, server.getsockname()[1]))
    assert kind == "InputError"
    assert "distributed.master_port" in message


# --- who does not belong there ----------


def test_an_error_closes_only_its_connection_and_tells_it() -> None:
    accepted_one: list[Channel] = []

    def fail(channel: Channel, message: dict[str, Any]) -> None:
        accepted_one.append(channel)
        raise KeyError(message["kind"])

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=10) as stream,
    ):
        accepted = AcceptedConnections(server)
        stream.sendall(b'{"kind": "bad"}\n')
        while not accepted_one:
            accepted.step(10, fail)
        assert stream.recv(1000) == b'{"refused": "not a message of retexo"}\n'
        assert stream.recv(1000) == b""


def stream_to(port: int) -> socket.socket:
    """Connect to a port as soon as somebody listens there."""
    for _ in range(1000):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), 20)
        time.sleep(0.02)
    raise AssertionError(f"nobody listens on {port}")


def visit(port: int, content: bytes) -> bytes:
    """Connect once something listens, say something, and read until the other end closes."""
    answer = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError), stream_to(port) as visitor:
        visitor.sendall(content)
        while piece := visitor.recv(4096):
            answer += piece
    return answer


def node_info(**fields: Any) -> bytes:
    run = {
        name: fields.pop(name, default) for name, default in (("settings", {}), ("partition", ""))
    }
    where = {"address": "127.0.0.1:1", "credentials": ""}
    content = {"run_key": "", "node": 1, "code": "", **where, "run": run, **fields}
    return json.dumps({"node": content}).encode() + b"\n"


@contextlib.contextmanager
def waiting_node(**fields: Any) -> Iterator[int]:
    """Node 0 waits at the port that this gives; at the end it and node 1 meet."""
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(attend, cluster(0, port, **fields))
        yield port
        assert not waiting.done()
        assert attend(cluster(1, port, **fields)) == waiting.result(60)


def test_who_says_nothing_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with waiting_node() as port, monkeypatch.context() as impatient:
        impatient.setattr(channels, "FIRST_MESSAGE_TIMEOUT", 0.2)
        assert b"sent nothing" in visit(port, b"")
        assert b"sent nothing" in visit(port, b'{"retexo":')


def answering(*answers: bytes | None) -> Outcome:
    """Return how node 1 ends if a program at node 0's address gives this answer.

    None: it closes the connection.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(attend, cluster(1, server.getsockname()[1]))
        for answer in answers:
            connection, _ = server.accept()
            with connection:
                connection.recv(1)
                if answer is not None:
                    connection.sendall(answer)
        return outcome.result(60)


def test_a_node_whose_connection_is_closed_tries_again() -> None:
    kind, message = answering(None, None, b'{"refused": "it is late"}\n')
    assert kind == "InputError"
    assert "it is late" in message


@pytest.mark.parametrize(
    ("name", "kind"),
    [("refused", "InputError"), ("mistake", "InputError"), ("problem", "TrainingError")],
)
def test_text_of_another_node_is_shown_without_terminal_escapes(name: str, kind: str) -> None:
    text = "\x1b]0;title\x07\x1b[2Jünï" + "x" * 100_000
    outcome = answering(json.dumps({name: text}).encode() + b"\n")
    assert outcome[0] == ("TrainingError" if name == "problem" else "InputError")
    assert outcome[1].isprintable()
    assert r"\x1b]0;title\x07\x1b[2Jünï" in outcome[1]
    assert len(outcome[1]) < 1500


REPLIES = (
    {"run": "a"},
    {"run": "a", "store": "x", "nodes": {}},
    {"run": "a", "store": 3, "nodes": {}},
    {"run": "a", "store": "127.0.0.1:1", "nodes": {"x": "y"}},
    {"run": "a", "store": "127.0.0.1:1", "nodes": [1]},
    {"run": "a", "store": "", "nodes": {"0": "127.0.0.1:1", "2": "127.0.0.1:65536"}},
    {"run": "a", "store": "", "nodes": {"0": "127.0.0.1:1", "2": "a..b:1"}},
)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH_9", "not a message of retexo"),
        *((json.dumps(reply).encode(), "not a reply of node 0") for reply in REPLIES),
    ],
)
def test_nonsense_at_the_place_of_node_0_is_no_crash(answer: bytes, words: str) -> None:
    kind, message = answering(answer + b"\n")
    assert kind == "TrainingError"
    assert words in message


def test_another_run_on_the_same_port_is_not_joined() -> None:
    with waiting_node(run_key="job 1") as port:
        kind, message = attend(cluster(1, port, run_key="job 2"))
        assert kind == "InputError"
        assert "another run (job 2)" in message


def test_a_node_that_ended_while_it_waited_may_come_again() -> None:
    port = free_port()
    shared = {**flatten(SETTINGS), "num_partitions": 3, "distributed.backend": "gloo"}
    own = NodeInfo("", 1, code_version(), "127.0.0.1:1", "", RunInfo(shared, "abc"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(attend, cluster(0, port, parts=3))
        gone = connect(("127.0.0.1", port), 10)
        gone.send({"node": asdict(own)})
        gone.close()
        futures: list[Future[Outcome]] = [pool.submit(attend, cluster(1, port, parts=3))]
        outcome = attend(cluster(2, port, parts=3))
        assert outcome == first.result(60) == futures[0].result(60)
    assert len(outcome[0]) == 16


def test_it_listens_on_the_chosen_interface_alone() -> None:
    """While node 0 waits, and while the run's store is served."""
    port = free_port()
    before = listening()
    seen: list[set[str]] = []
    release = threading.Event()

    def lead() -> None:
        with connect_node(cluster(0, port)):
            release.wait(20)
            seen.append(listening() - before)

    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(lead)
        visit(port, b"\n")
        assert listening() - before == {f"127.0.0.1:{port}"}
        outcome = attend(cluster(1, port))
        release.set()
        leading.result(60)
    assert seen == [{f"127.0.0.1:{outcome[1]}"}]  # the store; the port of the meeting is closed


def listening() -> set[str]:
    """Addresses that this process listens on."""
    connections = psutil.Process().net_connections("tcp")
    return {
        f"{entry.laddr.ip}:{entry.laddr.port}"
        for entry in connections
        if entry.status == psutil.CONN_LISTEN
    }


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
VALUE = JSON | st.sampled_from([1, [1], {}, "", "sockets"])
RUN = st.fixed_dictionaries(dict.fromkeys(RunInfo.__annotations__, VALUE))
HELLO = st.fixed_dictionaries(
    {**dict.fromkeys(NodeInfo.__annotations__, VALUE), "run": VALUE | RUN}
)
MESSAGE = JSON | st.fixed_dictionaries(
    {},
    optional={
        "node": HELLO,
        "token": JSON,
        "listen": JSON,
        "reach": JSON,
    },
)
CONTENT = st.binary(max_size=100) | st.lists(MESSAGE, min_size=1, max_size=3).map(
    lambda messages: b"".join(json.dumps(message).encode() + b"\n" for message in messages)
)


def annoy(port: int) -> None:
    @given(CONTENT)
    @example(b'{"token": "\\ud800"}\n')
    @example(b'{"token": "\xed\xa0\x80"}\n')
    @example(b'{"token": ' + b"[" * 100_000 + b"\n")
    @example(b'{"token": [1' + b"0" * 4000 + b"]}\n")
    @example(b'{"reach": 1}\n{"listen": 1}\nx')
    def strangers(content: bytes) -> None:
        with contextlib.suppress(OSError), stream_to(port) as stranger:
            stranger.sendall(content)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1 << 16):
                pass

    strangers()


def test_strangers_before_a_run() -> None:
    with waiting_node() as port:
        annoy(port)


MATCHING = {
    "code": code_version(),
    "settings": {**flatten(SETTINGS), "num_partitions": 2, "distributed.backend": "gloo"},
    "partition": "abc",
}
"""The info of node 1, in the clear."""


def test_a_stranger_who_knows_nothing_of_a_run_does_not_end_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long before the other node it comes."""
    monkeypatch.setattr(handshake, "MISMATCH_WAIT", 0.0)
    with waiting_node() as port:
        for fields in ({"code": "other"}, {"node": 0}, {"node": 7}):
            assert b"refused" in visit(port, node_info(**fields))


@pytest.mark.parametrize("name", ["code", "settings", "partition"])
def test_a_mismatch_is_forgotten_once_a_matching_node_comes(name: str) -> None:
    other = {} if name == "settings" else "other"
    with waiting_node() as port:
        assert b"mistake" in visit(port, node_info(**{**MATCHING, name: other}))


def test_a_mismatch_in_a_place_that_is_taken_does_not_end_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "MISMATCH_WAIT", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        port = listener.getsockname()[1]
        info = parse_node_info(json.loads(node_info(**MATCHING)))
        coordinator = Coordinator(listener, replace(info, node=0), cluster(0, port, parts=3))
        waiting = pool.submit(coordinator.wait, 20.0)
        nodes = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(2)]
        nodes[0].sendall(node_info(**MATCHING))
        assert b"mistake" in visit(port, node_info(**{**MATCHING, "code": "other"}))
        nodes[1].sendall(node_info(**MATCHING, node=2))
        waiting.result(60)
        assert set(coordinator.joined) == {1, 2}
        assert coordinator.problem is None
        for stream in (*nodes, *coordinator.joined.values()):
            stream.close()  # type: ignore[attr-defined]


def test_strangers_while_nodes_connect_to_each_other() -> None:
    """At the port of node 0, which waits for node 1."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    endpoint = addresses.Endpoint(cluster(0, 1), listener, "")
    with listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(rendezvous._accept, endpoint, {"secret": (1,)})
        annoy(port)
        assert not accepting.done()
        peer = connect(("127.0.0.1", port), 5.0)
        peer.send({"token": "secret"})
        accepted, problem = accepting.result(60)
        assert problem is None
        assert set(accepted) == {(1,)}
