"""A worker of app=train that measures where its time goes; started by benchmarks/profile_run.py."""

import functools
import json
import threading
import time
from collections import defaultdict
from socket import socket
from typing import Any

from retexo.comm import collectives, process_group, socket_transport
from retexo.comm.socket_transport import Streams
from retexo.exchange import layer_exchange
from retexo.models import streaming_aggregate
from retexo.rounds import objective, round_message, update_rules
from retexo.rounds import reduction as reductions
from retexo.trainers import layerwise
from retexo.worker import make_context, train
from retexo.worker.process import serve
from retexo.worker.train import TrainJob

WATCHED: dict[str, list[tuple[Any, str]]] = {
    "read the part": [(train, "read_graph")],
    "plan": [(make_context, "_make_types")],
    "exchange: choose and encode": [(layer_exchange.LayerExchange, "_make_message")],
    "exchange: decode": [
        (layer_exchange, "decode"),
        (streaming_aggregate.AggregateAccumulator, "add"),
    ],
    "aggregate": [(layerwise.LayerInput, "make_objective")],
    "embed": [(layerwise.LayerInput, "embed_nodes")],
    "round: gradient": [
        (update_rules.SynchronousSGD, "compute"),
        (update_rules.LocalSGD, "compute"),
    ],
    "round: validation": [(objective.LayerObjective, "validate")],
    "round: compression": [
        (reductions.DenseReduction, "reduce"),
        (reductions.PowerSGDReduction, "reduce"),
    ],
    "round: optimiser": [(update_rules.SynchronousSGD, "apply"), (update_rules.LocalSGD, "apply")],
    "sums: add up, encode": [(collectives.Communicator, "all_reduce")],
    "messages": [(process_group.GlooTransport, "swap"), (socket_transport.SocketTransport, "swap")],
    "round: rest": [(round_message.RoundMessage, "reduce_update")],
}


class Stopwatch:
    """Wall and thread-CPU seconds of named calls, without nested named calls."""

    def __init__(self) -> None:
        self.wall: defaultdict[str, float] = defaultdict(float)
        self.cpu: defaultdict[str, float] = defaultdict(float)
        self._running = ["rest"]
        self._since = time.perf_counter(), time.thread_time()
        self._thread = threading.get_ident()

    def timed(self, name: str, function: Any) -> Any:
        """Wrap a function so that its calls in this thread count under `name`."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self._note()
            self._running.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                self._note()
                self._running.pop()

        return call

    def _note(self) -> None:
        now = time.perf_counter(), time.thread_time()
        self.wall[self._running[-1]] += now[0] - self._since[0]
        self.cpu[self._running[-1]] += now[1] - self._since[1]
        self._since = now


def main(rank: int, job: TrainJob, parent: socket, streams: Streams | None) -> None:
    """Be a worker of app=train, and write profile-RANK.json into the run directory."""
    started, watch = time.time(), Stopwatch()
    for name, places in WATCHED.items():
        for owner, attribute in places:
            setattr(owner, attribute, watch.timed(name, getattr(owner, attribute)))

    def noting(*args: Any) -> dict[str, Any]:
        result = train.run(*args)
        content = {"started": started, "wall": watch.wall, "cpu": watch.cpu}
        (job.run_dir / f"profile-{rank}.json").write_text(json.dumps(content), encoding="utf-8")
        return result

    serve(noting, rank, job, parent, streams)
