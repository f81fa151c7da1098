"""A trained model in memory: predict, embed, score links, export (docs/inference.md).

    p = retexo.load("outputs/2026-01-31/12-00-00")
    p.predict((nodes, edges))                          # two data frames; a DataFrame of all nodes
    p.attach((nodes, edges))                           # keeps the graph and the rows of each layer
    p.predict(node_ids=[31336, 1061127])
    p.predict(new=(new_nodes, new_edges))              # nodes that the graph does not have yet

n nodes, C classes, D width of embeddings.
"""

import copy
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.directory.read_directory import (
    MissingPartitions,
    PartitionDirectory,
    find_partition_directory,
)
from partitioning.errors import InputError
from partitioning.files.file_io import file_checksum
from partitioning.partition_settings import DatasetSettings
from partitioning.setting_fields import with_values
from partitioning.update import graph_addition, prediction_graph
from partitioning.update.prediction_graph import PredictionGraph
from retexo.models.network import hidden_convolution
from retexo.predict.held_graph import HeldGraph, in_order, with_weights, without_relation_numbers
from retexo.predict.partitioned_run import PartitionedRun, as_pairs
from retexo.results.checkpoint import Checkpoint, open_checkpoint
from retexo.results.predictions import Predictions
from retexo.settings.compose import compose
from retexo.settings.schema import DEFINED
from retexo.trainers.graph_module import (
    PlainGraphModule,
    TypedGraphModule,
    add_edge_gates,
    make_module,
)

logger = logging.getLogger(__name__)

OUTPUTS = ("frame", "tensors", "arrays")
OF_TRAINING_GRAPH = (
    "symmetrize",
    "duplicates",
    "relations.reverse",
    "task.relation",
)
"""Settings of the training graph that a new graph takes over."""
D = TypeVar("D", bound=DatasetSettings)


def load(
    run_dir: str | Path,
    precision: str = "fp32",
    *,
    output: str = "frame",
    settings: Sequence[str] = (),
) -> "Predictor":
    """Load a trained model; InputError also for an unknown output, precision or setting.

    See `retexo.load`.
    """
    DEFINED["predict.precision"].normalise(precision)
    _check_output(output)
    checkpoint = open_checkpoint(Path(run_dir))
    composed = compose([*settings, f"task={checkpoint.task}"])
    names = {setting.partition("=")[0].lstrip("+~") for setting in settings}
    dataset = dataset_like_training(checkpoint, composed, composed.given | names)
    return Predictor(checkpoint, dataset, precision, output)


def dataset_like_training(checkpoint: Checkpoint, dataset: D, given: Any) -> D:
    """Return the settings to read a graph to predict: as in training, without a split.

    given: names of settings that stay, except for task.name, which is always the model's.
    """
    values: dict[str, Any] = {"task.name": checkpoint.task}
    if not any(name.split(".")[0] == "split" for name in given):
        values["split.kind"] = "none"
    if "features" in checkpoint.graph and "features.kind" not in given:
        values["features.kind"] = checkpoint.graph["features"]
    schema = checkpoint.architecture.schema
    if not schema.is_plain and "target" not in given:
        values["target"] = schema.target
    for name in OF_TRAINING_GRAPH:
        if name in checkpoint.graph and name not in given:
            values[name] = checkpoint.graph[name]
    return with_values(dataset, values)


class Predictor:
    """A trained model. Threads may call its methods at the same time."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dataset: DatasetSettings,
        precision: str = "fp32",
        output: str = "frame",
    ) -> None:
        """Load the stages; InputError for damaged files; see `retexo.load`.

        dataset: how graphs are read, see `dataset_like_training`.
        """
        self.checkpoint, self.dataset, self.output = checkpoint, dataset, output
        self.stages = checkpoint.stages()
        self.version = file_checksum(checkpoint.directory / "model.json")[:12]
        """Identifies the model: the beginning of the checksum of model.json."""
        self._partitioned = PartitionedRun(
            checkpoint, self.stages, checkpoint.exchange.at_prediction(precision)
        )
        self._held: HeldGraph | None = None

    @property
    def class_names(self) -> list[Any]:
        """Return the names of classes, or of a regression's targets; empty for 0 ... C-1."""
        return self.checkpoint.class_names

    @property
    def threshold(self) -> float:
        """Return the probability from which on the positive class or a label is predicted."""
        return self.checkpoint.heads.threshold

    @property
    def is_of_links(self) -> bool:
        """Whether the model is for link prediction."""
        return bool(self.checkpoint.scorer)

    # --- graphs ----------

    def attach(self, graph: Any = None) -> Self:
        """Keep a graph, and the rows of each layer, for later calls without `graph`.

        Replaces the graph attached before; returns the predictor itself. InputError for a graph
        that the model was not trained for, and for predictions that are NaN or infinite.

        graph: as of `predict`, but no partition directory; None: the data set of the settings.
        """
        if partition_directory(graph) is not None:
            raise InputError(
                f"graph: {graph}: a partition directory, whose parts are predicted one by one; call"
                " predict with it, or attach the graph that it was made from"
            )
        self._held = self._read_graph(self.dataset if graph is None else graph)
        return self

    def _read_graph(self, graph: Any) -> HeldGraph:
        """Read a graph, compute all layers on it, and return it with its predictions."""
        read = self._check_fits(
            prediction_graph.read_prediction_graph(
                graph,
                self.dataset,
                self.checkpoint.features,
                self.checkpoint.graph.get("spectral_filter"),
            )
        )
        return HeldGraph(self._partitioned, read)

    def _check_fits(self, read: PredictionGraph) -> PredictionGraph:
        """Bring the graph into the form of training; InputError where its kind or width differs.

        make_inference_context compares types, relations and edge features.
        """
        trained, graph = self.checkpoint.architecture, read.graph
        model = f"the model of {self.checkpoint.directory}"
        is_typed = not graph.is_plain
        if trained.schema.is_plain == is_typed:
            kinds = ("a plain graph, without types", "a heterogeneous graph")
            raise InputError(f"graph: {kinds[is_typed]}; {model} is for {kinds[not is_typed]}")
        if is_typed:
            read = in_order(read, trained.schema)
        elif graph.num_features != trained.num_features:
            raise InputError(
                f"graph: its features are {graph.num_features} wide, {model} takes"
                f" {trained.num_features}"
            )
        elif not hidden_convolution(trained.model).reads_relations:
            read = without_relation_numbers(read)
        return with_weights(read, self.checkpoint.weighted, model)

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes of the attached graph that are predicted.

        InputError if none is attached.
        """
        return len(self._use(None).ids.values)

    def _use(self, graph: Any) -> HeldGraph:
        """Return the given graph, read and computed, or the attached one.

        Raises InputError if there is neither.
        """
        if graph is not None:
            return self._read_graph(graph)
        if self._held is None:
            raise InputError("graph: none is given and none is attached; call attach(graph) first")
        return self._held

    # --- predictions of nodes ----------

    def predict(
        self,
        graph: Any = None,
        node_ids: Any = None,
        *,
        new: tuple[Any, Any] | None = None,
        edges: Any = None,
        output: str | None = None,
    ) -> Any:
        """Return classes and probabilities, or the values of a regression.

        Args:
            graph: A path of a file, folder or partition directory; a Data or HeteroData of PyG, a
                DGLGraph, a networkx graph, or a pair of data frames (nodes, edges); with several
                types two dictionaries, {TYPE: frame} and {(SOURCE, RELATION, DESTINATION): frame}.
                None: the attached graph.
            node_ids: Ids of nodes, in the order of the result; None: all.
            new: New nodes and their edges to each other and to the graph, in the form of a pair of
                data frames; the result has these nodes, and the graph stays as it is.
            edges: Of a model of edges, a data frame of further edges between nodes of the graph, in
                the form of the table of edges; the result has their rows, from 0 on.
            output: "frame": a DataFrame with the columns id, class and p0 ... (of a regression
                id and value), as app=predict writes it; "tensors": a dictionary of tensors, and the
                ids; "arrays": a retexo.results.predictions.Predictions; None: as of `load`.

        Raises:
            InputError: an id is unknown, the graph is not what the model was trained for, no graph
                is given or attached, two of node_ids, new and edges are given, new comes with a
                partition directory, a prediction is NaN or infinite, or the model is for links (see
                `score` and `top`).
        """
        form = self._form(output)
        if edges is None:
            predictions = self._predict_nodes(graph, node_ids, new)
        elif node_ids is not None or new is not None:
            raise InputError("edges, node_ids, new: give one of them")
        else:
            attached = self._use(graph)
            added = graph_addition.read_further_edges(attached.read, attached.known, edges)
            predictions = replace(attached.predict_new(added), ids=np.arange(len(edges)))
        return _convert(predictions, form, embeddings=False)

    def embed(
        self,
        graph: Any = None,
        node_ids: Any = None,
        *,
        new: tuple[Any, Any] | None = None,
        output: str | None = None,
    ) -> Any:
        """Return the input of the last layer (columns e0 ...); arguments as of `predict`.

        Of a model for links, the embeddings that scores are made from; `new` raises InputError.
        """
        form = self._form(output)
        if self.is_of_links and new is not None:
            raise InputError(
                "new: the model is for links, and embeds nodes of the graph only; attach the graph"
                " with the new nodes"
            )
        if self.is_of_links:
            attached = self._use(graph)
            embeddings = torch.cat(list(attached.inferred.by_head), dim=1).numpy()
            places = attached.ids.find_all(node_ids)
            ids = attached.ids.values[places]
            nothing = np.empty((len(ids), 0), np.float32)
            predictions = Predictions(ids, nothing, nothing, embeddings[places])
        else:
            predictions = self._predict_nodes(graph, node_ids, new)
        return _convert(predictions, form, embeddings=True)

    def _predict_nodes(self, graph: Any, node_ids: Any, new: tuple[Any, Any] | None) -> Predictions:
        """Return predictions of known nodes or of new ones.

        Known nodes are those of a graph, a partition directory or the attached graph. InputError
        for a model for links, and for arguments that do not go together.
        """
        if self.is_of_links:
            raise InputError(
                f"{self.checkpoint.directory}: its model is for links; call score or top"
            )
        directory = partition_directory(graph)
        if directory is not None and new is not None:
            raise InputError("new: needs an attached graph, or one that is no partition directory")
        if directory is not None:
            return self._partitioned.predict(directory, node_ids)
        attached = self._use(graph)
        if new is not None:
            if node_ids is not None:
                raise InputError("node_ids, new: give one of them")
            if not isinstance(new, tuple | list) or len(new) != 2:
                raise InputError("new: expected a pair of nodes and edges, as data frames")
            return attached.predict_new(
                graph_addition.read_addition(attached.read, attached.known, *new)
            )
        return attached.predictions.take(attached.ids.find_all(node_ids))

    def _form(self, output: str | None) -> str:
        """Return the form of results that `output`, or else the model's own, names."""
        return _check_output(self.output if output is None else output)

    # --- links ----------

    def score(self, graph: Any, pairs: Any = None) -> NDArray[np.float32]:
        """Score pairs of nodes: score(pairs) in the attached graph, or score(graph, pairs).

        Args:
            graph: a graph or partition directory, as for predict; left out for the attached one.
            pairs: ids [n, 2], source and destination.

        Returns:
            float32 [n], any real numbers: the higher, the likelier an edge. They are compared with
            other scores, and are no probabilities. InputError for an unknown id, and for a
            model that is not for links.
        """
        if pairs is None:
            graph, pairs = None, graph
        self._check_is_of_links()
        directory = partition_directory(graph)
        if directory is not None:
            return self._partitioned.score(directory, pairs)
        attached = self._use(graph)
        places = as_pairs(attached.ids.find(pairs, "pairs"))
        return attached.score(torch.from_numpy(places)).numpy()

    def top(
        self, node_ids: Any, k: int = 10, *, graph: Any = None, output: str | None = None
    ) -> Any:
        """Return the likeliest k new destinations of each node: a DataFrame, id, partner, score.

        In the order of `node_ids`, the likeliest first. A node with fewer new destinations has
        fewer rows. InputError for an unknown id, k below 1, and a model that is not for links.

        Args:
            node_ids: one id, or several.
            graph: None for the attached graph.
            output: "tensors" or "arrays" for a dict of the columns; None for the model's `output`.
        """
        self._check_is_of_links()
        form = self._form(output)
        attached = self._use(graph)
        places = attached.ids.find(node_ids, "node_ids").reshape(-1)
        ids = attached.ids.values
        if k < 1:
            raise InputError(f"k={k}: must be at least 1")
        scores, nodes = attached.find_top(torch.from_numpy(places), min(k, len(ids)))
        row, column = scores.isfinite().nonzero(as_tuple=True)
        columns = {
            "id": ids[places][row.numpy()],
            "partner": ids[nodes[row, column].numpy()],
            "score": scores[row, column].numpy(),
        }
        if form == "tensors":
            return {**columns, "score": torch.from_numpy(columns["score"])}
        if form == "arrays":
            return columns
        import pandas as pd

        return pd.DataFrame(columns)

    def _check_is_of_links(self) -> None:
        """Raise InputError unless the model is for links."""
        if not self.is_of_links:
            raise InputError(
                f"{self.checkpoint.directory}: its model is for {self.checkpoint.task_name}; call"
                " predict"
            )

    # --- export ----------

    def to_module(self, *, explainable: bool | None = None) -> PlainGraphModule | TypedGraphModule:
        """Return a copy of the network as a torch module: its forward returns logits.

        forward(x, edge_index, edge_weight=None, edge_attr=None), of typed graphs (x_dict,
        edge_index_dict, edge_weight_dict=None). What it was trained on of edges is required.

        Features are those after the pipeline: `network_inputs` returns them for a graph.

        Args:
            explainable: Whether explainers of PyG may mask edges; None: if PyG is installed. True
                without PyG raises InputError.
        """
        trained = self.checkpoint
        module = make_module(
            trained.architecture, copy.deepcopy(self.stages), trained.heads, trained.weighted
        )
        if explainable or explainable is None:
            try:
                add_edge_gates(module)
            except ImportError:
                if explainable:
                    raise InputError(
                        "explainable: needs torch_geometric: pip install -e '.[pyg]' -c"
                        " constraints.txt"
                    ) from None
        return module

    def network_inputs(self, graph: Any = None) -> tuple[Any, ...]:
        """Return the arguments of the module's forward for a graph, encoded by the pipeline.

        graph: as of `predict`; None: the attached one.
        """
        return self._use(graph).inputs()


def _convert(predictions: Predictions, form: str, *, embeddings: bool) -> Any:
    """Return predictions as a frame, tensors or arrays."""
    if form == "arrays":
        return predictions
    if form == "tensors":
        return _tensors(predictions, embeddings=embeddings)
    import pandas as pd

    return pd.DataFrame(predictions.embedding_columns() if embeddings else predictions.columns())


def _check_output(output: str) -> str:
    """Return the form of results that `output` names; InputError for an unknown one."""
    if output not in OUTPUTS:
        raise InputError(f"output={output}: choose one of {', '.join(OUTPUTS)}")
    return output


def partition_directory(graph: Any) -> PartitionDirectory | None:
    """Return the given partition directory, or that of a path; None for everything else.

    InputError for a damaged one. DGL's files are imported, which writes a directory.
    """
    if isinstance(graph, PartitionDirectory):
        return graph
    if not isinstance(graph, str | Path) or not Path(graph).is_dir():
        return None
    try:
        return find_partition_directory([Path(graph)], None)
    except MissingPartitions:
        return None


def _tensors(predictions: Predictions, *, embeddings: bool) -> dict[str, Any]:
    """Return predictions of nodes: ids as an array, and tensors.

    Classes (of several labels 0 and 1; names as an array), probabilities or values, embeddings.
    """

    def tensor(values: Any) -> Tensor | NDArray[Any]:
        return values if values.dtype.kind in "USO" else torch.from_numpy(values)

    if embeddings:
        return {"id": predictions.ids, "embeddings": tensor(predictions.embeddings)}
    if predictions.values.shape[1]:
        return {"id": predictions.ids, "values": tensor(predictions.values)}
    return {
        "id": predictions.ids,
        "class": tensor(predictions.classes),
        "probabilities": tensor(predictions.probabilities),
    }
