"""Rounds per second of synchronous training, beside the floor: the matrix products alone.

    python benchmarks/rounds.py [--repeats 5] [--backend gloo sockets plain tls]

Cora, GCN, +experiment=retexo, 4 random partitions and workers, 200 rounds per layer without
early stopping. The floor is the same products (forward and backward on training rows, forward on
validation rows) of all workers' rows, without messages, optimiser and loss, in one process on
all cores. The messages alone are the same all-reduces between 4 otherwise idle workers. All
alternate; ratios are of medians. With several backends: the same for each, and the ratios of
rounds and messages to those of the first. tls and plain: messages alone, over sockets between
all workers as if each were a node, with and without TLS.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import Any

import common
import pandas as pd
import torch

from retexo.apps.credentials import init as make_credentials
from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.process_group import Rendezvous, connected
from retexo.comm.socket_transport import Streams
from retexo.comm.traffic_meter import MessageTag
from retexo.launch import fork_server, rendezvous, start_workers
from retexo.launch.certificates import read_credentials
from retexo.launch.channels import Channel
from retexo.launch.handshake import RunInfo
from retexo.models.block import HaloRows, InEdges, NumberedEdges, Sources, gather_source_rows
from retexo.models.convolution import Inputs
from retexo.models.network import Architecture, Schema, build_network
from retexo.settings.compose import compose

ROUNDS = 200
TAIL = 5
"""Losses, stop request and counts of a round's message (retexo.rounds.round_message)."""
WORKERS = 4
BETWEEN_NODES = ("plain", "tls")
DATA = [
    *common.CORA,
    "+experiment=retexo",
    "stopping=none",
    f"num_rounds=[{ROUNDS}]",
    f"log_every={10**9}",
]


def floor_seconds() -> float:
    """Return the seconds of the products of all rounds of both layers."""
    settings = compose(DATA, "node_classification_gcn")
    graph, split = common.load_graph(settings)
    src, dst = torch.from_numpy(graph.edges.src), torch.from_numpy(graph.edges.dst)
    degree = torch.bincount(dst, minlength=graph.num_nodes)
    edges = InEdges.build(src, dst, degree, degree, torch.float32)
    model = settings.model
    architecture = Architecture(model, Schema.of_plain_graph(graph.num_features), graph.num_classes)
    rows = torch.from_numpy(common.dense_features(graph))
    seconds = 0.0
    for stage in build_network(architecture, 0):
        gathered = []
        for mask in (split.train, split.val):
            nothing = Sources(
                *(
                    HaloRows.empty(0, width, rows.dtype)
                    for width in (rows.shape[1], stage.output_dim)
                )
            )
            block = NumberedEdges(edges, nothing).cut_block(torch.from_numpy(mask).nonzero()[:, 0])
            gathered.append(stage.conv.prepare(block, *gather_source_rows(block, rows, nothing)))
        seconds += _products(stage.conv, *gathered)
        rows = torch.randn(graph.num_nodes, model.hidden_dim).relu()
    return seconds


def _products(conv: torch.nn.Module, train_inputs: Inputs, val_inputs: Inputs) -> float:
    (train_rows,), (val_rows,) = train_inputs.matrices, val_inputs.matrices
    weight = conv.get_parameter("weight")
    start = time.perf_counter()
    for _ in range(ROUNDS):
        weight.grad = None
        (train_rows @ weight).sum().backward()
        with torch.no_grad():
            val_rows @ weight
    return time.perf_counter() - start


def messages_alone(
    rank: int,
    job: tuple[Rendezvous, list[int], Path | None],
    parent: socket,
    streams: Streams | None,
) -> None:
    """Run one worker: return the seconds of ROUNDS all-reduces of each size (float32 values)."""
    meeting, sizes, keys = job
    if keys is not None:
        own = read_credentials(keys / f"site{rank}", rank, WORKERS)
        meeting = replace(meeting, security=own.secure_stream)
    torch.set_num_threads(1)
    with connected(meeting, rank, streams) as transport:
        comm = Communicator(transport)
        start = time.perf_counter()
        for size in sizes:
            message, tail = torch.zeros(size), torch.zeros(TAIL, dtype=torch.float64)
            for _ in range(ROUNDS):
                summands = [ReduceInput(message), ReduceInput(tail)]
                comm.all_reduce(summands, MessageTag("gradients", 0))
        Channel(parent).send({"result": time.perf_counter() - start})


def message_seconds(backend: str, folder: Path) -> float:
    option = f"distributed.backend={'sockets' if backend in BETWEEN_NODES else backend}"
    settings = compose([*DATA, option], "node_classification_gcn")
    architecture = Architecture(settings.model, Schema.of_plain_graph(1433), 7)
    stages = build_network(architecture, 0)
    sizes = [sum(p.numel() for p in stage.parameters()) for stage in stages]
    fork_server.warm_up()
    with rendezvous.connect_nodes(settings, RunInfo({}, "")) as node:
        meeting = (
            replace(node.rendezvous, parts_per_node=1)
            if backend in BETWEEN_NODES
            else node.rendezvous
        )
        keys = credentials(folder / "keys") if backend == "tls" else None
        return float(
            start_workers.run_workers(range(WORKERS), messages_alone, (meeting, sizes, keys), node)[
                0
            ]
        )


def credentials(folder: Path) -> Any:
    """Make one node's credentials for each worker, in one folder."""
    if not folder.exists():
        make_credentials(folder, [f"site{rank}" for rank in range(WORKERS)])
    return folder


def once(folder: Path, backends: list[str]) -> dict[str, float]:
    """Return seconds of one training run per backend, total and rounds, and of the floors."""
    times = {"products": floor_seconds()}
    for backend in backends:
        times[f"messages {backend}"] = message_seconds(backend, folder)
        if backend in BETWEEN_NODES:
            continue
        option = f"distributed.backend={backend}"
        settings = compose(
            [*DATA, option, f"partition_dir={folder}", "app=train"], "node_classification_gcn"
        )
        common.partition(settings)
        seconds = common.train(settings, folder)["seconds"]
        times |= {
            f"training {backend}": seconds["train"],
            f"rounds {backend}": seconds["phase"]["rounds"],
        }
    return times


def main() -> None:
    parser = common.parser(__doc__, repeats=5)
    parser.add_argument("--backend", nargs="+", default=["gloo"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = pd.DataFrame(
            [once(Path(folder), arguments.backend) for _ in range(arguments.repeats)]
        )
    median = seconds.median()
    print(f"{common.machine()}; {arguments.repeats} repeats")
    print(seconds.agg(["median", "min", "max"]).T.round(2).to_string())
    first = arguments.backend[0]
    for backend in arguments.backend:
        messages = median[f"messages {backend}"]
        if backend != first:
            print(f"{backend} / {first}: messages {messages / median[f'messages {first}']:.2f}")
        if backend in BETWEEN_NODES:
            continue
        rounds = median[f"rounds {backend}"]
        floor = median["products"]
        print(
            f"{backend}: {2 * ROUNDS / rounds:.0f} rounds a second, {rounds / floor:.2f} of the"
            f" products, {rounds / (floor + messages):.2f} of products and messages"
        )
        if backend != first:
            print(f"{backend} / {first}: rounds {rounds / median[f'rounds {first}']:.2f}")


if __name__ == "__main__":
    import rounds  # workers import what they run from a module

    rounds.main()
