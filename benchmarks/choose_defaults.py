"""Choose dropout and patience by validation accuracy, over models and graphs; test accuracy is not looked at.

    python benchmarks/choose_defaults.py --seeds 5 [--pubmed ../shared/datasets/pubmed.npz]

Data: the bundled Cora and, if given, PubMed, one random split a seed (86 / 300 / 1,806 and 1,461 / 2,190 / 13,144).
One process and one partition: with more of them the computation is the same but for the dropout masks.
"""

import itertools
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import common
import numpy as np
import torch

from partitioning.dgl_import import dgl  # noqa: F401  # loaded before the processes fork
from partitioning.directory.read import PartitionDirectory, find
from partitioning.directory.write import write
from retexo.cluster.interfaces import loopback
from retexo.comm.collectives import Communicator
from retexo.comm.process_group import Rendezvous, process_group
from retexo.config.compose import compose
from retexo.config.settings import TrainSettings
from retexo.nn.stage import Architecture, build_stages
from retexo.trainers import lazy
from retexo.trainers.context import Clock
from retexo.training.graph_info import agree_on_graph_info
from retexo.worker.context import make_context
from retexo.worker.evaluate import evaluate


def validation(model: str, data: list[str], seed: int, options: tuple[str, ...]) -> tuple[float, list[int]]:
    """Best validation accuracy of one run, and its rounds per layer."""
    torch.set_num_threads(1)
    overrides = [*data, f"seed={seed}", "num_partitions=1", *options]
    settings = compose(overrides, f"node_classification_{model}")
    graph, split = common.load_graph(settings)
    masks = {"train_mask": split.train, "val_mask": split.val, "test_mask": split.test}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        provenance = {"request": {"partition_method": "random"}, "split": {}, "versions": {}, "cut_edges": 0}
        parts = np.zeros(graph.num_nodes, np.int64)
        write(base / "graph-1", graph, masks, parts, num_parts=1, provenance=provenance, overwrite=False)
        directory = find([base / "graph-1"], 1)
        meeting = Rendezvous(1, loopback(), base / "meet", "", 1, 60, 600)
        with process_group(meeting, 0) as transport:
            return _train(settings.train, directory, Communicator(transport))


def _train(settings: TrainSettings, directory: PartitionDirectory, comm: Communicator) -> tuple[float, list[int]]:
    settings = replace(settings, log_every=10**9)
    torch.manual_seed(settings.seed)
    partition = directory.read(0)
    graph_info = agree_on_graph_info(comm, partition, directory, "0" * 64)
    architecture = Architecture(settings.model, graph_info.num_features, graph_info.num_classes)
    stages = build_stages(architecture, settings.seed)
    context = make_context(settings, partition, graph_info, comm, stages[0].conv, clock=Clock())
    context = replace(context, save_layer=lambda layer, stage: None)
    trained = lazy.train(context, stages)
    return evaluate(context, trained.logits)["val"].accuracy, trained.rounds


def main() -> None:
    parser = common.parser(__doc__, seeds=5, pubmed=None, models=common.MODELS, options=[])
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.3, 0.5, 0.7, 0.8])
    parser.add_argument("--patience", type=int, nargs="+", default=[10, 20, 40])
    arguments = parser.parse_args()
    graphs = common.graphs(arguments.pubmed)
    print(f"torch {torch.__version__}, {arguments.seeds} seeds, options {arguments.options}; mean validation accuracy")
    print(f"{'graph':<8}{'model':<6}{'dropout':>8}{'patience':>9}{'accuracy':>10}{'+-':>8}{'rounds':>9}")
    with ProcessPoolExecutor(2, mp_context=get_context("forkserver")) as pool:
        grid = list(itertools.product(graphs, arguments.models, arguments.dropout, arguments.patience))
        cells = {
            (graph, model, dropout, patience): [
                pool.submit(
                    validation,
                    model,
                    graphs[graph],
                    seed,
                    (f"dropout={dropout}", f"stopping.patience={patience}", *arguments.options),
                )
                for seed in range(arguments.seeds)
            ]
            for graph, model, dropout, patience in grid
        }
        for (graph, model, dropout, patience), runs in cells.items():
            accuracy = np.array([run.result()[0] for run in runs])
            rounds = np.mean([sum(run.result()[1]) for run in runs])
            row = f"{graph:<8}{model:<6}{dropout:>8}{patience:>9}{accuracy.mean():>10.4f}{accuracy.std(ddof=1):>8.4f}"
            print(f"{row}{rounds:>9.1f}", flush=True)


if __name__ == "__main__":
    main()
