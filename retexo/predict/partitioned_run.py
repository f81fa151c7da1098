"""A trained model over a partition directory, in one process.

Each partition is a thread that exchanges rows like a worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.read.id_files import add_types
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.exchange.exchange_plan import Use
from retexo.models.stage import Stage
from retexo.results.checkpoint import Checkpoint
from retexo.results.predictions import Predictions
from retexo.settings.communication_settings import ExchangeSettings
from retexo.settings.compose import compose
from retexo.settings.run_settings import TrainSettings
from retexo.tasks.embedded_nodes import EmbeddedNodes
from retexo.trainers.context import Clock, Context
from retexo.trainers.lazy import InferenceResult, infer
from retexo.worker.compatibility import check_directory, check_fits
from retexo.worker.graph import (
    make_inference_context,
    read_graph,
    task_of_checkpoint,
)
from retexo.worker.link_predictions import score_own_pairs


@dataclass(frozen=True, eq=False)
class PartitionedRun:
    """A trained model that predicts the nodes of partition directories."""

    checkpoint: Checkpoint
    stages: list[Stage]
    exchange: ExchangeSettings
    """How boundary rows are sent."""

    def predict(
        self,
        directory: PartitionDirectory,
        node_ids: Sequence[int | str] | NDArray[Any] | None = None,
    ) -> Predictions:
        """Predict nodes of a partition directory.

        Args:
            directory: a partition directory.
            node_ids: [n] ids of nodes in the data set; None: all nodes, sorted by id.

        Returns:
            Predictions of n nodes, in the order of node_ids. Nodes that cannot influence them are
            not computed, except where that would change the result: with smoothing.reach=computed,
            which starts from all nodes in a split, and with rounded boundary rows, because the
            partial sums to send depend on which nodes are computed.

        Raises:
            InputError: the directory does not fit the model, an id is no node's, or a prediction is
                NaN or infinite.
        """
        parts = self._read_parts(directory)
        keys = torch.cat([part.node_ids for part in parts])
        names_by_part = [directory.node_names(part) for part in range(directory.num_parts)]
        names = [name for names in names_by_part if names is not None for name in names.tolist()]
        ids = NodeIds(np.array(names, dtype=object) if names else keys.numpy(), str(directory.path))
        positions = ids.find_all(node_ids)
        heads = self.checkpoint.heads
        all_rows = self.exchange.rounded or (heads.alpha < 1 and heads.reach == "computed")
        inferred = self._infer(
            directory, parts, None if all_rows or node_ids is None else keys[positions]
        )
        chosen = torch.from_numpy(positions)
        requested = InferenceResult(inferred.logits[chosen], inferred.embeddings[chosen])
        return self.make_predictions(ids.values[positions], requested)

    def score(self, directory: PartitionDirectory, pairs: Any) -> NDArray[np.float32]:
        """Score pairs of nodes with a model for links.

        Args:
            directory: a partition directory.
            pairs: [n, 2] ids of nodes in the data set, source and destination.

        Returns:
            float32 [n]; the higher, the likelier an edge.

        Raises:
            InputError: the directory does not fit the model, an id is no node's, or pairs are not
                [n, 2].
        """
        parts = self._read_parts(directory)
        named = directory.node_names(0) is not None
        ids = as_pairs(check_ids(pairs, "pairs", named=named))
        scores = np.zeros(len(ids), np.float32)
        settings = self.settings(directory.num_parts)

        def worker(comm: Communicator) -> None:
            context = self.open_context(comm, settings, directory, parts[comm.rank], "predict")
            inferred = infer(context, self.stages, self.checkpoint.heads)
            embedded = EmbeddedNodes.of(
                context, self.stages, inferred.by_head, [self.checkpoint.heads]
            )
            own, own_scores = score_own_pairs(
                embedded, ids, "pairs", directory.types_of_pairs, named=named
            )
            scores[own] = own_scores

        run_threads(len(parts), worker)
        return scores

    def _read_parts(self, directory: PartitionDirectory) -> list[Partition]:
        """Verify and read a partition directory; InputError where it does not fit the model."""
        parts, settings = range(directory.num_parts), self.settings(directory.num_parts)
        directory.verify(parts)
        check_directory(settings, directory)
        check_fits(self.checkpoint, directory, parts, use="predict")
        return [read_graph(directory, part, self.checkpoint, settings.task) for part in parts]

    def _infer(
        self, directory: PartitionDirectory, parts: list[Partition], requested: Tensor | None
    ) -> InferenceResult:
        """Return the outputs at all nodes, partition by partition; NaN where not computed.

        requested: int64 [n], stored ids of the nodes that are needed; None: all nodes.
        """
        settings = self.settings(directory.num_parts)  # Hydra composes in one thread only

        def worker(comm: Communicator) -> InferenceResult:
            part = parts[comm.rank]
            part = part if requested is None else _with_test_nodes(part, requested)
            use: Use = "predict" if requested is None else "evaluate"
            context = self.open_context(comm, settings, directory, part, use)
            return infer(context, self.stages, self.checkpoint.heads)

        inferred = run_threads(len(parts), worker)
        return InferenceResult(
            torch.cat([result.logits for result in inferred]),
            torch.cat([result.embeddings for result in inferred]),
        )

    def make_predictions(self, ids: NDArray[Any], inferred: InferenceResult) -> Predictions:
        """Convert a network's outputs at nodes, whose ids are [n], to predictions.

        InputError for outputs that are NaN or infinite.
        """
        if not bool(inferred.logits.isfinite().all()):
            raise InputError(
                "some predictions are NaN or infinite; look for very large values in the features"
            )
        return Predictions.of(
            ids,
            inferred.logits,
            inferred.embeddings,
            task_of_checkpoint(self.checkpoint).predict(inferred.logits),
            self.checkpoint.class_names,
        )

    def open_context(
        self,
        comm: Communicator,
        settings: TrainSettings,
        directory: PartitionDirectory | None,
        part: Partition,
        use: Use,
    ) -> Context:
        """Return the context of one partition; the threads of all partitions call it.

        InputError where the graph does not fit the model. directory: None for a graph in memory.
        """
        return make_inference_context(
            settings, self.checkpoint, part, directory, comm, self.stages, use=use, clock=Clock()
        )

    def settings(self, num_parts: int) -> TrainSettings:
        """Return the model's settings, for a directory of `num_parts` partitions."""
        task = f"task={self.checkpoint.task}"
        train = compose_train(f"num_partitions={num_parts}", "device=cpu", task)
        dim = self.checkpoint.architecture.num_classes if self.checkpoint.scorer else train.task.dim
        return replace(
            train,
            model=self.checkpoint.model,
            **self.checkpoint.model.sizes,
            exchange=self.exchange,
            task=replace(train.task, dim=dim),
        )


@cache
def compose_train(*overrides: str) -> TrainSettings:
    """Return the settings of training with these overrides, NAME=VALUE.

    They are cached, because Hydra takes half a second to compose them.
    """
    return compose(list(overrides))


def _with_test_nodes(part: Partition, requested: Tensor) -> Partition:
    """Return the partition with the nodes of these stored ids as its only split, as test nodes."""
    nothing = torch.zeros(part.num_inner, dtype=torch.bool)
    test_mask = torch.isin(part.node_ids, requested)
    return replace(part, train_mask=nothing, val_mask=nothing, test_mask=test_mask)


# --- ids ----------


class NodeIds:
    """Ids of a graph's nodes, to find their positions."""

    def __init__(self, ids: NDArray[Any], graph: str, types: Sequence[str] = ()) -> None:
        """Sort the ids.

        Args:
            ids: int64 or objects of str [N].
            graph: the graph's name, for messages.
            types: of source and destination of the relation whose links are scored, or empty.
        """
        self.values, self._graph, self._types = ids, graph, types
        self.order = np.argsort(ids, kind="stable")
        """int64 [N] positions that sort `values`."""

    def find_all(self, node_ids: Any) -> NDArray[np.int64]:
        """Return the positions of requested nodes, int64 [n]; for None of all, sorted by id."""
        return self.order if node_ids is None else self.find(node_ids, "node_ids").reshape(-1)

    def find(self, requested: Any, argument: str) -> NDArray[np.int64]:
        """Return the positions of ids, in their shape; InputError for an unknown one."""
        every = self.values
        checked = check_ids(requested, argument, named=every.dtype == object)
        if self._types:
            checked = np.where(np.isin(checked, every), checked, add_types(checked, self._types))
        flat, last = checked.reshape(-1), max(0, len(every) - 1)
        positions = np.minimum(np.searchsorted(every, flat, sorter=self.order), last)
        unknown = flat[every[self.order[positions]] != flat] if len(every) else flat
        if len(unknown):
            listed = ", ".join(f"{id_!s:.100}" for id_ in unknown[:5].tolist())
            raise InputError(
                f"{argument}: {self._graph} has no node {listed}"
                f"{' ...' if len(unknown) > 5 else ''}"
            )
        return self.order[positions].reshape(checked.shape)


def as_pairs(ids: NDArray[Any]) -> NDArray[Any]:
    """Return ids or positions of pairs as [n, 2]; InputError for another shape."""
    if ids.size and ids.shape[-1] != 2:
        raise InputError(f"pairs: has the shape {list(ids.shape)}, expected [n, 2] ids")
    return ids.reshape(-1, 2)


def check_ids(ids_given: Any, argument: str, *, named: bool) -> NDArray[Any]:
    """Return ids as int64, or where nodes are `named` as objects of str, in their shape.

    InputError for what is no id; `argument` names it.
    """
    ids = np.asarray(ids_given, dtype=None if hasattr(ids_given, "dtype") else object)
    if ids.dtype.kind == "i" and not named:
        return ids.astype(np.int64)
    dtype = (
        object if named else np.int64
    )  # texts of fixed width would all be as wide as the longest
    flat = [_parse_id(value, argument, named=named) for value in ids.reshape(-1).tolist()]
    return np.array(flat, dtype=dtype).reshape(ids.shape)


def _parse_id(value: Any, argument: str, *, named: bool) -> int | str:
    """Return an id as text if nodes are named, else as an integer below 2**63.

    Anything else raises InputError.
    """
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float | np.number):
            raise TypeError
        if named:
            return str(value)
        number = int(np.int64(int(value)))
        if not isinstance(value, str) and number != value:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        kind = "names" if named else "integers below 2**63"
        text = f"{value!r:.100}"
        raise InputError(
            f"{argument}: {text} is no id; the ids of this graph are {kind}, give a list of these"
        ) from None
    return number
