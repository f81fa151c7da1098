"""trainer=sampled on two nodes that share neither a network stack nor /dev/shm; what crosses is
what is counted.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import namespaces
import pytest
from support import finish, need_dgl, start_cli
from test_separate_stacks import HEADERS, copy_for, crossing

from retexo.apps import partition_data
from retexo.settings.compose import compose

OWN_MEMORY = 'mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"'
FRAMES = 0.01
"""Of the payload, what is added by DGL's frames, gloo and the store, and by TCP that sends again on
a busy machine.
"""


@dataclass(frozen=True)
class Machine(namespaces.Node):
    """A node with a /dev/shm of its own."""

    @property
    def prefix(self) -> list[str]:
        return [*super().prefix, "unshare", "--mount", "sh", "-c", OWN_MEMORY]


@pytest.mark.long("test_sampled.py has the trainer, test_separate_stacks.py the two machines")
@pytest.mark.timeout(180)
def test_two_machines(tmp_path: Path) -> None:
    need_dgl()
    base = ["dataset_name=cora", "num_partitions=2", f"partition_dir={tmp_path}/parts"]
    partition_data.run(compose(base).partition)
    (directory,) = (tmp_path / "parts").iterdir()
    processes = []
    with namespaces.network(2) as nodes:
        for rank, node in enumerate(nodes):
            parts = copy_for(range(rank, rank + 1), directory, tmp_path / f"parts{rank}")
            own = [
                f"partition_dir={parts}",
                f"node_rank={rank}",
                f"hydra.run.dir={tmp_path}/run{rank}",
            ]
            processes.append(
                start_cli(
                    "--config-name",
                    "node_classification_sage",
                    "app=train",
                    "trainer=sampled",
                    *base[:2],
                    *own,
                    "num_rounds=[6]",
                    "batch_size=64",
                    "cluster.threads=1",
                    "parts_per_node=1",
                    "sampled.trainers=2",
                    f"distributed.master_addr={nodes[0].address}",
                    cwd=tmp_path,
                    prefix=Machine(node.namespace, node.address).prefix,
                )
            )
        for ended in [finish(process, timeout=150) for process in processes]:
            assert ended.rc == 0, ended.output
        sent = [node.sent() for node in nodes]
    summary = json.loads((tmp_path / "run0" / "summary.json").read_text())
    assert summary["test"]["accuracy"] > 0.7
    for rank, (wire, packets) in enumerate(sent):
        payload = crossing(summary["bytes"]["by_peer"], range(rank, rank + 1))
        rest = wire - HEADERS * packets - payload
        print(
            f"rank {rank}: payload {payload:,}, on the wire {wire:,} in {packets:,} packets, rest"
            f" {rest:,}"
        )
        assert 0 <= rest <= FRAMES * payload
