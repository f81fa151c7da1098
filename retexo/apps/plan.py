"""`app=plan`: predicted bytes and memory of a run, beside other methods on the same partitions."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.sites.site_folders import SiteFolders
from retexo.apps import site_plan
from retexo.apps.find_partitions import (
    check_parts,
    find_or_make_partitions,
    with_found_parts,
)
from retexo.apps.summary import print_columns
from retexo.plan.baselines import baseline_bytes
from retexo.plan.memory import worker_memory
from retexo.plan.traffic import TrafficEstimate, estimate_traffic, find_architecture
from retexo.results.atomic_write import write_json
from retexo.results.run_lock import locks_run_dir
from retexo.settings.run_settings import Settings
from retexo.trainers.registry import check_trainer_settings
from retexo.worker.graph import without_ledger

logger = logging.getLogger(__name__)

MAX_SHOWN = 6
"""Largest number of workers for which bytes by peer are printed."""


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> dict[str, Any]:
    """Predict, print the tables, write plan.json, and return its content.

    Makes partitions where there are none. If only one of several sites' folders is here, the plan
    is that of `site_plan.run`.

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
    predicted = estimate_traffic(settings, directory, partitions)
    architecture: Any = find_architecture(settings, directory, partitions)
    num_train = sum(int(partition.train_mask.sum()) for partition in partitions)
    limit = settings.num_rounds
    result = {
        "partitions": str(directory.path),
        "workers": len(partitions),
        "rounds": {"limit": limit},
        "bytes": {"limit": predicted.total(limit)},
        "bytes_unsmoothed": {"limit": predicted.unsmoothed.total(limit)},
        "entries": [vars(entry) for entry in predicted.entries],
        "baselines": {"limit": baseline_bytes(partitions, architecture, limit)},
        "memory_bytes": [
            worker_memory(partition, architecture, settings, num_train)
            for partition in partitions
            if partition.is_plain
        ],
    }
    write_json(run_dir / "plan.json", result)
    _print(settings, predicted, result, run_dir)
    return result


def bytes_by_peer(
    predicted: TrafficEstimate, num_workers: int, rounds: Sequence[int]
) -> NDArray[np.int64]:
    """Return bytes by sender and receiver [W, W] for given rounds per layer."""
    table = np.zeros((num_workers, num_workers), dtype=np.int64)
    for entry in predicted.entries:
        times = rounds[entry.layer or 0] if entry.each_round else 1
        table[entry.sender, entry.receiver] += entry.num_bytes * times
    return table


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
    if result["workers"] <= MAX_SHOWN:
        print("\nby sender (down) and receiver (limit)")
        print_columns(bytes_by_peer(predicted, result["workers"], rounds).tolist(), width=16)
    memory = [num_bytes / 2**20 for num_bytes in result["memory_bytes"]]
    if memory:
        print(
            f"\nmemory per worker, private, about: {max(memory):,.0f} MiB at most,"
            f" {min(memory):,.0f} MiB at least"
        )
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
