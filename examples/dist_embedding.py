"""Trains embeddings of nodes without features by DGL's DistEmbedding on a partition directory.

    python examples/dist_embedding.py PARTITION_DIRECTORY [EPOCHS]

Each partition has a server and a trainer, all on this machine. The input of a node is a learned
vector (DistEmbedding with DGL's sparse optimizer, which updates rows at their owner) and the
logarithm of its degree (a DistTensor that each trainer fills for its own nodes). The model is
GraphSAGE on sampled neighbours; gloo averages the dense gradients. On several machines, the
ip_config has one line per partition with an address that the others can reach, and the rendezvous
is tcp://.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from partitioning.directory.read_directory import find_partition_directory
from retexo.trainers.sampled_dgl import hooks
from retexo.trainers.sampled_dgl.client import (
    connect,
    free_port,
    unlink_shared_memory,
    write_part_config,
)

ADDRESS, WIDTH, BATCH = "127.0.0.1", 64, 128


def main(directory: Path, epochs: int) -> None:
    parts = find_partition_directory([directory], None).num_parts
    run, spawn = f"embedding-{os.getpid()}", multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ip_config = folder / "ip_config"
        ip_config.write_text("".join(f"{ADDRESS} {free_port(ADDRESS)}\n" for _ in range(parts)))
        servers = []
        for part in range(parts):
            token = f"{run}-{part}"
            (folder / token).mkdir()
            config = write_part_config(directory, token, folder / token)
            command = [
                sys.executable,
                "-m",
                "retexo.trainers.sampled_dgl.server",
                str(config),
                str(ip_config),
                str(part),
                str(parts),
                token,
            ]
            servers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        given = [(part, parts, f"{run}-{part}", folder, epochs) for part in range(parts)]
        trainers = [spawn.Process(target=train, args=each) for each in given]
        for trainer in trainers:
            trainer.start()
        for trainer in trainers:
            trainer.join()
        for server in servers:
            server.kill()
    sys.exit(max(abs(trainer.exitcode or 0) for trainer in trainers))


def train(part: int, parts: int, token: str, folder: Path, epochs: int) -> None:
    rendezvous = f"file://{folder}/gloo"
    torch.distributed.init_process_group(
        "gloo", init_method=rendezvous, rank=part, world_size=parts
    )
    torch.set_num_threads(1)
    dgl, _ = hooks.install(token)
    graph = connect(dgl, token, folder / "ip_config", part, ADDRESS)
    unlink_shared_memory(token)
    policy, book = graph.get_node_partition_policy("_N"), graph.get_partition_book()
    degree = dgl.distributed.DistTensor(
        (graph.num_nodes(), 1), torch.float32, "log_degree", part_policy=policy
    )
    own = book.partid2nids(part)
    degree[own] = graph.ndata["in_deg"][own].float().log1p()[:, None]
    embedding = dgl.distributed.DistEmbedding(
        graph.num_nodes(), WIDTH, "learnt", None, policy
    )  # zeros
    embedding._tensor[own] = (
        torch.randn(len(own), WIDTH) / 8
    )  # an init_func would have to be importable at the server
    sparse = dgl.distributed.optim.SparseAdam([embedding], lr=0.01)
    seeds, test = (
        dgl.distributed.node_split(graph.ndata[name], book) for name in ("train_mask", "test_mask")
    )
    classes = int(graph.ndata["label"][torch.arange(graph.num_nodes())].max()) + 1
    torch.manual_seed(0)
    model = nn.ModuleList(
        [dgl.nn.SAGEConv(WIDTH + 1, WIDTH, "mean"), dgl.nn.SAGEConv(WIDTH, classes, "mean")]
    )
    dense = torch.optim.Adam(model.parameters(), 0.01)
    sampler = dgl.dataloading.NeighborSampler([15, 10])

    def logits(nodes: torch.Tensor) -> torch.Tensor:
        inputs, _, blocks = sampler.sample(graph, nodes)
        rows = torch.cat((embedding(inputs), degree[inputs]), dim=1)
        return model[1](blocks[1], torch.relu(model[0](blocks[0], rows)))

    for _ in range(epochs):
        for batch in seeds[torch.randperm(len(seeds))].split(
            BATCH
        ):  # each trainer has as many, by node_split
            loss = nn.functional.cross_entropy(logits(batch), graph.ndata["label"][batch])
            dense.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= parts
            dense.step()
            sparse.step()  # waits for all trainers
    right = torch.tensor([0, len(test)])
    with torch.no_grad():
        for batch in test.split(BATCH):
            right[0] += int((logits(batch).argmax(1) == graph.ndata["label"][batch]).sum())
    torch.distributed.all_reduce(right)
    if part == 0:
        print(f"test accuracy {int(right[0]) / int(right[1]):.4f}", flush=True)
    end(dgl)


def end(dgl: Any) -> None:
    torch.distributed.barrier()
    dgl.distributed.exit_client()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 10)
