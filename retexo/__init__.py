"""Layer-wise training of graph neural networks over partitioned graphs (lazy message passing, arXiv 2302.13053)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retexo.apps.notebook import Run

__version__ = "0.1.0"


def run(
    settings: Mapping[str, Any] | Sequence[str] = (),
    config_name: str = "node_classification",
    config_dir: str | None = None,
) -> Any:
    """Do what the command `retexo` does, and return what the app does: of most a dictionary, as in its file of results.

    Settings are those of the command line: a list, ["dataset_name=cora", "num_rounds=[200]"], or a dictionary,
    {"dataset_name": "cora", "num_rounds": [200], "stopping": {"patience": 10}}. config_name and config_dir are the
    options --config-name and --config-dir. Raises partitioning.errors.InputError for a mistake in them, and
    retexo.errors.TrainingError when a worker fails. Files go to the setting hydra.run.dir, outputs/DATE/TIME.
    """
    from retexo.apps import notebook  # here, so that `import retexo` takes no time

    return notebook.run(settings, config_name, config_dir)


def train(
    settings: Mapping[str, Any] | Sequence[str] = (),
    config_name: str = "node_classification",
    config_dir: str | None = None,
) -> dict[str, Any]:
    """Train, and return what summary.json says: `run` with app=train, which is the default."""
    summary: dict[str, Any] = run(settings, config_name, config_dir)
    return summary


def load_run(checkpoint_dir: str | Path) -> "Run":
    """The model that training left in a run directory, to predict with; InputError where there is none."""
    from retexo.apps import notebook

    return notebook.load_run(checkpoint_dir)


def from_pyg(data: Any, path: str | Path = "graph.npz", **options: Any) -> str:
    """Write a torch_geometric Data or HeteroData for dataset_name=file, and return the path; docs/data.md has more."""
    return str(_objects().from_pyg(data, path, **options))


def from_dgl(g: Any, path: str | Path = "graph.npz", **options: Any) -> str:
    """The same of a DGLGraph."""
    return str(_objects().from_dgl(g, path, **options))


def from_networkx(G: Any, path: str | Path = "graph.npz", **options: Any) -> str:
    """The same of a graph of networkx; label="label" and feat="feat" name the attributes of its nodes."""
    return str(_objects().from_networkx(G, path, **options))


def from_scipy(A: Any, x: Any, y: Any, path: str | Path = "graph.npz", **options: Any) -> str:
    """The same of a sparse adjacency matrix [N, N] of weights at [source, destination], features and labels."""
    return str(_objects().from_scipy(A, x, y, path, **options))


def from_pandas(nodes: Any, edges: Any, path: str | Path = "graph", **options: Any) -> str:
    """Write two pandas data frames as tables for dataset_name=file, and return the path of their folder."""
    return str(_objects().from_pandas(nodes, edges, path, **options))


def _objects() -> Any:
    from retexo.apps import partition_data

    return partition_data.objects
