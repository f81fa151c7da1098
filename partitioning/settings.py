"""The settings of partitioning, typed. Checks of single values are in `__post_init__`; they raise InputError."""

from dataclasses import dataclass, fields
from typing import Any

from partitioning.errors import InputError

SPLITS = ("default", "given", "per_class", "fraction", "files")
METHODS = ("random", "metis", "km1", "file")
OBJECTIVES = ("vol", "cut")
MAX_PARTITIONS = 100_000
"""Each is a folder of three files; more are a slip of the finger."""


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name}={value}: choose one of {', '.join(choices)}")


def check_at_least(name: str, value: float | None, least: float) -> None:
    """None passes: the setting is not given."""
    if value is not None and not value >= least:
        raise InputError(f"{name}={value}: must be at least {least}")


def check_at_most(name: str, value: float | None, most: float) -> None:
    """None passes: the setting is not given."""
    if value is not None and not value <= most:
        raise InputError(f"{name}={value}: must be at most {most:,}")


def check_seed(name: str, value: int) -> None:
    check_at_least(name, value, 0)
    check_at_most(name, value, 2**32 - 1)  # torch and numpy take larger ones, but not each of their generators


@dataclass  # OmegaConf cannot merge into a frozen one
class SplitSettings:
    """How nodes become training, validation and test nodes. None means: as the data set's published recipe says."""

    kind: str
    """default: the data set's recipe; given: masks of the source; per_class, fraction: drawn; files: index files."""
    seed: int
    train_per_class: int | None
    """per_class: training nodes drawn from each class."""
    num_val: int | None
    num_test: int | None
    train: Any
    """fraction: share of the nodes, in [0, 1]. files: path of an index file (npy, csv). The same for the next two."""
    val: Any
    test: Any
    dir: str | None
    """files: a folder that holds train, val (or valid) and test as .npy or .csv, instead of three paths."""

    def __post_init__(self) -> None:
        check_choice("split", self.kind, SPLITS)
        check_seed("split.seed", self.seed)
        for name in ("train_per_class", "num_val", "num_test"):
            check_at_least(f"split.{name}", getattr(self, name), 0)


@dataclass  # OmegaConf cannot merge into a frozen one
class SyntheticSettings:
    """A degree-corrected stochastic block model with class-dependent features."""

    nodes: int
    edges: int
    """Undirected ones; the graph has each in both directions."""
    features: int
    classes: int
    homophily: float
    """Share of the edges that stay within a class."""
    seed: int

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name in ("seed", "homophily", "edges") else 1
            check_at_least(f"synthetic.{field.name}", getattr(self, field.name), least)
            check_at_most(f"synthetic.{field.name}", getattr(self, field.name), 2**32 - 1)
        if self.homophily > 1:
            raise InputError(f"synthetic.homophily={self.homophily}: must be in [0, 1]")


@dataclass(frozen=True)
class DatasetSettings:
    """Which graph, from where."""

    name: str
    dir: str
    """Folder of downloaded data sets."""
    file: str | None
    """dataset_name=file: an npz, a folder of tables, or a DGL graph file."""
    symmetrize: bool | None
    """Add each edge's reverse; None: as the data set's recipe says."""
    synthetic: SyntheticSettings
    split: SplitSettings


@dataclass(frozen=True)
class PartitionSettings:
    """How a graph is cut, and where the parts go."""

    dataset: DatasetSettings
    dir: str
    method: str
    objective: str
    file: str | None
    """method=file: an integer array [N], the partition of each node (npy or csv)."""
    num_partitions: int
    balance_train: bool | None
    """Balance the training nodes over the parts, too; None: yes for metis and km1."""
    seed: int
    overwrite: bool

    def __post_init__(self) -> None:
        check_choice("partition_method", self.method, METHODS)
        check_choice("part_obj", self.objective, OBJECTIVES)
        check_at_least("num_partitions", self.num_partitions, 1)
        check_at_most("num_partitions", self.num_partitions, MAX_PARTITIONS)
        check_seed("partition.seed", self.seed)
        if self.method == "file" and self.file is None:
            raise InputError("partition_method=file needs partition_file=PATH: an integer array [nodes], npy or csv")
