"""Several nodes on one machine: network namespaces, joined by a bridge in its own namespace.

    node0 [eth0 10.0.0.1] --veth--+
    node1 [eth0 10.0.0.2] --veth--+-- bridge
    node2 [eth0 10.0.0.3] --veth--+

A node has an eth0 and a loopback device, and reaches nothing else. Two networks cannot meet, so all
of them have the same addresses, and any port is free. Needs root and iproute2.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

PREFIX = "retexo-test"
DEVICE = "eth0"
_numbers = itertools.count()


@dataclass(frozen=True)
class Node:
    """A machine, as far as the network goes."""

    namespace: str
    address: str

    @property
    def prefix(self) -> list[str]:
        """Return what to put before a command so that it runs on this node, as one process."""
        return ["ip", "netns", "exec", self.namespace]

    def sent(self) -> tuple[int, int]:
        """Bytes and packets that left this node so far, link headers included.

        Loopback does not count.
        """
        (device,) = json.loads(
            _run("ip", "-n", self.namespace, "-json", "-stats", "link", "show", DEVICE)
        )
        return device["stats64"]["tx"]["bytes"], device["stats64"]["tx"]["packets"]


@contextlib.contextmanager
def network(num_nodes: int, rate: str | None = None) -> Iterator[list[Node]]:
    """Nodes that reach each other, each sending at most at `rate` (of tc, such as 100mbit).

    All removed at the end.

    Raises subprocess.CalledProcessError or OSError where the system does not permit it.
    """
    _remove_stale()
    name = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
    nodes = [Node(f"{name}-node{number}", f"10.0.0.{number + 1}") for number in range(num_nodes)]
    switch = f"{name}-switch"
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "up", "type", "bridge")
        for number, node in enumerate(nodes):
            _plug_in(node, switch, f"port{number}")
            if rate is not None:
                limit = ("tbf", "rate", rate, "burst", "64kb", "latency", "200ms")
                _run("tc", "-n", node.namespace, "qdisc", "add", "dev", DEVICE, "root", *limit)
        yield nodes
    finally:
        for namespace in (switch, *(node.namespace for node in nodes)):
            _remove(namespace)


def refusal() -> str | None:
    """Why there can be no network here, in the system's words; None: there can."""
    try:
        with network(1):
            return None
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    except OSError as error:
        return str(error)


def _plug_in(node: Node, switch: str, port: str) -> None:
    """Make a node's namespace, and the cable from it to the switch."""
    peer = ("peer", "name", DEVICE, "netns", node.namespace)
    _run("ip", "netns", "add", node.namespace)
    _run("ip", "-n", switch, "link", "add", port, "type", "veth", *peer)
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    _run(
        "ip", "-n", node.namespace, "link", "set", DEVICE, "addrgenmode", "none"
    )  # no chatter of IPv6
    _run("ip", "-n", node.namespace, "address", "add", f"{node.address}/24", "dev", DEVICE)
    _run("ip", "-n", node.namespace, "link", "set", DEVICE, "up")
    _run("ip", "-n", node.namespace, "link", "set", "lo", "up")


def _remove(namespace: str) -> None:
    """End what runs in a namespace, and remove it with its devices; fine if it is not there."""
    for pid in pids(namespace):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def pids(namespace: str) -> list[int]:
    """The processes in a namespace; none if it is not there."""
    listed = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in listed.stdout.split()]


def left() -> list[str]:
    """The namespaces of this module that are there."""
    names = [line.split()[0] for line in _run("ip", "netns", "list").splitlines()]
    return [name for name in names if name.startswith(f"{PREFIX}-")]


def _remove_stale() -> None:
    """Remove what a process left that was killed before it could."""
    for namespace in left():
        if not psutil.pid_exists(int(namespace.removeprefix(f"{PREFIX}-").split("-")[0])):
            _remove(namespace)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
