"""`app=train seeds=[0,1,2]`: one run per seed, and the mean and spread of their scores.

RUN_DIR/
    seed0/ seed1/ ...   what a run writes
    seeds.json          mean and sample deviation of each score

On one node each seed draws its own split and partitions, which runs with the same seed share, as
jobs of --multirun do. On several nodes all seeds use the partitions that are there. The same
command again skips finished runs.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from partitioning.partition_settings import PartitionSettings
from retexo.apps.resume import OUTPUTS, check_unused
from retexo.apps.summary import print_rows
from retexo.results.atomic_write import write_json
from retexo.results.formats import SPLITS, format_score
from retexo.scores import title_of
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

logger = logging.getLogger(__name__)

OF_LAUNCHER = ("parts_per_node", "node_rank", "distributed", "launcher_env", "run_key")
"""What a launcher may have set."""
COSTS = ("bytes.total", "seconds.train")
Train = Callable[[Settings, Path], dict[str, Any]]


def run_seeds(settings: Settings, run_dir: Path, train: Train) -> dict[str, Any]:
    """Train once per seed; node 0 writes seeds.json and prints a table. Return its content.

    InputError if `run_dir` itself holds results of a run. An earlier seeds.json is replaced.

    Args:
        settings: with `seeds`.
        run_dir: of all runs.
        train: trains by the settings of one run into its run directory.
    """
    seeds = settings.seeds or ()
    check_unused(run_dir, OUTPUTS)
    jobs = {seed: _settings_of(settings, seed) for seed in seeds}
    summaries: list[dict[str, Any]] = []
    for seed, job in jobs.items():
        logger.info("seed=%d", seed)
        started = time.time() if summaries else settings.started
        summaries.append(train(replace(job, started=started), run_dir / f"seed{seed}"))
    result = {
        "seeds": list(seeds),
        "runs": [f"seed{seed}" for seed in seeds],
        **summarise(summaries),
    }
    if settings.node_rank == 0:
        write_json(run_dir / "seeds.json", result)
        _print_table(result, run_dir)
    return result


def _settings_of(settings: Settings, seed: int) -> Settings:
    """Return the settings of one run; seeds of split and partitions default to the run's seed.

    Composed anew from the command's arguments; those of the launcher, and on several nodes those of
    the partitions, are kept.
    """
    options = [argument for argument in settings.arguments if argument.startswith("--")]
    name, *folder = (option.partition("=")[2] for option in options)
    overrides = [
        argument
        for argument in settings.arguments
        if argument not in options and argument.split("=")[0].lstrip("+") != "seeds"
    ]
    job = compose([*overrides, "seeds=null", f"seed={seed}"], name, *folder)
    names = [*OF_LAUNCHER]
    if settings.num_nodes > 1:
        names += [field.name for field in fields(PartitionSettings)] + ["given"]
    return replace(job, is_multirun_job=True, **{name: getattr(settings, name) for name in names})


def summarise(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return `mean` and `std` of each score by split, of bytes and seconds; and the metric.

    `std` is the sample deviation, None of one run; the metric is what stopping looked at. A score
    that some run lacks is left out.
    """
    import pandas as pd

    groups = (*SPLITS, "bytes", "seconds")
    table: Any = pd.json_normalize(
        [{name: run.get(name, {}) for name in groups} for run in summaries]
    )
    result: dict[str, Any] = {}
    for name, values in table.items():
        group, _, score = name.partition(".")
        if (group in SPLITS or name in COSTS) and values.notna().all():  # a split may have no nodes
            std = float(values.std()) if len(values) > 1 else None
            result.setdefault(group, {})[score] = {"mean": float(values.mean()), "std": std}
    return {**result, "chosen": {"metric": summaries[0]["chosen"]["metric"]}}


def _print_table(result: dict[str, Any], run_dir: Path) -> None:
    rows = {"seeds": ", ".join(map(str, result["seeds"]))}
    for name in result.get("test", {}):
        scores = {split: result[split][name] for split in ("val", "test") if split in result}
        rows[title_of(name)] = ", ".join(
            " +- ".join(format_score(value, name) for value in score.values() if value is not None)
            + f" ({split})"
            for split, score in scores.items()
        )
    print_rows({**rows, "results": str(run_dir)})
