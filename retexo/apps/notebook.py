"""From Python, in a script or a notebook: what `retexo` does, and a trained run to predict with (docs/python.md).

    run = retexo.load_run("outputs/2026-01-31/12-00-00")
    table = run.predict("data/partitions/cora-random-vol-4", node_ids=[31336, 1061127])
    table.classes, table.probabilities

A loaded run is one process without a process group: the parts of the directory are threads that exchange rows as the
workers of app=predict do.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.directory.read import PartitionDirectory, find
from partitioning.errors import InputError
from retexo import apps
from retexo.comm.collectives import Communicator
from retexo.comm.threads import run_threads
from retexo.config.compose import compose, compose_run
from retexo.config.flatten import flatten
from retexo.config.settings import TrainSettings
from retexo.nn.stage import Stage
from retexo.outputs.checkpoint import Checkpoint, open_checkpoint
from retexo.outputs.predictions import Predictions
from retexo.trainers.answer import InferenceResult
from retexo.trainers.context import Clock
from retexo.training.graph_info import NO_DIGEST, agree_on_graph_info
from retexo.worker.compatibility import Shape, check_fits
from retexo.worker.graph import Graph, check_directory, graph_of, make_inference_context, read_graph


def run(settings: Mapping[str, Any] | Sequence[str], config_name: str, config_dir: str | None) -> Any:
    """What the app returns that `retexo` runs with these settings; retexo/__init__.py says how they are given."""
    overrides = (
        [f"{name}={_text(value)}" for name, value in flatten(settings).items()]
        if isinstance(settings, Mapping)
        else settings
    )
    return apps.run(*compose_run(list(overrides), config_name, config_dir))


def _text(value: Any) -> str:
    """A value as Hydra reads it on the command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, str | Path):
        return "'" + str(value).replace("'", "\\'") + "'"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def load_run(checkpoint_dir: str | Path) -> "Run":
    """The model that app=train left in a run directory; InputError where there is none, or it is damaged."""
    checkpoint = open_checkpoint(Path(checkpoint_dir))
    return Run(checkpoint, checkpoint.stages())


@dataclass(frozen=True, eq=False)
class Run:
    """A trained model."""

    checkpoint: Checkpoint
    stages: list[Stage]

    def predict(
        self, directory: str | Path | PartitionDirectory, node_ids: Sequence[int | str] | NDArray[Any] | None = None
    ) -> Predictions:
        """Predictions for nodes of a partition directory, by their ids in the data set and in the order asked for.

        Without node_ids: for all nodes, sorted by id. With them, only what reaches these through the layers and the
        smoothing is computed; all where that starts from the nodes in a split (smoothing.reach=computed), or where rows
        are rounded, which sums of other nodes' rows are otherwise.
        InputError for a folder that is no partition directory, or that does not fit the model, and for an unknown id.
        """
        opened = directory if isinstance(directory, PartitionDirectory) else find([Path(directory)], None)
        opened.verify(range(opened.num_parts))
        check_directory(self._settings(opened.num_parts), opened)
        check_fits(self.checkpoint, Shape.of(opened, range(opened.num_parts)), opened, use="predict")
        parts = range(opened.num_parts)
        graphs = [read_graph(opened, part, self.checkpoint) for part in parts]
        keys = torch.cat([graph.partition.node_ids for graph in graphs])
        held = [names.tolist() for part in parts if (names := opened.node_names(part)) is not None]
        every = np.array([name for names in held for name in names], dtype=np.str_) if held else keys.numpy()
        order = np.argsort(every, kind="stable")
        asked = np.asarray(node_ids, dtype=np.str_ if held else np.int64).reshape(-1) if node_ids is not None else None
        places = order if asked is None else _places(every, order, asked, opened)
        answer = self.checkpoint.answer
        all_rows = self.checkpoint.exchange.rounded or (answer.alpha < 1 and answer.reach == "computed")
        found = self._infer(opened, graphs, None if all_rows or asked is None else keys[places])
        return found.named(every.tolist() if held else None, self.checkpoint.class_names).take(places)

    def _infer(self, directory: PartitionDirectory, graphs: list[Graph], asked: Tensor | None) -> Predictions:
        """Of all nodes, part after part; NaN for nodes that were not asked for."""
        settings = self._settings(len(graphs))

        def worker(comm: Communicator) -> InferenceResult:
            graph = graphs[comm.rank] if asked is None else _asking(graphs[comm.rank], asked)
            graph_info = agree_on_graph_info(comm, graph.partition, directory, NO_DIGEST, training=False)
            context = make_inference_context(
                settings,
                self.checkpoint,
                graph,
                graph_info,
                comm,
                self.stages,
                use="predict" if asked is None else "evaluate",
                clock=Clock(),
            )
            return graph.infer(context, self.stages, self.checkpoint.answer)

        inferred = run_threads(len(graphs), worker)
        return Predictions.of(
            torch.cat([graph.partition.node_ids for graph in graphs]),
            torch.cat([each.logits for each in inferred]),
            torch.cat([each.embeddings for each in inferred]),
            self.checkpoint.multilabel,
        )

    def _settings(self, num_parts: int) -> TrainSettings:
        train = compose([f"num_partitions={num_parts}", "device=cpu"]).train
        return replace(train, model=self.checkpoint.model, exchange=self.checkpoint.exchange)


def _asking(graph: Graph, asked: Tensor) -> Graph:
    """The graph with the nodes that are asked for as its only test nodes: rows go where these need them."""
    nodes = graph.partition
    nothing = torch.zeros(nodes.num_inner, dtype=torch.bool)
    test_mask = torch.isin(nodes.node_ids, asked)
    return graph_of(replace(graph.part, train_mask=nothing, val_mask=nothing, test_mask=test_mask))


def _places(
    every: NDArray[Any], order: NDArray[np.int64], asked: NDArray[Any], directory: PartitionDirectory
) -> NDArray[np.int64]:
    """Where the ids that are asked for are among all of them, int64 [n]."""
    places = np.minimum(np.searchsorted(every, asked, sorter=order), max(0, len(every) - 1))
    unknown = asked[every[order[places]] != asked] if len(every) else asked
    if len(unknown):
        shown = ", ".join(map(str, unknown[:5].tolist()))
        raise InputError(f"node_ids: {directory.path} has no node {shown}{' ...' if len(unknown) > 5 else ''}")
    return order[places]
