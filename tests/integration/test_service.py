"""app=serve: a real client asks a real server on a free port."""

import contextlib
import http.client
import json
import re
import signal
import socket
import threading
import tracemalloc
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from support import finish, random_graph, run_main, running_cli, wait_until
from test_predictor import (
    SCHEMA,
    SIZES,
    as_data,
    as_hetero_data,
    checkpoint_of,
    model_of,
    tables,
    typed_graph,
    untrained,
)

import retexo
from partitioning.errors import InputError
from retexo.models.network import Architecture, Schema
from retexo.predict.predictor import Predictor

pytest.importorskip("uvicorn", reason="the extra serve")

from retexo.predict.service import ModelStore, make_server
from retexo.predict.service_limits import LateWork


class Service:
    """A server in a thread of this process."""

    def __init__(self, directory: Path, graph: Any, seconds: float = 30.0) -> None:

        def load() -> Predictor:
            return retexo.load(directory, output="arrays").attach(graph)

        self.store = ModelStore(directory / "checkpoint", load, 0.05)
        self.server = make_server(self.store, seconds, port=0, log_level="error")
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        wait_until(lambda: self.server.started, "the server")
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """The status and the content of an answer; body: None for GET, bytes as they are."""
        if body is not None and not isinstance(body, bytes | Iterator):
            body = json.dumps(body).encode()
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(client):
            # A large body is refused while it is sent: the answer is there, the rest is not read.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                method = "GET" if body is None else "POST"
                client.request(method, path, body, {"content-type": "application/json", **headers})
            answer = client.getresponse()
            text, status = answer.read(), answer.status
        return status, text.decode() if path == "/metrics" else json.loads(text)


def run_of_tables(folder: Path, **described: Any) -> Path:
    """The run directory of an untrained network for `tables`."""
    answer = {"offsets": [], **described.pop("answer", {})}
    more = {"class_names": ["bad", "good"], "answer": answer, **described}
    return untrained(folder, *tables(), "columns.id=customer", "symmetrize=true", **more)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    run = run_of_tables(Path(tmp_path_factory.mktemp("service")) / "run")
    with contextlib.closing(Service(run, tables())) as started:
        yield started


def test_fifty_clients_at_once_get_what_the_model_predicts(service: Service) -> None:
    known_nodes = service.store.model.predict(output="frame").set_index("id")
    new = [{"customer": "new", "age": 30.5, "city": "Bern"}]
    edges = [{"src": "new", "dst": "c01"}, {"src": "c02", "dst": "new"}]
    joined = service.store.model.predict(
        new=(pd.DataFrame(new), pd.DataFrame(edges)), output="frame"
    )

    def ask(number: int) -> tuple[int, Any, Any]:
        if number % 2:
            return *service.ask("/predict", {"nodes": new, "edges": edges}), joined.set_index("id")
        ids = [f"c{number:02}", f"c{(number + 1) % 60:02}"]
        return *service.ask("/predict", {"ids": ids}), known_nodes.loc[ids]

    with ThreadPoolExecutor(50) as clients:
        answers = list(clients.map(ask, range(50)))
    for status, content, expected in answers:
        assert status == 200, content
        assert content["model"] == service.store.model.version
        predictions = content["predictions"]
        assert [prediction["id"] for prediction in predictions] == expected.index.tolist()
        assert [prediction["class"] for prediction in predictions] == expected["class"].tolist()
        rows = [
            [prediction["probabilities"][name] for name in ("bad", "good")]
            for prediction in predictions
        ]
        np.testing.assert_allclose(rows, expected[["p0", "p1"]], rtol=0, atol=1e-6)
    status, content = service.ask("/embed", {"ids": ["c07"]})
    expected = service.store.model.embed(node_ids=["c07"], output="tensors")["embeddings"][0]
    assert (status, content["embeddings"][0]["id"]) == (200, "c07")
    assert content["embeddings"][0]["embedding"] == pytest.approx(expected.tolist())
    assert service.ask("/health")[1]["nodes"] == 60
    assert 'retexo_requests_total{path="/predict",status="200"} 50.0' in service.ask("/metrics")[1]
    assert "/predict" in service.ask("/openapi.json")[1]["paths"]


KEYS = [f"k{place}" for place in range(1_200)]
NEW = {"customer": "x", "age": 1, "city": "Bern"}
REFUSED: dict[str, tuple[str, Any, int, str]] = {
    "no JSON": ("/predict", b"{", 422, "body: no JSON"),
    "no object": ("/predict", [1], 422, "body: Input should be a valid dictionary"),
    "nothing": ("/predict", {}, 422, "give ids of nodes of the graph, or nodes"),
    "no ids": ("/predict", {"ids": []}, 422, "give at least one node"),
    "both": ("/predict", {"ids": ["c01"], "nodes": [NEW]}, 422, "one of them"),
    "edges of a model of nodes": (
        "/predict",
        {"edges": [{"src": "c01", "dst": "c02"}]},
        422,
        "edges: the model predicts nodes",
    ),
    "no embedding of edges": (
        "/embed",
        {"edges": [{"src": "c01", "dst": "c02"}]},
        422,
        "/embed is of nodes",
    ),
    "unknown key": ("/predict", {"id": ["c01"]}, 422, "id: Extra inputs"),
    "unknown id": ("/predict", {"ids": ["c99"]}, 422, "the graph has no node c99"),
    "other kind of id": ("/predict", {"ids": [True]}, 422, "ids.0"),
    "no column": ("/predict", {"nodes": [{"customer": "x", "age": 1}]}, 422, "no column `city`"),
    "no column at all": ("/predict", {"nodes": [{}]}, 422, "new nodes: has no column"),
    "text": ("/predict", {"nodes": [{**NEW, "age": "old"}]}, 422, "`age`"),
    "nested": ("/predict", {"nodes": [{**NEW, "age": {"a": [1]}}]}, 422, "age"),
    "empty object": ("/predict", {"nodes": [{**NEW, "age": {}}]}, 422, "'age'"),
    "empty object in a list": ("/predict", {"nodes": [{**NEW, "age": [{}]}]}, 422, "new nodes"),
    "empty object of an edge": (
        "/predict",
        {"nodes": [NEW], "edges": [{"src": "x", "dst": "c01", "note": {}}]},
        422,
        "new edges.*'note'",
    ),
    "lone surrogate": ("/predict", {"ids": ["\ud800"]}, 422, "body: .*surrogates"),
    "lone surrogate in a key": ("/predict", {"nodes": [{**NEW, "\ud800": 1}]}, 422, "surrogates"),
    "key twice": ("/predict", b'{"ids": ["c01"], "ids": ["c02"]}', 422, "'ids' occurs twice"),
    "key of a node twice": (
        "/predict",
        b'{"nodes": [{"customer": "x", "age": 1, "city": "Bern", "age": 2}]}',
        422,
        "body: .*'age' occurs twice",
    ),
    "zero after an id": ("/predict", {"ids": ["c01\0"]}, 422, "the graph has no node c01"),
    "twice": ("/predict", {"nodes": [NEW, NEW]}, 422, "expected each id once"),
    "no such end": (
        "/predict",
        {"nodes": [NEW], "edges": [{"src": "x", "dst": "c99"}]},
        422,
        "new edges.*c99",
    ),
    "types": ("/predict", {"nodes": {"paper": [NEW]}}, 422, "nodes"),
    "edges by relation": (
        "/predict",
        {"nodes": [NEW], "edges": {"a__b__c": [{"src": "x", "dst": "c01"}]}},
        422,
        "edges: give a list beside a list of nodes",
    ),
    "no UTF-8": ("/predict", b'{"ids": ["\xff"]}', 422, "body: no UTF-8: .*0xff"),
    "deep": ("/predict", b'{"ids": ' + b"[" * 900_000, 422, "body: .*nested too deeply"),
    "blank id": ("/predict", {"nodes": [{**NEW, "customer": " "}]}, 422, "row 0 is blank"),
    "invisible id": ("/embed", {"nodes": [{**NEW, "customer": "\u200b"}]}, 422, "row 0 is blank"),
    "huge integer": ("/embed", b"[" + b"9" * 5000 + b"]", 422, "body: no JSON: .* digits"),
    "empty id": ("/embed", {"nodes": [{**NEW, "customer": ""}]}, 422, "row 0 is blank"),
    "blank end": (
        "/predict",
        {"nodes": [NEW], "edges": [{"src": "", "dst": "c01"}]},
        422,
        "row 0 is blank",
    ),
    "many different keys": (
        "/predict",
        {"nodes": [{"customer": str(row), KEYS[row]: 1, KEYS[-row]: 1} for row in range(1000)]},
        413,
        "cells .* at most 1,000,000",
    ),
    "huge": ("/predict", {"nodes": [{**NEW, "age": 1e300}]}, 422, "`age`, row 0 is 1e.300"),
    "many": ("/predict", {"ids": ["c01"] * 1001}, 413, "1,001 items; at most 1,000"),
    "large": ("/predict", b" " * 1_500_000, 413, "larger than 1,000,000 bytes"),
    "large in pieces": ("/predict", iter([b" " * 300_000] * 4), 413, "larger than 1,000,000 bytes"),
    "of links": (
        "/score",
        {"pairs": [["c01", "c02"]]},
        422,
        "its model is for node_classification",
    ),
    "no such path": ("/train", {}, 404, "Not Found"),
    "GET": ("/predict", None, 405, "Method Not Allowed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(service: Service, name: str) -> None:
    path, body, status, message = REFUSED[name]
    answered, content = service.ask(path, body)
    assert answered == status, content
    assert content["model"] == service.store.model.version
    assert re.search(message, content["error"]), content
    assert service.ask("/health")[0] == 200


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
def test_a_body_is_json_whatever_type_it_names(service: Service, kind: str) -> None:
    """curl -d names the first, if no other is given."""
    status, content = service.ask("/predict", {"ids": ["c05"]}, **{"content-type": kind})
    assert (status, content["predictions"][0]["id"]) == (200, "c05"), content


def test_long_ids_take_memory_once(service: Service) -> None:
    """Not for each node of the graph, nor for each id of the request."""
    long, nodes = "a" * 1_000_000, [f"n{number}" for number in range(60)]
    new = pd.DataFrame([{**NEW, "customer": name} for name in (long, *nodes)])
    predict = service.store.model.predict
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"the graph has no node a{100}$"):
            predict(node_ids=[long, *["c01"] * 60])
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
        assert predict(new=(new, pd.DataFrame())).ids.tolist() == [long, *nodes]
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


def test_columns_that_the_model_does_not_read_are_left_out(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """A request has room for 100,000 keys of a node."""
    wide = {**NEW, **{f"k{place}": place for place in range(1_000)}, "note": {}}
    asked = [service.ask("/predict", {"nodes": [node]})[1] for node in (NEW, wide)]
    assert asked[0] == asked[1]
    assert "`k8`, `k9` and 991 more: left out" in caplog.text


def test_late_work_ends_and_does_not_hold_up_other_requests(tmp_path: Path) -> None:
    ended = threading.Event()

    def never_ends(**_: Any) -> None:
        try:
            while True:
                sum(range(1000))
        finally:
            ended.set()

    with contextlib.closing(
        Service(run_of_tables(tmp_path / "run"), tables(), seconds=0.5)
    ) as started:
        with mock.patch.object(started.store.model, "predict", never_ends):
            status, content = started.ask("/predict", {"ids": ["c01"]})
            assert (status, "no answer within 0.5 s" in content["error"]) == (503, True)
            assert ended.wait(60)
        wait_until(lambda: started.ask("/predict", {"ids": ["c01"]})[0] == 200, "an answer in time")


def test_late_work_that_a_future_cannot_hold_ends() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        LateWork(lambda: next(iter([])))()


def test_connections_without_a_whole_header_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("retexo.predict.service_limits.MAX_CONNECTIONS", 4)
    health = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"
    with contextlib.closing(
        Service(run_of_tables(tmp_path / "run"), tables(), seconds=1.0)
    ) as started:
        waiting = [socket.create_connection(("127.0.0.1", started.port), 30) for _ in range(4)]
        for stream, begin in zip(waiting, (b"", b"GET /heal", health[:-2], health), strict=True):
            stream.sendall(begin)
        answer = b""
        while b'"status":"ok"' not in answer:
            answer += waiting[3].recv(4096)
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", started.port), 30) as further:
                assert further.recv(1) == b""
        assert caplog.text.count("connections are closed: there are 4 already") == 1
        waiting[3].sendall(health[:10])  # the next request is late, too
        for stream in waiting:
            assert stream.recv(1) == b"", "closed"
            stream.close()
        assert started.ask("/health")[0] == 200


def test_a_new_model_in_the_same_folder_is_loaded(tmp_path: Path) -> None:
    """A model that cannot be read or is of another kind is not loaded."""
    run = run_of_tables(tmp_path / "run")
    with contextlib.closing(Service(run, tables())) as started:
        before = started.ask("/predict", {"ids": ["c05"]})[1]
        (run / "checkpoint" / "model.json").write_text("{}")
        started.store.look()
        run_of_tables(run, multilabel=True)
        started.store.look()
        assert started.ask("/predict", {"ids": ["c05"]})[1] == before
        run_of_tables(run, answer={"temperature": 3.0})
        wait_until(lambda: started.ask("/health")[1]["model"] != before["model"], "the new model")
        after = started.ask("/predict", {"ids": ["c05"]})[1]
        assert after["model"] == retexo.load(run).version
        assert after["predictions"] != before["predictions"]
        assert "retexo_model_reloads 1.0" in started.ask("/metrics")[1]


def test_a_typed_graph(tmp_path: Path) -> None:
    shape = Architecture(model_of("rgcn"), SCHEMA, 3)
    run = checkpoint_of(tmp_path / "run", shape, graph={"relations.reverse": False})
    with contextlib.closing(Service(run, as_hetero_data(typed_graph(), SIZES))) as started:
        body = {
            "nodes": {"paper": [{"id": 99, "x": [0.5] * 5}], "author": [{"id": 7, "x": [1] * 4}]},
            "edges": {"author__writes__paper": [{"src": 7, "dst": 99}, {"src": 2000, "dst": 99}]},
        }
        for asked, node in (({"ids": [1000]}, 1000), (body, 99)):
            status, content = started.ask("/predict", asked)
            assert status == 200, content
            assert content["predictions"][0]["id"] == node
            assert sum(content["predictions"][0]["probabilities"].values()) == pytest.approx(1)
        status, content = started.ask("/predict", body | {"edges": [{"src": 7, "dst": 99}]})
        assert (status, "lists by relation" in content["error"]) == (422, True)
        status, content = started.ask("/predict", {"nodes": [{"id": 99, "x": [0.5] * 5}]})
        assert (status, "a table by type" in content["error"]) == (422, True)


def test_links(tmp_path: Path) -> None:
    graph = as_data(random_graph())
    shape = Architecture(model_of("gcn"), Schema.of_plain_graph(6), 8, scorer="dot")
    answer = {"stages": [1], "alpha": 1.0, "offsets": []}
    with contextlib.closing(
        Service(checkpoint_of(tmp_path / "run", shape, answer=answer), graph)
    ) as started:
        status, content = started.ask("/top", {"ids": [1003], "k": 3})
        assert status == 200, content
        best = [(link["id"], link["partner"]) for link in content["links"]]
        scores = started.ask("/score", {"pairs": best})[1]["scores"]
        assert scores == pytest.approx([link["score"] for link in content["links"]], rel=1e-5)
        assert scores == sorted(scores, reverse=True)
        assert started.ask("/predict", {"ids": [1003]})[0] == 422
        status, content = started.ask("/top", {"ids": [1003] * 101, "k": 10})
        assert (status, "1,010 items; at most 1,000" in content["error"]) == (413, True)
        status, content = started.ask("/embed", {"nodes": [{"id": 1, "x": [1.0] * 6}]})
        assert (status, "embeds nodes of the graph only" in content["error"]) == (422, True)
        assert started.ask("/embed", {"ids": [1003]})[0] == 200


def test_the_command(tmp_path: Path) -> None:
    """It prints its address, answers, ends on SIGTERM, and leaves no file.

    Without a graph it is refused.
    """
    run_of_tables(tmp_path / "run")
    common = ("app=serve", "checkpoint_dir=run", "serve.port=0", "hydra.run.dir=out")
    refused = run_main(*common, cwd=tmp_path, rc=2)
    assert "app=serve: needs the graph" in refused.output
    data = ("dataset_name=file", "dataset_file=run/tables", "columns.id=customer")
    with running_cli(*common, *data, cwd=tmp_path) as process:
        lines = iter(process.stdout.readline, "")
        address = next(line for line in lines if line.startswith("http://127.0.0.1:")).split()[0]
        with urllib.request.urlopen(f"{address}/health", timeout=30) as answer:
            assert json.load(answer)["nodes"] == 60
        process.send_signal(signal.SIGTERM)
        assert finish(process, rc=None).rc in (143, -signal.SIGTERM)
