"""Settings of nodes, devices, connections and time limits."""

import re

from partitioning.partition_settings import PartitionSettings
from partitioning.setting_fields import (
    FINITE,
    Check,
    Checked,
    at_least,
    at_most,
    group,
    not_a_setting,
    one_of,
    refuse,
    setting,
    subgroup,
    within,
)
from retexo.settings.launcher_env import LauncherEnv

MAX_SECONDS = 1_000_000
"""Eleven days: gloo waits by poll(2), which counts milliseconds in 31 bits."""
MAX_THREADS = 1024


def seconds(least: float) -> tuple[Check, ...]:
    """Return the checks of a time in seconds: at least `least`, finite, not too long."""
    return at_least(least), FINITE, at_most(MAX_SECONDS)


@group("compute")
class ComputeSettings(Checked):
    """Arithmetic of a worker."""

    precision: str = setting(
        "auto",
        "of dense products; auto: bf16 from 131,072 training nodes on, if all CPUs have it",
        one_of("auto", "fp32", "bf16"),
    )


@group("cluster")
class ThreadSettings(Checked):
    """Threads of a worker."""

    threads: int | None = setting(
        None,
        "PyTorch threads of a worker; null: its share of the node's cores",
        at_least(1),
        at_most(MAX_THREADS),
        per_node=True,
    )


@group("distributed", compared=False, per_node=True)
class DistributedSettings(Checked):
    """Connections between nodes."""

    backend: str = setting(
        "gloo",
        "transport: PyTorch's gloo, or sockets with optional encryption (docs/cluster.md)",
        one_of("gloo", "sockets"),
    )
    tls: bool | None = setting(
        None,
        "encrypt connections between nodes by TLS 1.3; null: with distributed.backend=sockets",
    )
    credentials: str | None = setting(
        None, "folder with key and certificate of this node (`retexo credentials`)"
    )
    hub: str | None = setting(
        None,
        "hub (app=hub or node 0) that forwards messages; null: that of members.json, if any",
        Check(
            lambda value: re.fullmatch(r"[\w.-]+:[0-9]{1,5}", value) is not None,
            "must be ADDRESS:PORT, with an IPv4 address or a host name",
        ),
    )
    inbound_port: int | None = setting(
        None,
        "port of this node for other nodes; null: any free port, or none with a hub",
        within(1, 65535),
    )
    master_addr: str = setting("127.0.0.1", "address of node 0; ignored with one node")
    master_port: int = setting(10011, "port of node 0", within(1, 65535))
    interface: str | None = setting(
        None,
        "network interface between nodes; null: that of the route to distributed.master_addr",
    )
    init_timeout: float = setting(
        120,
        "seconds for all workers to join, and for all nodes to return at a restart",
        *seconds(1),
    )
    timeout: float = setting(1800, "seconds for a collective", *seconds(1))
    heartbeat_timeout: float = setting(
        15, "seconds without a heartbeat after which a worker or node counts as dead", *seconds(1)
    )
    max_restarts: int | None = setting(
        None,
        "restarts when a process dies or a connection breaks; null: 3 with checkpoint.every, "
        "else 0",
        at_least(0),
    )

    @property
    def hub_address(self) -> tuple[str, int]:
        """Address and port of distributed.hub; "" and 0 without one."""
        address, _, port = (self.hub or ":0").rpartition(":")
        return address, int(port)


@group()
class ClusterSettings(PartitionSettings):
    """Nodes and devices."""

    parts_per_node: int | None = setting(
        None,
        "workers of each node; null: all run on this node",
        at_least(1),
        compared=False,
    )
    node_rank: int = setting(0, "rank of this node", at_least(0), per_node=True, compared=False)
    device: str = setting("auto", "auto: a GPU if there is one", one_of("auto", "cpu", "cuda"))
    cluster: ThreadSettings = subgroup(ThreadSettings)
    compute: ComputeSettings = subgroup(ComputeSettings)
    distributed: DistributedSettings = subgroup(DistributedSettings)
    launcher_env: LauncherEnv | None = not_a_setting(None)
    """Set if torchrun or Slurm started this process."""
    run_key: str = not_a_setting("")
    """Name by which the launcher tells this run from others at the same port; else empty."""

    def check_together(self) -> None:
        """Check what depends on several settings; InputError names them."""
        own, several = self.distributed, self.num_nodes > 1
        setting_text = "tls=true" if own.tls else f"credentials={own.credentials}"
        secured = bool(own.tls) or own.credentials is not None
        refuse(
            (
                self.node_rank >= self.num_nodes,
                f"node_rank={self.node_rank}: {self.num_partitions} partitions with"
                f" parts_per_node={self.workers_per_node} take {self.num_nodes} node(s), so it must"
                f" be in [0, {self.num_nodes})",
            ),
            (
                several and not self.one_machine and ":" in own.master_addr,
                f"distributed.master_addr={own.master_addr}: must be an IPv4 address or a host"
                " name; IPv6 is not supported",
            ),
            (
                several and own.hub is not None and not self.encrypted,
                f"distributed.hub={own.hub}: a hub joins encrypted connections only; set"
                " distributed.backend=sockets and distributed.credentials",
            ),
            (
                several and own.inbound_port is not None and self.node_rank == 0,
                f"distributed.inbound_port={own.inbound_port}: node 0 is reached at"
                " distributed.master_port, or at the hub; leave it out there",
            ),
            (
                several and secured and own.backend != "sockets",
                f"distributed.{setting_text}: {own.backend} cannot encrypt; set"
                " distributed.backend=sockets",
            ),
            (
                several and own.tls is False and own.credentials is not None,
                f"distributed.credentials={own.credentials}: distributed.tls=false turns"
                " encryption off; leave one of them out",
            ),
            (
                self.encrypted and own.credentials is None,
                "distributed.credentials=null: distributed.backend=sockets encrypts connections, so"
                " each node needs a key. Make one by `retexo credentials`, or set"
                " distributed.tls=false in a network that you trust",
            ),
        )

    @property
    def encrypted(self) -> bool:
        """Whether connections between nodes are encrypted."""
        return (
            self.num_nodes > 1
            and self.distributed.backend == "sockets"
            and self.distributed.tls is not False
        )

    @property
    def workers_per_node(self) -> int:
        return self.parts_per_node or self.num_partitions

    @property
    def num_nodes(self) -> int:
        return -(-self.num_partitions // self.workers_per_node)

    @property
    def local_ranks(self) -> range:
        """Ranks of this node's workers, which are also the numbers of its partitions."""
        return self.ranks_of(self.node_rank)

    def ranks_of(self, node: int) -> range:
        """Return the ranks of a node's workers."""
        first = node * self.workers_per_node
        return range(first, min(first + self.workers_per_node, self.num_partitions))

    def describe_node(self, node: int) -> str:
        """Return a node with the ranks of its workers, for messages: "node 1 (ranks 2, 3)"."""
        ranks = self.ranks_of(node)
        return (
            f"node {node} ({'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))})"
        )

    @property
    def one_machine(self) -> bool:
        """Whether all workers run on this machine, so that loopback is enough."""
        return self.num_nodes == 1 or (
            self.launcher_env is not None and self.launcher_env.one_machine
        )

    def threads_of(self, cores: int) -> int:
        """Return the PyTorch threads of a worker on a machine with `cores` cores.

        The setting, or what the launcher assigns, or an equal share of the cores, at least 1.
        """
        if self.cluster.threads is not None or self.launcher_env is None:
            # Nodes that meet at a loopback address are on one machine and share its cores.
            shared = (
                self.distributed.master_addr.startswith("127.")
                and self.distributed.interface is not None
            )
            workers = self.num_partitions if shared else len(self.local_ranks)
            return self.cluster.threads or max(1, cores // workers)
        return self.launcher_env.cores or max(1, cores // max(1, self.launcher_env.local_size))

    @property
    def num_local_workers(self) -> int:
        """Workers of the run on this machine."""
        if self.launcher_env is None:
            return len(self.local_ranks)
        return self.launcher_env.local_size

    def local_index(self, rank: int) -> int:
        """Return the index of a rank among the workers of this machine, which selects its GPU."""
        return (
            rank - self.local_ranks.start
            if self.launcher_env is None
            else self.launcher_env.local_rank
        )
