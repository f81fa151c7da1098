"""`app=plan`: predicted bytes and memory of a run, beside other methods on the same partitions."""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.setting_fields import with_values
from partitioning.site_folders import SiteFolders
from retexo.apps import site_plan
from retexo.apps.find_partitions import (
    check_parts,
    find_or_make_partitions,
    with_found_parts,
)
from retexo.apps.summary import print_columns
from retexo.plan.baselines import baseline_bytes
from retexo.plan.memory import worker_memory
from retexo.plan.traffic import (
    ROW_KINDS,
    TrafficEstimate,
    estimate_by_gradient,
    estimate_prediction,
    estimate_traffic,
    find_architecture,
)
from retexo.results.atomic_write import write_json
from retexo.results.run_lock import locks_run_dir
from retexo.settings.run_settings import REACHES, Settings, TrainSettings
from retexo.trainers.registry import check_trainer_settings
from retexo.worker.graph import without_ledger

logger = logging.getLogger(__name__)

MAX_SHOWN = 6
"""Largest number of workers for which bytes by peer are printed."""
SLOW = 20.0
"""Dry runs that take longer skip other encodings; seconds."""
BANDWIDTH = 1e9 / 8
"""Bytes per second of a worker's link: 1 Gbit/s."""
OPTIONS: dict[str, dict[str, Any]] = {
    "exchange=fp32": {"exchange.mode": "selected"},
    "exchange.precision=bf16": {"exchange.mode": "selected", "exchange.precision": "bf16"},
    "exchange.precision=int8": {"exchange.mode": "selected", "exchange.precision": "int8"},
    "gradient.precision=bf16": {"gradient.precision": "bf16"},
    "gradient.precision=int6": {"gradient.precision": "int6"},
    "gradient.secure=false": {"gradient.secure": False},
    "gradient.compression=powersgd": {"gradient.compression": "powersgd"},
    **{f"smoothing.reach={reach}": {"smoothing.reach": reach} for reach in REACHES},
}


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Predict, print the tables, write plan.json, and return its content.

    Raises:
        InputError: Settings are not supported, or partitions are missing or damaged.
    """
    check_trainer_settings(settings)
    if settings.split.inductive:
        raise InputError(
            "split.inductive=true: app=plan predicts runs in which no node is hidden; leave it out"
        )
    settings = with_found_parts(settings)
    directory = find_or_make_partitions(settings)
    if isinstance(directory, SiteFolders) and len(directory.local_sites) == 1 < directory.num_parts:
        check_parts(settings, directory, [directory.local_sites[0].rank])
        return site_plan.run(settings, directory, run_dir)
    parts = range(directory.num_parts)
    check_parts(settings, directory, parts)
    logger.info("%s: dry run", directory.path)
    partitions = [without_ledger(directory.read_part(part)) for part in parts]
    predicted, options = _dry_run(settings, directory, partitions)
    without_coding = {"exchange.mode": "plain", "exchange.precision": "fp32"}
    plain = estimate_traffic(with_values(settings, without_coding), directory, partitions)
    prediction = _plan_prediction(settings, directory, partitions)
    limit = settings.num_rounds
    totals = {name: other.total(limit) for name, other in options.items()}
    result = {
        "partitions": str(directory.path),
        "workers": len(partitions),
        "rounds": {"limit": limit},
        "bytes": {"limit": predicted.total(limit)},
        "bytes_unsmoothed": {"limit": predicted.unsmoothed.total(limit)},
        "bytes_each_round": [
            predicted.total([1] * len(limit), ["gradients"], layer) for layer in range(len(limit))
        ],
        "entries": [vars(entry) for entry in predicted.entries],
        "smoothing": _smoothing(settings, predicted, options, limit),
        "prediction": prediction,
        "options": dict(
            sorted(totals.items(), key=lambda option: option[1])
        ),  # the fewest bytes first
        **_estimate_by_formulas(settings, directory, partitions, plain),
        "network_seconds": {"limit": network_seconds(predicted, len(partitions), limit)},
    }
    write_json(run_dir / "plan.json", result)
    _print(settings, predicted, result, run_dir)
    return result


def _plan_prediction(
    settings: Settings, directory: PartitionDirectory, partitions: Sequence[Partition]
) -> dict[str, Any]:
    """Return the bytes of app=predict on the same partitions.

    There are none for links, which ask what they score.
    """
    if settings.task.links:
        return {}
    exchange = settings.exchange.at_prediction(settings.predict.precision)
    train = replace(settings, exchange=exchange)
    entries = estimate_prediction(train, directory, partitions)
    by_kind: Counter[str] = Counter()
    for entry in entries:
        by_kind[entry.kind] += entry.num_bytes
    return {
        "precision": exchange.precision,
        "bytes": sum(by_kind.values()),
        "by_kind": by_kind,
        "exact": all(entry.exact for entry in entries),
    }


def _estimate_by_formulas(
    settings: TrainSettings,
    directory: PartitionDirectory,
    parts: Sequence[Partition],
    plain: TrafficEstimate,
) -> dict[str, Any]:
    """Return bytes of the other methods, by baseline, and bytes of memory of each worker.

    Memory is left out for heterogeneous graphs.
    """
    architecture: Any = find_architecture(settings, directory, parts)
    num_train = sum(int(partition.train_mask.sum()) for partition in parts)
    return {
        "baselines": {"limit": baseline_bytes(plain, parts, architecture, settings.num_rounds)},
        "memory_bytes": [
            worker_memory(partition, architecture, settings, num_train)
            for partition in parts
            if partition.is_plain
        ],
    }


def _dry_run(
    settings: TrainSettings, directory: PartitionDirectory, partitions: Sequence[Partition]
) -> tuple[TrafficEstimate, dict[str, TrafficEstimate]]:
    """Return the estimate, and the estimate with each of OPTIONS that changes something, by name.

    Options of gradients need no further dry run, except gradient.secure. The others are left out
    where the first run took more than SLOW seconds.
    """
    start = time.perf_counter()
    changed = _list_variants(settings)
    gradients = {
        name: other.gradient
        for name, other in changed.items()
        if other.gradient != settings.gradient and other.gradient.secure == settings.gradient.secure
    }
    own, *others = estimate_by_gradient(
        settings, directory, partitions, [settings.gradient, *gradients.values()]
    )
    seconds = time.perf_counter() - start
    options = dict(zip(gradients, others, strict=True))
    for name, other in changed.items():
        if name not in options and seconds <= SLOW:
            options[name] = estimate_traffic(other, directory, partitions)
    return own, options


def bytes_by_peer(
    predicted: TrafficEstimate, num_workers: int, rounds: Sequence[int]
) -> NDArray[np.int64]:
    """Return bytes by sender and receiver [W, W] for given rounds per layer."""
    table = np.zeros((num_workers, num_workers), dtype=np.int64)
    for entry in predicted.entries:
        times = rounds[entry.layer or 0] if entry.each_round else 1
        table[entry.sender, entry.receiver] += entry.num_bytes * times
    return table


def network_seconds(predicted: TrafficEstimate, num_workers: int, rounds: Sequence[int]) -> float:
    """Return the time in which the busiest link carries its bytes."""
    table = bytes_by_peer(predicted, num_workers, rounds)
    busiest = max(table.sum(axis=0).max(), table.sum(axis=1).max())
    return float(busiest / BANDWIDTH)


def _smoothing(
    settings: TrainSettings,
    predicted: TrafficEstimate,
    options: dict[str, TrafficEstimate],
    rounds: Sequence[int],
) -> dict[str, dict[str, int]]:
    """Return for each smoothing.reach the nodes with predictions, and bytes."""
    known = (
        {f"smoothing.reach={settings.smoothing.reach}": predicted, **options}
        if settings.smoothing.steps
        else {}
    )
    return {
        reach: {
            "nodes": estimate.answered,
            "rows": estimate.total(rounds, ROW_KINDS),
            "predictions": estimate.total(rounds, ["predictions"]),
            "all": estimate.total(rounds),
        }
        for reach in REACHES
        if (estimate := known.get(f"smoothing.reach={reach}"))
    }


def _list_variants(settings: TrainSettings) -> dict[str, TrainSettings]:
    """Return, by name, the settings with each of OPTIONS that would change something."""
    fits = (
        name
        for name in OPTIONS
        if not (settings.gradient.secure and name.startswith("gradient.precision"))
    )
    changed = {name: with_values(settings, OPTIONS[name]) for name in fits}
    smooths = settings.smoothing.steps > 0
    return {
        name: other
        for name, other in changed.items()
        if other != settings and (smooths or "smoothing" not in name)
    }


# --- the report ----------


def _print(
    settings: Settings, predicted: TrafficEstimate, result: dict[str, Any], run_dir: Path
) -> None:
    print(
        f"{result['partitions']}: {settings.model.name}, {result['workers']} workers,"
        f" exchange={settings.exchange.mode}"
        f" ({', '.join(dict.fromkeys(settings.exchange.precision))}),"
        f" gradient={settings.gradient.mode} ({settings.gradient.precision},"
        f" {settings.gradient.compression})\n"
    )
    _print_entries(predicted)
    at_most = "" if all(entry.exact for entry in predicted.entries) else "at most"
    rounds, own, unsmoothed = (
        result[name]["limit"] for name in ("rounds", "bytes", "bytes_unsmoothed")
    )
    print(f"\nall bytes, rounds per layer {', '.join(map(str, rounds))} (limit)")
    rows = [("this configuration", own, at_most)]
    if unsmoothed < own:
        rows.append(("  if smoothing does not help", unsmoothed, "at most"))
    baselines = result["baselines"]["limit"]
    rows += [(name, sent, _format_ratio(name, sent, own)) for name, sent in baselines.items()]
    print_columns(rows)
    prediction = result["prediction"]
    if prediction:
        rows_in = ", ".join(dict.fromkeys(prediction["precision"]))
        remark = "" if prediction["exact"] else "at most"
        print()
        print_columns([(f"app=predict, rows in {rows_in}", prediction["bytes"], remark)])
    if result["workers"] <= MAX_SHOWN:
        print("\nby sender (down) and receiver (limit)")
        print_columns(bytes_by_peer(predicted, result["workers"], rounds).tolist(), width=16)
    if result["smoothing"]:
        print()
        heading = ("smoothing.reach", "nodes", "rows", "predictions", "all")
        print_columns(
            [heading, *((name, *row.values()) for name, row in result["smoothing"].items())]
        )
    print(
        "\nwhat would save most here, at the same rounds (limit); what is not exact needs a look"
        " at the accuracy"
    )
    print_columns(
        [
            (name, sent, f"{1 - sent / own:.1%} less")
            for name, sent in result["options"].items()
            if sent < own
        ]
    )
    if not any(name.startswith("exchange") for name in result["options"]):
        print("exchange.precision is not tried, the dry run takes long: set it and plan again")
    print(
        "fewer rounds: gradient=local takes local_epochs steps a round; the defaults have all of"
        " the others"
    )
    memory = [num_bytes / 2**20 for num_bytes in result["memory_bytes"]]
    if memory:
        print(
            f"\nmemory per worker, private, about: {max(memory):,.0f} MiB at most,"
            f" {min(memory):,.0f} MiB at least"
        )
    seconds = result["network_seconds"]["limit"]
    print(f"seconds to send this at 1 Gbit/s a worker, at least: {seconds:,.3g}")
    print(f"bytes by peer in {run_dir / 'plan.json'}")


def _print_entries(predicted: TrafficEstimate) -> None:
    """Print the bytes by layer, phase and kind, and which of them are upper bounds."""
    totals: Counter[tuple[str, str, str, bool]] = Counter()
    for entry in predicted.entries:
        layer = "run" if entry.layer is None else f"layer {entry.layer}"
        phase = entry.phase or ("each round" if entry.each_round else "")
        totals[layer, phase, entry.kind, entry.exact] += entry.num_bytes
    rows = [
        (layer, phase, kind, sent, "" if exact else "at most")
        for (layer, phase, kind, exact), sent in sorted(totals.items())
    ]
    print_columns([("", "phase", "kind", "bytes", ""), *rows])


def _format_ratio(baseline: str, num_bytes: int, own: int) -> str:
    """Say how many times the bytes of this configuration, `own`, a baseline sends."""
    if baseline == "centralized" and num_bytes < own:
        return (
            f"shipping all parts to one worker takes {own / max(1, num_bytes):,.1f} times fewer"
            " bytes"
        )
    return f"{num_bytes / max(1, own):,.1f} times" if own else ""
