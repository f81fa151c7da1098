"""How predictions depend on the precision of boundary rows (table of docs/inference.md).

    python benchmarks/predict_precision.py --datasets FOLDER [--seeds 3] [--models gcn]
        [--graphs minesweeper] [--options model.lookahead=1 num_layers=8]

FOLDER has pubmed.npz and, with NAME.npz and splits/NAME/SEED, the graphs of GRAPHS. Each model is
trained on four partitions, with the defaults or other settings, then predicts all nodes at each
precision.
"""

import contextlib
import io
import itertools
import tempfile
from pathlib import Path
from typing import Any

import common
import numpy as np
import pandas as pd

from retexo.apps import predict
from retexo.settings.compose import compose

GRAPHS = ("amazon_photo", "coauthor_cs", "actor", "minesweeper")
PRECISIONS = ("fp32", "bf16", "int8", "int4")


def predict_all(settings: list[str], config: str, run: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Predict in a new run directory, without output.

    Returns:
        The classes of all nodes, sorted by id, and the content of predictions.json.
    """
    composed = compose([*settings, "app=predict", f"checkpoint_dir={run}"], config)
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        result = predict.run(composed, Path(folder))
        table = pd.read_parquet(Path(folder) / "predictions.parquet")
    return table.sort_values("id")["class"].to_numpy(), result


def compare(data: list[str], config: str, folder: Path) -> dict[str, tuple[float, float, float]]:
    """Train once.

    Return by precision the share of classes that fp32 predicts as well, MB, and accuracy.
    """
    settings = [*data, f"partition_dir={folder}/parts"]
    common.partition(compose(settings, config))
    common.train(compose(settings, config), folder)
    run = next(folder.glob("*/checkpoint")).parent
    results, exact = {}, None
    for precision in PRECISIONS:
        classes, result = predict_all([*settings, f"predict.precision={precision}"], config, run)
        exact = classes if exact is None else exact
        megabytes, accuracy = result["bytes"]["total"] / 1e6, result["test"]["accuracy"]
        results[precision] = (float((classes == exact).mean()), megabytes, accuracy)
    return results


def graphs(datasets: Path, seed: int) -> dict[str, list[str]]:
    """Settings of each graph by name, with the seed's split."""
    settings_by_name = common.graphs(datasets / "pubmed.npz")
    for name in GRAPHS:
        split = datasets / "splits" / name / str(seed)
        file = datasets / f"{name}.npz"
        settings_by_name[name] = ["dataset_name=file", f"dataset_file={file}"]
        settings_by_name[name] += ["split=files", f"split.dir={split}"]
    return settings_by_name


def main() -> None:
    parser = common.parser(__doc__, seeds=3, models=["gcn"], options=[])
    parser.add_argument("--datasets", type=Path, required=True)
    parser.add_argument("--graphs", nargs="+", default=["cora", "pubmed", *GRAPHS])
    options = parser.parse_args()
    datasets = options.datasets.resolve()
    print(common.machine())
    print(f"{'graph':<13} {'model':<5} {'rows':<5} {'agree: mean':>11} {'worst':>8} {'MB':>8} test")
    for model, name in itertools.product(options.models, options.graphs):
        runs = []
        for seed in range(options.seeds):
            data = [*graphs(datasets, seed)[name], *options.options]
            data += [f"seed={seed}", "num_partitions=4"]
            with tempfile.TemporaryDirectory() as folder:
                runs.append(compare(data, f"node_classification_{model}", Path(folder)))
        for precision in PRECISIONS:
            agree, sent, test = np.array([run[precision] for run in runs]).T
            print(
                f"{name:<13} {model:<5} {precision:<5} {agree.mean():>11.3%} {agree.min():>8.3%}"
                f" {sent.mean():>8.3f} {common.with_spread(test)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
