"""The settings of partitioning. Types, defaults, checks and help texts of settings are said here, and nowhere else."""

from dataclasses import asdict
from typing import Any

from partitioning.errors import InputError
from partitioning.setting_fields import (
    FINITE,
    SEED,
    Check,
    Checked,
    at_least,
    at_most,
    one_of,
    setting,
    settings_dataclass,
    within,
)

MAX_PARTITIONS = 100_000
"""Each is a folder of ten files; more are a slip of the finger."""
FEATURES = ("given", "degree", "random", "positional", "neighbours")
MAX_COUNT = at_most(2**32 - 1)
KINDS = Check(
    lambda value: all(
        kind in FEATURES
        for kinds in (value.values() if isinstance(value, dict) else [value])
        for kind in (kinds if isinstance(kinds, list | tuple) else [kinds])
    ),
    f"choose of {', '.join(FEATURES)}",
    FEATURES,
)
LINKS = "retexo.metrics.LinkPrediction"
TASKS = ("retexo.metrics.NodeClassification", LINKS)
SHARE = Check(
    lambda value: isinstance(value, int | float | str), "must be a share in [0, 1], or a file"
)


@settings_dataclass
class SyntheticSettings(Checked):
    """The graph of dataset_name=synthetic: a degree-corrected stochastic block model with class-dependent features.

    Of dataset_name=synthetic_hetero: nodes and edges of all types and relations together.
    """

    nodes: int = setting("synthetic.nodes", 10_000, "nodes", at_least(1), MAX_COUNT)
    edges: int = setting("synthetic.edges", 100_000, "undirected edges", at_least(0), MAX_COUNT)
    features: int = setting(
        "synthetic.features", 64, "width of a feature row", at_least(1), MAX_COUNT
    )
    classes: int = setting("synthetic.classes", 8, "classes", at_least(1), MAX_COUNT)
    homophily: float = setting(
        "synthetic.homophily", 0.7, "share of the edges within a class", within(0, 1)
    )
    seed: int = setting("synthetic.seed", "${seed}", "of the graph", *SEED, is_seed=True)
    types: int = setting(
        "synthetic.types", 5, "synthetic_hetero: types of nodes", at_least(1), at_most(1000)
    )
    relations: int = setting(
        "synthetic.relations",
        6,
        "synthetic_hetero: relations, their reverse ones not counted",
        at_least(1),
        at_most(1000),
    )


@settings_dataclass
class SplitSettings(Checked):
    """How nodes become training, validation and test nodes; null: as in the data set's published split."""

    kind: str = setting(
        "split.kind",
        "default",
        "the data set's published split; the masks in the data; N per class; shares of the labelled "
        "nodes; index files; none: a graph to predict, which needs no labels",
        one_of("default", "given", "per_class", "fraction", "files", "none"),
        is_group=True,
        of_partitioner=True,
    )
    seed: int = setting(
        "split.seed", "${seed}", "of a drawn split", *SEED, is_seed=True, of_partitioner=True
    )
    train_per_class: int | None = setting(
        "split.train_per_class",
        None,
        "per_class: nodes of each class for training",
        at_least(0),
        of_partitioner=True,
    )
    num_val: int | None = setting(
        "split.num_val", None, "per_class: for validation", at_least(0), of_partitioner=True
    )
    num_test: int | None = setting(
        "split.num_test", None, "per_class: for the test", at_least(0), of_partitioner=True
    )
    train: Any = setting(
        "split.train",
        None,
        "fraction: share in [0, 1]; files: node indices (npy, csv)",
        SHARE,
        of_partitioner=True,
    )
    val: Any = setting("split.val", None, "likewise", SHARE, of_partitioner=True)
    test: Any = setting("split.test", None, "likewise", SHARE, of_partitioner=True)
    dir: str | None = setting(
        "split.dir",
        None,
        "files: folder with train, val (or valid) and test (npy, csv)",
        of_partitioner=True,
    )
    drop_unlabelled: bool = setting(
        "split.drop_unlabelled",
        False,
        "take nodes without a label out of the masks",
        of_partitioner=True,
    )
    edges: tuple[float, ...] | None = setting(
        "split.edges",
        None,
        "task=link_prediction: shares of training, validation and test pairs; null: the data's "
        "own split, else [0.85, 0.05, 0.1]",
        of_partitioner=True,
    )
    by: str | None = setting(
        "split.by",
        None,
        "likewise: source, or its type: of each source's pairs; time: the first train; null: all",
        of_partitioner=True,
    )


@settings_dataclass
class ColumnSettings(Checked):
    """Roles of columns in the tables of dataset_name=file; null: found by rule, which the log says.

    Lists may hold patterns such as emb_*.
    """

    id: str | None = setting(
        "columns.id",
        None,
        "ids of the nodes; null: id, node_id ..., or a column of unique values that the edges refer to",
        of_partitioner=True,
    )
    label: tuple[str, ...] | None = setting(
        "columns.label",
        None,
        "classes of the nodes, or several columns of 0 and 1 (multi-label); null: label, class",
        of_partitioner=True,
    )
    src: str | None = setting(
        "columns.src",
        None,
        "sources of the edges; null: src, source, from ...",
        of_partitioner=True,
    )
    dst: str | None = setting(
        "columns.dst",
        None,
        "destinations of the edges; null: dst, target, to ...",
        of_partitioner=True,
    )
    weight: str | None = setting(
        "columns.weight", None, "weights of the edges; null: weight", of_partitioner=True
    )
    time: str | None = setting(
        "columns.time",
        None,
        "times, numbers or dates: of the edges for split.by=time, of the nodes for split=time",
        of_partitioner=True,
    )
    split: str | None = setting(
        "columns.split",
        None,
        "which split a node is in: train, val (valid) or test; null: split",
        of_partitioner=True,
    )
    numeric: tuple[str, ...] | None = setting(
        "columns.numeric", None, "features that are numbers", of_partitioner=True
    )
    categorical: tuple[str, ...] | None = setting(
        "columns.categorical",
        None,
        "features that become one-hot columns, numbers such as postal codes, too",
        of_partitioner=True,
    )
    embedding: tuple[str, ...] | None = setting(
        "columns.embedding",
        None,
        "numeric features that are scaled as one matrix: only if their scales differ",
        of_partitioner=True,
    )
    date: tuple[str, ...] | None = setting(
        "columns.date",
        None,
        "dates that become features, in seconds since 1970; other dates are left out",
        of_partitioner=True,
    )
    ignore: tuple[str, ...] | None = setting(
        "columns.ignore", None, "columns that are left out", of_partitioner=True
    )


@settings_dataclass
class FeatureSettings(Checked):
    """How features are made; `features=KIND` is short for features.kind=KIND."""

    kind: Any = setting(
        "features.kind",
        "given",
        "one or a list, side by side: those of the data; degrees; random ones of the node's id, which are not sent; "
        "of the place in the graph; those of the data, or the mean of neighbours' (docs/data.md); or {TYPE: ...}",
        KINDS,
        earlier=["given"],
        of_partitioner=True,
    )
    scale: str = setting(
        "features.scale",
        "auto",
        "numeric columns of tables; auto: standard, and a matrix only if the scales of its columns differ; standard: "
        "mean 0, deviation 1; robust: by median and quartiles; log: of logarithms",
        one_of("auto", "standard", "robust", "log", "none"),
        earlier="none",
        of_partitioner=True,
    )
    missing: str = setting(
        "features.missing",
        "median",
        "what blank cells of numeric columns become, beside a column that marks them; error: they are refused",
        one_of("median", "mean", "zero", "error"),
        earlier="error",
        of_partitioner=True,
    )
    fit: str = setting(
        "features.fit",
        "train",
        "the nodes from which means, medians and categories are taken",
        one_of("train", "all"),
        of_partitioner=True,
    )
    max_categories: int = setting(
        "features.max_categories",
        64,
        "one-hot columns of a categorical column; rarer categories share one more",
        at_least(1),
        at_most(10_000),
        of_partitioner=True,
    )
    spec: str | None = setting(
        "features.spec",
        None,
        "a run directory whose fitted pipeline encodes the columns, as its model expects them; null: fit one",
        of_partitioner=True,
    )


@settings_dataclass
class DatasetSettings(Checked):
    """Which graph, from where."""

    task: str = setting(
        "task._target_",
        TASKS[0],
        "or task=link_prediction: links; classes of nodes",
        one_of(*TASKS),
    )
    name: str = setting("dataset_name", "reddit", "the data set, see README.md")
    dir: str = setting(
        "dataset_dir",
        "../retexo-datasets/",
        "folder of downloaded data sets",
        per_node=True,
        compared=False,
    )
    file: str | None = setting(
        "dataset_file",
        None,
        "dataset_name=file: an npz, tables, or a DGL graph file (docs/data.md); dataset_name=parts: this site's folder",
        per_node=True,
    )
    max_gib: float = setting(
        "dataset_max_gib",
        4.0,
        "GiB by which a zip or npz file of the data may grow when it is unpacked",
        at_least(0),
        FINITE,
        per_node=True,
        compared=False,
    )
    symmetrize: bool | None = setting(
        "symmetrize",
        None,
        "add the reverse of each edge; null: as the data set needs it",
        of_partitioner=True,
    )
    columns: ColumnSettings
    labels: str = setting(
        "labels",
        "auto",
        "dataset_name=file: one class per node, or several; auto: a matrix of 0 and 1 has several",
        one_of("auto", "multiclass", "multilabel"),
        of_partitioner=True,
    )
    duplicates: str = setting(
        "duplicates",
        "keep",
        "dataset_name=file: an edge that is listed k times counts k times; or merge: once, with "
        "the sum of its weights",
        one_of("keep", "merge"),
        of_partitioner=True,
    )
    unknown: str = setting(
        "edges.unknown",
        "refuse",
        "dataset_name=file: tables of edges with ids that no node has; drop: leave these edges out, and say how many",
        one_of("refuse", "drop"),
        earlier="refuse",
        of_partitioner=True,
    )
    features: FeatureSettings
    target: str | None = setting(
        "target",
        None,
        "heterogeneous graphs: the node type that is learned; null: the one with labels",
        of_partitioner=True,
    )
    reverse: bool = setting(
        "relations.reverse",
        True,
        "heterogeneous graphs: add the reverse rev_NAME of every relation that has none",
        of_partitioner=True,
    )
    synthetic: SyntheticSettings
    split: SplitSettings

    relation: str | None = setting(
        "task.relation",
        None,
        "links of heterogeneous graphs: SOURCE__RELATION__DESTINATION, or RELATION where it is unique",
        of_partitioner=True,
    )
    spectral: int = setting(
        "task.spectral",
        128,
        "links: width of the spectral embedding of training pairs, whose products may answer; "
        "validation chooses it, a half or a quarter of it; 0: none",
        at_least(0),
        at_most(1024),
        of_partitioner=True,
    )
    paths: bool = setting(
        "task.paths",
        True,
        "links: paths of two, weighted as Adamic-Adar has them, may answer",
        of_partitioner=True,
    )

    @property
    def drop_unknown(self) -> bool:
        """Whether edges with an end that is no node are left out."""
        return self.unknown == "drop"

    @property
    def may_lack_labels(self) -> bool:
        """Whether the graph needs no labels: links are learned, or it is only predicted."""
        return self.links or self.split.kind == "none"

    @property
    def links(self) -> bool:
        """Whether pairs of nodes are learned."""
        return self.task == LINKS


@settings_dataclass
class PartitionSettings(Checked):
    """How a graph is cut, and where the parts go."""

    dataset: DatasetSettings
    dir: str = setting(
        "partition_dir",
        "data/partitions",
        "where partition directories are",
        per_node=True,
        compared=False,
    )
    method: str = setting(
        "partition_method",
        "random",
        "how nodes are assigned to parts",
        one_of("random", "metis", "km1", "file"),
        of_partitioner=True,
    )
    objective: str = setting(
        "part_obj",
        "vol",
        "metis: minimises communication volume, or cut edges",
        one_of("vol", "cut"),
        of_partitioner=True,
    )
    file: str | None = setting(
        "partition_file",
        None,
        "file: the part of each node, an integer array [nodes], npy or csv",
        of_partitioner=True,
    )
    num_partitions: int = setting(
        "num_partitions",
        4,
        "parts, which is also the number of workers",
        at_least(1),
        at_most(MAX_PARTITIONS),
    )
    balance_train: bool | None = setting(
        "partition.balance_train",
        None,
        "balance the training nodes over the parts; null: for metis and km1",
        of_partitioner=True,
    )
    seed: int = setting(
        "partition.seed", "${seed}", "of the partitioning", *SEED, is_seed=True, of_partitioner=True
    )
    dgl_files: bool | None = setting(
        "partition.dgl_files",
        None,
        "write what dgl.distributed.load_partition reads, too, a second copy; null: where DGL is installed",
        of_partitioner=True,
        compared=False,
    )
    overwrite: bool = setting(
        "overwrite",
        False,
        "replace a partition directory made with other settings",
        of_partitioner=True,
        compared=False,
    )
    verify: bool = setting(
        "verify",
        False,
        "app=partition_data: check the directory that is there, and write nothing",
        of_partitioner=True,
        compared=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method == "file" and self.file is None:
            raise InputError(
                "partition_method=file needs partition_file=PATH: an integer array [nodes], npy or csv"
            )


def requested_features(dataset: DatasetSettings) -> dict[str, Any]:
    """The settings of columns and features as a partition directory stores them."""
    kind, columns = dataset.features.kind, asdict(dataset.columns)
    request = {"features": kind if isinstance(kind, dict) else list(kind)}
    if columns["label"] is not None and len(columns["label"]) == 1:
        columns["label"] = columns["label"][0]
    for role, names in columns.items():
        if names is not None or role in ("id", "label", "src", "dst", "weight"):
            request[f"columns.{role}"] = list(names) if isinstance(names, tuple) else names
    if dataset.name == "file":
        for name, value in asdict(dataset.features).items():
            if name not in ("kind", "spec"):
                request[f"features.{name}"] = value
    return request
