"""Layer-wise training of graph neural networks over partitioned graphs (arXiv 2302.13053)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retexo.results.callbacks import Callback as Callback

if TYPE_CHECKING:
    from retexo.predict.predictor import Predictor

__version__ = "0.1.0"


def run(
    settings: Mapping[str, Any] | Sequence[str] = (),
    config_name: str = "node_classification",
    config_dir: str | None = None,
) -> Any:
    """Run an app, as the command `retexo` does, and return its result.

    Args:
        settings: Settings of the command line: a list, ["dataset_name=cora", "num_rounds=[200]"],
            or a dictionary, {"dataset_name": "cora", "stopping": {"patience": 10}}.
        config_name: Option --config-name.
        config_dir: Option --config-dir.

    Returns:
        For most apps a dictionary with the content of its result file. Files are written to
        hydra.run.dir, by default outputs/DATE/TIME.

    Raises:
        partitioning.errors.InputError: A setting or its data is invalid.
        retexo.errors.TrainingError: A worker failed.
    """
    from retexo.apps import notebook  # here, so that `import retexo` takes no time

    return notebook.run(settings, config_name, config_dir)


def train(
    settings: Mapping[str, Any] | Sequence[str] = (),
    config_name: str = "node_classification",
    config_dir: str | None = None,
    *,
    seeds: Sequence[int] | None = None,
    callbacks: Sequence[Callback | Callable[[Mapping[str, Any]], Any]] = (),
) -> dict[str, Any]:
    """Train, and return the content of summary.json; see `run`, also for errors.

    Args:
        settings: as in `run`.
        config_name: as in `run`.
        config_dir: as in `run`.
        seeds: train once per seed, and return the content of seeds.json: the mean and the sample
            deviation of each score.
        callbacks: follow the run; a function is called with each round as a dictionary (`layer`,
            `round`, `train_loss`, `val_metric` ...). An exception ends the run and is raised here;
            once the run is done and saved, it is logged.
    """
    if seeds is not None:
        numbers = [int(seed) for seed in seeds]
        settings = (
            {**settings, "seeds": numbers}
            if isinstance(settings, Mapping)
            else [*settings, f"seeds={numbers}"]
        )
    from retexo.apps import notebook

    summary: dict[str, Any] = notebook.run(settings, config_name, config_dir, callbacks)
    return summary


def load(
    run_dir: str | Path,
    precision: str = "fp32",
    *,
    output: str = "frame",
    settings: Sequence[str] = (),
) -> "Predictor":
    """Load a trained model for prediction (docs/inference.md).

    Args:
        run_dir: Run directory of app=train, or the checkpoint/ in it.
        precision: Of the rows that partitions of a directory exchange, as predict.precision. With
            the default fp32 a graph, its partitions and app=predict give the same predictions.
        output: What `predict` returns unless told: "frame", "tensors" or "arrays".
        settings: Settings of the data set that a graph to predict needs besides those of the
            training graph, such as ["columns.id=customer"].

    Raises:
        partitioning.errors.InputError: There is no checkpoint, it is damaged, or an argument is
            invalid.
    """
    from retexo.predict import predictor

    return predictor.load(run_dir, precision, output=output, settings=settings)


def load_run(checkpoint_dir: str | Path, precision: str = "fp32") -> "Predictor":
    """Return the same as load(checkpoint_dir, precision, output="arrays")."""
    return load(checkpoint_dir, precision, output="arrays")


def from_pyg(data: Any, path: str | Path = "graph.npz", **options: Any) -> str:
    """Write a torch_geometric Data or HeteroData for dataset_name=file.

    Return the path (docs/data.md). InputError for another object, and, without the option
    overwrite=True, for a path that exists.
    """
    return str(_import_converters().from_pyg(data, path, **options))


def from_dgl(g: Any, path: str | Path = "graph.npz", **options: Any) -> str:
    """Write a DGLGraph; see `from_pyg`."""
    return str(_import_converters().from_dgl(g, path, **options))


def from_networkx(G: Any, path: str | Path = "graph.npz", **options: Any) -> str:
    """Write a NetworkX graph whose node attributes `label` and `feat` are named; see `from_pyg`."""
    return str(_import_converters().from_networkx(G, path, **options))


def from_scipy(A: Any, x: Any, y: Any, path: str | Path = "graph.npz", **options: Any) -> str:
    """Write a sparse adjacency matrix [N, N] (source by destination), features and labels.

    See `from_pyg`.
    """
    return str(_import_converters().from_scipy(A, x, y, path, **options))


def from_pandas(nodes: Any, edges: Any, path: str | Path = "graph", **options: Any) -> str:
    """Write two pandas data frames as tables for dataset_name=file; return their folder.

    See `from_pyg`.
    """
    return str(_import_converters().from_pandas(nodes, edges, path, **options))


def _import_converters() -> Any:
    """Return the module that writes other libraries' graphs as files, imported on first use."""
    from partitioning.read import objects

    return objects
