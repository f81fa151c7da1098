"""HTTP service of app=serve: a model in memory with a graph, behind FastAPI.

    POST /predict   {"ids": [...]}, or {"nodes": [{...}], "edges": [{"src": ..., "dst": ...}]} of
                    nodes that the graph does not have; with several types {"nodes": {TYPE: [...]},
                    "edges": {"SOURCE__RELATION__DESTINATION": [...]}}
    POST /embed     the same
    POST /score     {"pairs": [[src, dst], ...]}, of a model for links
    POST /top       {"ids": [...], "k": 10}, likewise; ids times k items
    GET /health, /metrics, /docs, /openapi.json

Every answer names the version of the model. What a request asks for is limited in bytes, items and
seconds; errors are {"error": TEXT, "model": VERSION}.
"""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator
from starlette.exceptions import HTTPException

from partitioning.errors import InputError, first_line
from partitioning.files.file_io import parse_json
from partitioning.graph.graph_data import SEPARATOR
from retexo.predict.predictor import Predictor
from retexo.predict.service_limits import (
    MAX_BYTES,
    MAX_ITEMS,
    SECONDS,
    BodyLimit,
    LateWork,
    TimedProtocol,
)

logger = logging.getLogger(__name__)

Id = StrictInt | StrictStr
Rows = list[dict[str, Any]]
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
"""Seconds, of the histogram of /metrics."""
RELOAD = 2.0
"""Seconds between looks for a new checkpoint."""


# --- requests ----------


class _JSONRequest(Request):
    async def json(self) -> Any:
        return parse_json(await self.body())


class _JSONRoute(APIRoute):
    """A route that refuses the JSON that the program's readers of files refuse."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read_and_handle(request: Request) -> Response:
            return await handle(_JSONRequest(request.scope, request.receive))

        return read_and_handle


class Body(BaseModel):
    """The body of a request, which has no other keys."""

    model_config = ConfigDict(extra="forbid")


class Ids(Body):
    """Nodes of the graph."""

    ids: list[Id] = Field(min_length=1)

    @property
    def size(self) -> int:
        return len(self.ids)


class Nodes(Body):
    """Nodes of the graph, or new ones."""

    ids: list[Id] | None = None
    nodes: Rows | dict[str, Rows] | None = None
    edges: Rows | dict[str, Rows] | None = None

    @model_validator(mode="after")
    def _check(self) -> "Nodes":
        """Raise ValueError unless a request has ids, new nodes with edges, or edges to predict."""
        if self.are_edges:
            return self
        if (self.ids is None) == (self.nodes is None):
            raise ValueError("give ids of nodes of the graph, or nodes (and edges): one of them")
        if self.ids is not None and self.edges is not None:
            raise ValueError("edges are of new nodes: leave them out, or give nodes instead of ids")
        if not (self.ids or self.nodes):
            raise ValueError("give at least one node")
        if self.edges is not None and isinstance(self.edges, dict) != isinstance(self.nodes, dict):
            raise ValueError(
                "edges: give a list beside a list of nodes, and lists by relation beside nodes by"
                " type"
            )
        return self

    @property
    def are_edges(self) -> bool:
        """Whether the request has edges alone, whose own classes or values are asked for."""
        return self.ids is None and self.nodes is None and isinstance(self.edges, list)

    @property
    def size(self) -> int:
        """Return the largest number of items of a kind."""

        def count(rows: Any) -> int:
            return sum(map(len, rows.values())) if isinstance(rows, dict) else len(rows or ())

        return max(len(self.ids or ()), count(self.nodes), count(self.edges))

    @property
    def num_cells(self) -> int:
        """Return the number of cells of all tables, also of those that a row leaves out."""
        tables = [
            rows
            for kind in (self.nodes, self.edges)
            for rows in (kind.values() if isinstance(kind, dict) else [kind or []])
        ]
        return sum(len(rows) * len({name for row in rows for name in row}) for rows in tables)

    def frames(self) -> tuple[Any, Any]:
        """Return the new nodes and edges as data frames."""
        nodes, edges = self.nodes, self.edges
        if isinstance(nodes, dict):
            edge_rows: Any = edges or {}
            return (
                {name: pd.DataFrame(rows) for name, rows in nodes.items()},
                {
                    tuple(name.split(SEPARATOR)): pd.DataFrame(rows)
                    for name, rows in edge_rows.items()
                },
            )
        return pd.DataFrame(nodes), pd.DataFrame(edges or [])


class Pairs(Body):
    """Pairs of nodes."""

    pairs: list[Annotated[list[Id], Field(min_length=2, max_length=2)]] = Field(min_length=1)

    @property
    def size(self) -> int:
        return len(self.pairs)


class Top(Ids):
    """Nodes whose most likely new destinations are wanted."""

    k: int = Field(default=10, ge=1, le=1000)


# --- the model ----------


class ModelStore:
    """Model of a run directory, which is loaded anew when its checkpoint changes."""

    def __init__(
        self, directory: Path, load: Callable[[], Predictor], interval: float = RELOAD
    ) -> None:
        """Load the model; `watch`, which the caller runs in a thread, loads it anew if it changes.

        Raises what `load` raises.

        Args:
            directory: The checkpoint.
            load: Loads it and attaches the graph.
            interval: Seconds between looks of `watch`; 0: it never looks.
        """
        self._file, self._load, self._interval = directory / "model.json", load, interval
        self._seen = self._signature()
        self.model, self.num_reloads = load(), 0
        self._ended = threading.Event()

    def _signature(self) -> tuple[int, ...] | None:
        """Return time, size and inode of the model's description, which differ for another model.

        Returns None without the file.
        """
        try:
            stat = self._file.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def look(self) -> None:
        """Load the model if its description, which is written last, has changed.

        One that cannot be loaded, or is of another kind, is logged, and the old one stays.
        """
        signature = self._signature()
        if signature is None or signature == self._seen:
            return
        self._seen = signature
        try:
            model = self._load()
        except Exception as error:  # the service goes on with the model that it has
            logger.error(
                "the new model cannot be used, version %s stays: %s", self.model.version, error
            )
            return
        before, now = _kind_of(self.model), _kind_of(model)
        if before != now:
            logger.error(
                "the new model is for %s, clients expect %s: version %s stays; start another"
                " service for it",
                now,
                before,
                self.model.version,
            )
            return
        if model.version != self.model.version:
            logger.warning("model %s replaces %s", model.version, self.model.version)
            self.num_reloads += 1
        self.model = model

    def watch(self) -> None:
        """Look again and again, until `end`."""
        while self._interval and not self._ended.wait(self._interval):
            self.look()

    def end(self) -> None:
        self._ended.set()


def _kind_of(model: Predictor) -> str:
    """Describe what a model predicts of which graphs: each kind has its own form of answers."""
    checkpoint, schema = model.checkpoint, model.checkpoint.architecture.schema
    graph = "of a plain graph" if schema.is_plain else f"of {schema.target}"
    return f"{checkpoint.task_name} ({checkpoint.label_kind}) {graph}"


class _Counts:
    """What /metrics shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        common: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("retexo_requests_total", "Requests", ["path", "status"], **common)
        self.seconds = Histogram(
            "retexo_request_seconds", "Seconds of a request", ["path"], buckets=BUCKETS, **common
        )
        self.nodes = Counter("retexo_nodes_total", "Nodes predicted", ["kind"], **common)
        self.model = Gauge("retexo_model", "1 for the version in use", ["version"], **common)
        self.reloads = Gauge("retexo_model_reloads", "Models loaded since the start", **common)

    def text(self, store: ModelStore) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        self.model.clear()
        self.model.labels(store.model.version).set(1)
        self.reloads.set(store.num_reloads)
        return generate_latest(self.registry)


# --- the service ----------


def make_server(store: ModelStore, seconds: float = SECONDS, **options: Any) -> uvicorn.Server:
    """Return the server of a model's service; options: further ones of uvicorn.

    seconds: within which a request is sent, and within which it is answered, else 408 and 503.
    """

    class Protocol(TimedProtocol):
        timeout = seconds

    service = make_service(store, seconds)
    return uvicorn.Server(uvicorn.Config(service, http=Protocol, access_log=False, **options))


def make_service(store: ModelStore, seconds: float) -> FastAPI:
    """Return the service of a model: /predict, /embed, /score, /top, /health and /metrics.

    A thread watches `store` while it runs. One other thread computes, within its limits.
    """
    counts, pool = _Counts(), ThreadPoolExecutor(1, "predict")  # torch uses all cores

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> Any:
        watcher = threading.Thread(target=store.watch, daemon=True)
        watcher.start()
        yield
        store.end()
        pool.shutdown(wait=False, cancel_futures=True)

    service = FastAPI(title="Retexo", version=store.model.version, lifespan=lifespan)
    service.router.route_class = _JSONRoute
    _add_errors(service, store)

    @service.middleware("http")
    async def measure(
        request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        start = time.perf_counter()
        response = await answer(request)
        route = request.scope.get("route")
        path = route.path if route is not None else "other"
        counts.requests.labels(path, response.status_code).inc()
        counts.seconds.labels(path).observe(time.perf_counter() - start)
        return response

    async def run(
        size: int, work: Callable[[Predictor], dict[str, Any]], num_cells: int = 0
    ) -> Response:
        """The answer that `work` computes in a thread, within the limits.

        Rows that have many different keys are refused: their table would be mostly blank.
        """
        model = store.model
        if num_cells > MAX_BYTES:
            raise HTTPException(
                413,
                f"{num_cells:,} cells (rows times different keys); at most {MAX_BYTES:,} a"
                " request: send several",
            )
        if size > MAX_ITEMS:
            raise HTTPException(
                413, f"{size:,} items; at most {MAX_ITEMS:,} a request: send several"
            )

        def compute() -> bytes:
            """Return the body; made in the thread, because large ones take time."""
            content = {"model": model.version, **work(model)}
            return json.dumps(content, allow_nan=False).encode()

        computing = LateWork(compute)
        running = asyncio.get_running_loop().run_in_executor(pool, computing)
        try:
            body = await asyncio.wait_for(running, seconds)
        except TimeoutError:
            computing.end()
            raise HTTPException(503, f"no answer within {seconds:g} s; try again later") from None
        return Response(body, media_type="application/json")

    @service.post("/predict")
    async def predict(request: Nodes) -> Response:
        """Classes and probabilities, or values, of nodes."""

        def work(model: Predictor) -> dict[str, Any]:
            predictions = _find(model, request, counts, embeddings=False)
            return {"predictions": _records(model, predictions)}

        return await run(request.size, work, request.num_cells)

    @service.post("/embed")
    async def embed(request: Nodes) -> Response:
        """Input of the last layer, of nodes."""

        def work(model: Predictor) -> dict[str, Any]:
            predictions = _find(model, request, counts, embeddings=True)
            rows = zip(predictions.ids.tolist(), predictions.embeddings.tolist(), strict=True)
            return {"embeddings": [{"id": name, "embedding": row} for name, row in rows]}

        return await run(request.size, work, request.num_cells)

    @service.post("/score")
    async def score(request: Pairs) -> Response:
        """Scores of pairs of nodes, of a model for links."""

        def work(model: Predictor) -> dict[str, Any]:
            return {"scores": model.score(request.pairs).tolist()}

        return await run(request.size, work)

    @service.post("/top")
    async def top(request: Top) -> Response:
        """The most likely new destinations of nodes, of a model for links."""

        def work(model: Predictor) -> dict[str, Any]:
            return {"links": model.top(request.ids, request.k, output="frame").to_dict("records")}

        return await run(request.size * request.k, work)

    @service.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the service answers, and with which model."""
        model = store.model
        return {
            "status": "ok",
            "model": model.version,
            "task": model.checkpoint.task_name,
            "nodes": model.num_nodes,
        }

    @service.get("/metrics")
    async def metrics() -> Response:
        """Counts and times, for Prometheus."""
        return Response(counts.text(store), media_type=CONTENT_TYPE_LATEST)

    service.add_middleware(BodyLimit, timeout=seconds, version=lambda: store.model.version)
    return service


def _find(model: Predictor, request: Nodes, counts: _Counts, *, embeddings: bool) -> Any:
    """Predict or embed the nodes that a request asks for: known ones by id, or new ones.

    Edges are predicted alone. Counts them in `counts`.
    """
    call = model.embed if embeddings else model.predict
    if request.ids is not None:
        predictions = call(node_ids=request.ids, output="arrays")
    elif request.are_edges:
        if embeddings:
            raise InputError("edges: /predict has their classes or values; /embed is of nodes")
        predictions = model.predict(edges=pd.DataFrame(request.edges), output="arrays")
    else:
        predictions = call(new=request.frames(), output="arrays")
    counts.nodes.labels("new" if request.ids is None else "known").inc(len(predictions.ids))
    return predictions


def _records(model: Predictor, predictions: Any) -> list[dict[str, Any]]:
    """Return a record per node, in order: id, and what was predicted.

    That is class (or labels, the names that apply) and probabilities by class; of a regression
    value, or values by name where there are several.
    """
    ids = predictions.ids.tolist()
    if predictions.values.shape[1]:
        names = [str(name) for name in model.class_names or range(predictions.values.shape[1])]
        rows = predictions.values.tolist()
        if len(names) == 1:
            return [{"id": name, "value": row[0]} for name, row in zip(ids, rows, strict=True)]
        return [
            {"id": name, "values": dict(zip(names, row, strict=True))}
            for name, row in zip(ids, rows, strict=True)
        ]
    names = [str(name) for name in model.class_names or range(predictions.probabilities.shape[1])]
    records = []
    for name, chosen, row in zip(
        ids, predictions.classes.tolist(), predictions.probabilities.tolist(), strict=True
    ):
        labels: dict[str, Any] = {"class": chosen}
        if predictions.classes.ndim == 2:
            labels = {"labels": [names[place] for place in np.flatnonzero(chosen)]}
        records.append({"id": name, **labels, "probabilities": dict(zip(names, row, strict=True))})
    return records


def _add_errors(service: FastAPI, store: ModelStore) -> None:
    """Let the service answer errors with {"error": a text, "model": the model's version}.

    The status is 422 for wrong input, that of the error for others of HTTP (as 404), and 500 for
    any other, whose text goes to the log only.
    """

    def answer(status: int, text: str) -> JSONResponse:
        text = text.encode(errors="backslashreplace").decode()  # of a request: any characters
        return JSONResponse({"error": text, "model": store.model.version}, status)

    @service.exception_handler(InputError)
    async def refused(_: Request, error: Exception) -> JSONResponse:
        return answer(422, str(error))

    @service.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return answer(422, f"body: no JSON: {first['ctx']['error']}")
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return answer(422, f"{place or 'body'}: {first['msg'].removeprefix('Value error, ')}")

    @service.exception_handler(HTTPException)
    async def other(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, UnicodeDecodeError):
            return answer(422, f"body: no UTF-8: {error.__cause__}")
        if isinstance(error.__cause__, RecursionError):
            return answer(422, "body: lists or objects are nested too deeply")
        if isinstance(error.__cause__, ValueError):
            return answer(422, f"body: no JSON: {first_line(error.__cause__)}")
        return answer(error.status_code, str(error.detail))

    @service.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        logger.error("a request failed", exc_info=error)
        return answer(500, "internal error; the service's log has it")
