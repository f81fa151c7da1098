"""The README's command for several machines, on nodes that share no network and no partition."""

import functools
import itertools
import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import namespaces
import pytest
from support import ROOT, finish, start_cli

from retexo.apps import partition_data, train
from retexo.settings.compose import compose

TRAINING = (
    "+experiment=exact",
    "num_rounds=[4]",
    "stopping=none",
    "device=cpu",
    "cluster.threads=1",
)
"""Messages that are long enough for the headers of packets to be few."""
HEADERS = 14 + 20 + 32
"""bytes of Ethernet, IP and TCP (with its timestamps) around the payload of a packet"""


def readme_command(**changes: Any) -> list[str]:
    """Arguments of main.py in the README's command for several machines, with further settings."""
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith("python main.py")]
    first = next(line for line in lines if "distributed.master_addr=" in line)
    arguments = shlex.split(first)[2:]
    for name, value in changes.items():
        (place,) = (
            at
            for at, argument in enumerate(arguments)
            if argument.split("=")[0].split(".")[-1] == name
        )
        arguments[place] = f"{arguments[place].split('=')[0]}={value}"
    return arguments


def copy_for(node: range, parts: Path, folder: Path) -> Path:
    """Copy what a node needs of a partition directory: its two descriptions and its own parts."""
    (folder / parts.name).mkdir(parents=True)
    for path in parts.iterdir():
        if path.is_file():
            shutil.copy(path, folder / parts.name)
        elif int(path.name.removeprefix("part")) in node:
            shutil.copytree(path, folder / parts.name / path.name)
    return folder


@dataclass(frozen=True)
class Run:
    """What a run left behind, and what went over the wires."""

    parameters: dict[str, bytes]
    """The files of the layers."""
    summary: dict[str, Any]
    sent: list[tuple[int, int]]
    """By node: bytes and packets that left it."""


OneNode = Callable[[int], tuple[Path, Run]]


def read_run(run_dir: Path, sent: list[tuple[int, int]]) -> Run:
    layers = {
        path.name: path.read_bytes() for path in (run_dir / "checkpoint").glob("*.safetensors")
    }
    return Run(layers, json.loads((run_dir / "summary.json").read_text()), sent)


def ranks_of(num_parts: int, per_node: int) -> list[range]:
    return [
        range(first, min(first + per_node, num_parts)) for first in range(0, num_parts, per_node)
    ]


def run_on_nodes(partitions: Path, folder: Path, per_node: int, *arguments: str) -> Run:
    """Start the command on every node, with its own copy of its parts, and wait for all."""
    num_parts = int(partitions.name.rsplit("-", 1)[-1])
    ranks, processes = ranks_of(num_parts, per_node), []
    with namespaces.network(len(ranks)) as nodes:
        for rank, (node, own) in enumerate(zip(nodes, ranks, strict=True)):
            command = readme_command(
                num_partitions=num_parts,
                parts_per_node=per_node,
                node_rank=rank,
                master_addr=nodes[0].address,
            )
            command += [
                f"partition_dir={copy_for(own, partitions, folder / f'parts{rank}')}",
                *TRAINING,
                *arguments,
                f"hydra.run.dir={folder}/run{rank}",
            ]
            processes.append(start_cli(*command, cwd=folder, prefix=node.prefix))
        for process in processes:
            finish(process)
        return read_run(folder / "run0", [node.sent() for node in nodes])


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> OneNode:
    """Make, by number of parts, Cora's partition directory and the same run on one node."""

    @functools.cache
    def run(parts: int) -> tuple[Path, Run]:
        folder = Path(tmp_path_factory.mktemp("one"))
        arguments = (
            "dataset_name=cora",
            f"num_partitions={parts}",
            f"partition_dir={folder}/parts",
            *TRAINING,
        )
        settings = compose(arguments, "node_classification_gcn")
        partition_data.run(settings)
        train.run(settings, folder / "run")
        (directory,) = (folder / "parts").iterdir()
        return directory, read_run(folder / "run", [])

    return run


# parts, parts a node: the first are 2 nodes with 2 parts and 1
LONG = pytest.mark.long("other numbers of nodes and parts")
PLACEMENTS = [
    (3, 2),
    *(pytest.param(placement, marks=LONG) for placement in ((5, 2), (5, 3), (3, 1))),
]


def bytes_to_other_nodes(by_peer: list[list[int]], own: range) -> int:
    """Bytes that the workers of a node sent to workers of other nodes, by their account."""
    return sum(
        by_peer[rank][peer]
        for rank, peer in itertools.product(own, range(len(by_peer)))
        if peer not in own
    )


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_parameters_are_those_of_one_node_and_the_wire_agrees_with_the_account(
    placement: tuple[int, int], one_node: OneNode, tmp_path: Path
) -> None:
    """Of what left a node at least 95 % is payload.

    Headers of packets apart, gloo and the store add under 1 %.

    The interface counts before a packet is cut into frames. Frames of 1,500 bytes would have a
    header each: 94 %.
    """
    directory, one_run = one_node(placement[0])
    several = run_on_nodes(directory, tmp_path, placement[1])
    assert sorted(one_run.parameters) == ["layer0.safetensors", "layer1.safetensors"]
    assert several.parameters == one_run.parameters
    assert several.summary["test"] == one_run.summary["test"]
    for own, (wire, packets) in zip(ranks_of(*placement), several.sent, strict=True):
        payload = bytes_to_other_nodes(several.summary["bytes"]["by_peer"], own)
        rest = wire - HEADERS * packets - payload
        assert payload >= 0.95 * wire
        assert 0 <= rest <= 0.01 * payload
