"""Settings of the data set, its split, its partitions and their changes."""

from dataclasses import replace
from typing import Any

from partitioning.errors import InputError
from partitioning.setting_fields import (
    FINITE,
    SEED,
    Check,
    Checked,
    at_least,
    at_most,
    group,
    one_of,
    setting,
    subgroup,
    within,
)

MAX_PARTITIONS = 100_000
"""A partition is a folder of ten files. A larger number is taken for a typing error."""
FEATURES = ("given", "degree", "random", "positional", "neighbours")
MAX_COUNT = at_most(2**32 - 1)
REGRESSION, LINKS = "node_regression", "link_prediction"
TASKS = ("node_classification", REGRESSION, "edge_classification", "edge_regression", LINKS)
SHARE = Check(
    lambda value: isinstance(value, int | float | str),
    "must be a share in [0, 1], a number, or a file",
)


def task_of_edges(task: str) -> str:
    """Return the task of labelled edges that is learned as this task of nodes."""
    return task.replace("node_", "edge_")


@group("synthetic")
class SyntheticSettings(Checked):
    """Synthetic graph: a degree-corrected stochastic block model.

    Of dataset_name=synthetic_hetero: nodes and edges of all types and relations together.
    """

    nodes: int = setting(10_000, "number of nodes", at_least(1), MAX_COUNT)
    edges: int = setting(100_000, "number of undirected edges", at_least(0), MAX_COUNT)
    features: int = setting(64, "number of features", at_least(1), MAX_COUNT)
    classes: int = setting(8, "number of classes", at_least(1), MAX_COUNT)
    homophily: float = setting(0.7, "share of edges within a class", within(0, 1))
    seed: int = setting("${seed}", "seed of the graph", *SEED, is_seed=True)


@group("split")
class SplitSettings(Checked):
    """Split; null: as published."""

    kind: str = setting(
        "default",
        "default: as published; given: masks in the data; per_class: numbers of nodes per "
        "class; fraction: shares of the labelled nodes; stratified: of each class; time: the "
        "oldest for training; files: node indices; none: a graph to predict",
        one_of("default", "given", "per_class", "fraction", "stratified", "time", "files", "none"),
        is_group=True,
        of_partitioner=True,
    )
    seed: int = setting(
        "${seed}", "seed of a random split", *SEED, is_seed=True, of_partitioner=True
    )
    train: Any = setting(
        None,
        "training nodes: a share, with per_class their number per class, with files node indices "
        "(npy, csv)",
        SHARE,
        of_partitioner=True,
    )
    val: Any = setting(
        None, "validation nodes, likewise; with per_class their number", SHARE, of_partitioner=True
    )
    test: Any = setting(None, "test nodes, likewise", SHARE, of_partitioner=True)
    dir: str | None = setting(
        None,
        "files: folder with train, val (or valid) and test (npy, csv)",
        of_partitioner=True,
    )
    drop_unlabelled: bool = setting(
        False,
        "remove nodes without a label from the split",
        of_partitioner=True,
    )
    index: int | None = setting(
        None,
        "given: index of the mask if nodes have several, from 0",
        at_least(0),
        of_partitioner=True,
    )
    edges: Any = setting(
        None,
        "links: shares of training, validation and test edges; null: the data's own split, "
        "else [0.85, 0.05, 0.1]",
        list_of=float,
        of_partitioner=True,
    )
    inductive: bool = setting(
        False,
        "hide validation and test nodes with their edges while training (docs/inference.md)",
    )
    by: str | None = setting(
        None,
        "links: split.edges are shares of each source's edges (source), by time, or of all "
        "edges (null)",
        of_partitioner=True,
    )


@group("columns", of_partitioner=True)
class ColumnSettings(Checked):
    """Columns of tables, one or a list; null: found by rule.

    Lists may hold patterns such as emb_*.
    """

    id: Any = setting(
        None,
        "node ids; null: id, node_id or similar, or unique values that edges refer to",
        list_of=str,
    )
    label: Any = setting(
        None,
        "node labels, or several columns of 0 and 1 (multi-label); null: label or class",
        list_of=str,
    )
    src: Any = setting(
        None,
        "edge sources, also as {RELATION: COLUMN}; null: src, source or from",
        list_of=str,
        by_name=True,
    )
    dst: Any = setting(
        None,
        "edge destinations, likewise; null: dst, target or to",
        list_of=str,
        by_name=True,
    )
    relation: str | None = setting(None, "name of each edge's relation")
    weight: str | None = setting(None, "edge weights; null: weight")
    time: str | None = setting(
        None,
        "numbers or dates: of edges for split.by=time, of nodes for split=time",
    )
    split: str | None = setting(None, "split of a node: train, val (valid) or test; null: split")
    numeric: Any = setting(None, "numeric features", list_of=str)
    categorical: Any = setting(
        None, "features to encode as one-hot, also numbers such as postal codes", list_of=str
    )
    embedding: Any = setting(
        None,
        "numeric features that are scaled together, and only if their scales differ",
        list_of=str,
    )
    date: Any = setting(
        None,
        "dates to use as features, in seconds since 1970; other dates are ignored",
        list_of=str,
    )
    ignore: Any = setting(None, "columns to leave out", list_of=str)


@group("labels", of_partitioner=True)
class LabelSettings(Checked):
    """Labels."""

    kind: str = setting(
        "auto",
        "auto: several per node for a matrix of 0 and 1; multilabel also splits cells such "
        "as Action|Comedy",
        one_of("auto", "multiclass", "multilabel"),
    )
    unknown: Any = setting(
        None,
        "what stands for no label besides blank cells and -1, such as [unknown,-100]",
        Check(lambda value: not isinstance(value, dict), "must be a value or a list of values"),
    )


@group("features", of_partitioner=True)
class FeatureSettings(Checked):
    """Features of nodes."""

    kind: Any = setting(
        "given",
        "one kind, or a list to concatenate; {TYPE: ...} for heterogeneous graphs (docs/data.md)",
        one_of(*FEATURES),
        list_of=str,
        by_name=True,
    )
    scale: str = setting(
        "auto",
        "auto: standard, embeddings only if their scales differ; standard: mean 0, deviation "
        "1; robust: median and quartiles; log: standard scaling of logarithms",
        one_of("auto", "standard", "robust", "log", "none"),
    )
    missing: str = setting(
        "median",
        "blank cells of numeric columns, beside a column that marks them; error: refuse them",
        one_of("median", "mean", "zero", "error"),
    )
    fit: str = setting(
        "train",
        "nodes from which means, medians and categories are computed",
        one_of("train", "all"),
    )
    spec: str | None = setting(
        None,
        "fitted pipeline to apply: a run or partition directory, or a file of app=describe",
        per_node=True,
    )


@group("tables", of_partitioner=True)
class TableSettings(Checked):
    """Names of the tables in a folder."""

    nodes: Any = setting(
        None,
        "table, or {TYPE: TABLE}; null: nodes, features and labels, or nodes/",
        list_of=str,
        by_name=True,
    )
    edges: Any = setting(
        None,
        "table, or {SOURCE__RELATION__DESTINATION: TABLE}; null: edges, or edges/",
        list_of=str,
        by_name=True,
    )


@group("edges")
class EdgeSettings(Checked):
    """Edges of tables."""

    unknown: str = setting(
        "refuse",
        "edges with an id that belongs to no node: refuse or drop them, or add the node",
        one_of("refuse", "drop", "add"),
        of_partitioner=True,
    )


@group("relations")
class RelationSettings(Checked):
    """Relations of heterogeneous graphs."""

    reverse: bool = setting(
        True,
        "add a reverse relation rev_NAME to every relation without one",
        of_partitioner=True,
    )


@group("task")
class PairSettings(Checked):
    """What is predicted."""

    name: str = setting(
        TASKS[0],
        "what is predicted: classes or numbers of nodes or of edges, or links",
        one_of(*TASKS),
        is_group=True,
    )
    relation: str | None = setting(
        None,
        "links or labelled edges of heterogeneous graphs: SOURCE__RELATION__DESTINATION, or "
        "RELATION if unique",
        of_partitioner=True,
    )
    message_edges: str = setting(
        "train",
        "labelled edges that carry messages; all: also those of validation and test (by "
        "time, until the last training edge)",
        one_of("train", "all"),
        of_partitioner=True,
    )
    spectral: int = setting(
        256,
        "links: largest width of the spectral embedding, of which validation chooses one; 0: none",
        at_least(0),
        at_most(1024),
        of_partitioner=True,
    )

    @property
    def links(self) -> bool:
        """Whether the task is link prediction."""
        return self.name == LINKS

    @property
    def regression(self) -> bool:
        """Whether labels are numbers."""
        return self.name.endswith("_regression")

    @property
    def of_edges(self) -> bool:
        """Whether edges have the labels."""
        return self.name.startswith("edge_")

    @property
    def node_task(self) -> str:
        """Return the name of the node task that learns it."""
        return self.name.replace("edge_", "node_")


@group()
class DatasetSettings(Checked):
    """Data set."""

    dataset_name: str = setting("reddit", "data set; docs/partitioning.md lists all")
    dataset_dir: str = setting(
        "../retexo-datasets/",
        "folder for downloaded data sets, and local copies of object stores (docs/data.md)",
        Check(
            lambda value: value.strip() != "" and "://" not in value,
            "expected a folder of this machine",
        ),
        per_node=True,
        compared=False,
    )
    dataset_file: str | None = setting(
        None,
        "npz file, folder of tables, or DGL graph file (docs/data.md); dataset_name=parts: "
        "folder of this site",
        per_node=True,
    )
    dataset_max_gib: float = setting(
        4.0,
        "largest unpacked size of a compressed file, in GiB beyond its own size",
        at_least(0),
        FINITE,
        per_node=True,
        compared=False,
    )
    symmetrize: bool | None = setting(
        None,
        "add missing reverse edges; null: the data set's default",
        of_partitioner=True,
    )
    columns: ColumnSettings = subgroup(ColumnSettings)
    labels: LabelSettings = subgroup(LabelSettings)
    duplicates: str = setting(
        "keep",
        "repeated edges: count each copy, or merge copies with the sum of their weights",
        one_of("keep", "merge"),
        of_partitioner=True,
    )
    features: FeatureSettings = subgroup(FeatureSettings)
    target: str | None = setting(
        None,
        "heterogeneous graphs: node type to classify; null: the type with labels",
        of_partitioner=True,
    )
    synthetic: SyntheticSettings = subgroup(SyntheticSettings)
    split: SplitSettings = subgroup(SplitSettings)
    tables: TableSettings = subgroup(TableSettings)
    edges: EdgeSettings = subgroup(EdgeSettings)
    relations: RelationSettings = subgroup(RelationSettings)
    task: PairSettings = subgroup(PairSettings)

    def check_together(self) -> None:
        if self.dataset_file is not None and self.dataset_name not in ("file", "parts"):
            raise InputError(
                f"dataset_file={self.dataset_file} has no meaning with dataset_name="
                f"{self.dataset_name}: set dataset_name=file, or remove it"
            )
        if isinstance(self.features.kind, str):
            self.features = replace(self.features, kind=[self.features.kind])

    @property
    def is_unlabelled(self) -> bool:
        """Whether the graph may lack labels and masks: it is only predicted."""
        return self.split.kind == "none"


@group("partition")
class PlacementSettings(Checked):
    """Balance, seed and files of partitions."""

    balance_train: bool | None = setting(
        None,
        "balance training nodes over partitions; null: for metis and km1",
        of_partitioner=True,
    )
    seed: int = setting(
        "${seed}",
        "seed of the assignment to partitions",
        *SEED,
        is_seed=True,
        of_partitioner=True,
    )
    dgl_files: bool | None = setting(
        None,
        "also write DGL's files; null: if DGL is installed, with app=partition_data and "
        "trainer=sampled",
        of_partitioner=True,
        compared=False,
    )
    source: str | None = setting(
        None,
        "app=partition_data: directory to rebalance in place, moving few nodes",
        compared=False,
    )


@group("update", compared=False)
class UpdateSettings(Checked):
    """Changes of a partition directory (docs/updates.md)."""

    new_nodes: str | None = setting(None, "table of new nodes")
    changed_nodes: str | None = setting(None, "table of changed nodes")
    deleted_nodes: str | None = setting(None, "table of deleted nodes")
    new_edges: str | None = setting(None, "table of new edges")
    changed_edges: str | None = setting(None, "table of changed edges")
    deleted_edges: str | None = setting(None, "table of deleted edges")


@group()
class PartitionSettings(DatasetSettings):
    """Partitions."""

    partition_dir: str = setting(
        "data/partitions",
        "folder of partition directories; also s3://, gs://, https:// (docs/data.md)",
        per_node=True,
        compared=False,
    )
    partition_method: str = setting(
        "random",
        "at random, by METIS, by hypergraph partitioning (km1), or from a file",
        one_of("random", "metis", "km1", "file"),
        of_partitioner=True,
    )
    part_obj: str = setting(
        "vol",
        "metis: minimise communication volume or cut edges",
        one_of("vol", "cut"),
        of_partitioner=True,
    )
    partition_file: str | None = setting(
        None,
        "partition_method=file: partition of each node, an integer array [nodes] (npy, csv)",
        of_partitioner=True,
    )
    num_partitions: int = setting(
        4,
        "number of partitions and of workers",
        at_least(1),
        at_most(MAX_PARTITIONS),
    )
    overwrite: bool = setting(
        False,
        "app=partition_data: replace a directory that was made with other settings",
        of_partitioner=True,
        compared=False,
    )
    partition: PlacementSettings = subgroup(PlacementSettings)
    update: UpdateSettings = subgroup(UpdateSettings)

    def check_together(self) -> None:
        if self.partition_method == "file" and self.partition_file is None:
            raise InputError(
                "partition_method=file needs partition_file=PATH: an integer array [nodes], npy"
                " or csv"
            )
