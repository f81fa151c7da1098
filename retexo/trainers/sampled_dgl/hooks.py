"""Hooks in DGL's engine that count what its RPC sends and make its shared-memory names unique.

DGL 1.1.3 keeps its state in module globals, so a process has one engine. Each message is counted
with its payload (pickled data and tensors), without the frame of about 100 bytes that DGL's C++
code adds.
"""

import pickle
import time
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from partitioning.dgl_import import import_dgl

PURPOSE_SERVICE, COUNTS_SERVICE = 910_001, 910_002
"""Ids of our RPC services; DGL's own are slightly above 900,000."""
RETRY_SECONDS = 0.2
"""Seconds between connection attempts; DGL's default is one to three."""


class TrafficCounter:
    """Payload bytes that this process passed to DGL's RPC, by kind and peer."""

    def __init__(self) -> None:
        self.bytes: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.purpose_of_client: dict[int, str] = {}
        """By client: what it currently fetches for, if not training."""
        self.current_kind = "setup"
        """Kind of the request that a server is answering."""

    def add(self, kind: str, peer: int, client: int, count: int) -> None:
        """Count a message; rows and neighbours count under the client's current purpose."""
        fetched = kind in ("structure", "features")
        self.bytes[(fetched and self.purpose_of_client.get(client)) or kind, peer] += count


def traffic_kind(request: str, name: str = "") -> str:
    """Return the traffic kind of a request, given its class and the name of the node data."""
    if request == "PullRequest":
        data = name.rpartition("~")[2]
        return {"feat": "features", "label": "labels", "train_mask": "setup"}.get(data, "structure")
    return "structure" if request == "SamplingRequest" else "setup"


def install(token: str) -> tuple[Any, TrafficCounter]:
    """Patch DGL's modules; return the dgl package and this process's counters. Call once.

    InputError if DGL is not installed.

    Besides counting and names, DGL retries connections sooner and handles no signals.

    Args:
        token: prefix of all names in /dev/shm; shared by a server and its worker, unique per
            server.
    """
    dgl = import_dgl("trainer=sampled")
    engine, sent = dgl.distributed, TrafficCounter()
    rpc, kvstore = engine.rpc, engine.kvstore
    empty, send, pull, receive = (
        kvstore.empty_shared_mem,
        rpc.send_rpc_message,
        rpc.fast_pull,
        rpc.recv_request,
    )
    is_server = False

    def send_counted(message: Any, target: int) -> None:
        """Count a message and send it."""
        size = len(message.data) + sum(
            tensor.numel() * tensor.element_size() for tensor in message.tensors
        )
        name = rpc.SERVICE_ID_TO_PROPERTY[message.service_id][0].__name__
        kind, peer = (
            (sent.current_kind, message.client_id)
            if is_server
            else (traffic_kind(name), message.server_id)
        )
        sent.add(kind, peer, message.client_id, size)
        send(message, target)

    def pull_counted(name: str, ids: Any, parts: Any, *rest: Any) -> Any:
        """Count the requests of a C++ pull, one per partition, and pull."""
        head = len(pickle.dumps(([0], [name])))
        for part, count in enumerate(parts.bincount().tolist()):
            if count:
                sent.add(traffic_kind("PullRequest", name), part, rpc.get_rank(), head + 8 * count)
        return pull(name, ids, parts, *rest)

    def receive_noted(timeout: int = 0) -> Any:
        """Receive a request and note its kind, under which the answer is counted."""
        nonlocal is_server
        is_server = True
        request, client, group = receive(timeout)
        sent.current_kind = traffic_kind(type(request).__name__, getattr(request, "name", ""))
        return request, client, group

    kvstore.empty_shared_mem = lambda name, *rest: empty(f"{token}-{name}", *rest)
    rpc.send_rpc_message, rpc.fast_pull, rpc.recv_request = (
        send_counted,
        pull_counted,
        receive_noted,
    )
    rpc.register_sig_handler = lambda: None  # DGL's handler would end the process silently
    for module in (engine.rpc_client, engine.rpc_server):
        module.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, RETRY_SECONDS)))
    _register(rpc, sent)
    return dgl, sent


def _register(rpc: Any, sent: TrafficCounter) -> None:
    """Register two services with DGL: a client states its purpose, and asks what a server sent.

    Sets sent.Tag and sent.Counts, the classes of these requests. Answering a Tag fills in
    sent.purpose_of_client.
    """

    class Plain:
        """A message with the list `state` (DGL unpacks tuples)."""

        def __init__(self, *state: Any) -> None:
            self.state = [*state]

        def __getstate__(self) -> Any:
            return self.state

        def __setstate__(self, state: Any) -> None:
            self.state = state

    class Tag(Plain, rpc.Request):  # type: ignore[misc]
        """Request that sets a client's purpose."""

        def process_request(self, server_state: Any) -> None:
            client, purpose = self.state
            sent.purpose_of_client[client] = purpose

    class Counted(Plain, rpc.Response):  # type: ignore[misc]
        pass

    class Counts(Plain, rpc.Request):  # type: ignore[misc]
        """Request for the bytes that a server sent."""

        def process_request(self, server_state: Any) -> Any:
            return Counted(*((*key, count) for key, count in sent.bytes.items()))

    rpc.register_service(PURPOSE_SERVICE, Tag, None)
    rpc.register_service(COUNTS_SERVICE, Counts, Counted)
    sent.Tag, sent.Counts = Tag, Counts  # type: ignore[attr-defined]
