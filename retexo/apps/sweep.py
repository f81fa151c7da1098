"""Many runs by one command: every combination of `sweep.axes`, one after the other, then a report on them all.

Each run is the command line of the sweep with the arguments of its place on the axes, in processes of its own: first
app=partition_data, if its parts are not there, then app=train into SWEEP_DIR/VALUE/VALUE/... A run that is done there
is not run again: the same command goes on where it was stopped, and tries again what failed.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from partitioning.errors import InputError
from partitioning.file_io import exclusive, open_regular, read_bytes
from retexo.apps import report
from retexo.apps.partition_request import directory_of, requested_settings
from retexo.apps.resume import OUTPUTS
from retexo.errors import TrainingError
from retexo.launch.start_workers import terminate_as_exit
from retexo.results import figures
from retexo.results.run_lock import exclusive_run_dir, locks_run_dir
from retexo.results.runs import differing_settings, read_summary
from retexo.results.tables import byte_text
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings
from retexo.settings.schema import PACKAGE

GRACE = 10.0
"""Seconds that a run has to end after Ctrl-C, which the terminal sends to it, too."""


@dataclass(frozen=True, eq=False)
class Planned:
    """One run of a sweep."""

    name: str
    """Its place on the axes, and its directory below the sweep's."""
    arguments: list[str]
    """Of the command, but for the app and the run directory."""
    settings: Settings
    partitions: Path


@dataclass(frozen=True)
class Outcome:
    """How a run ended: done, failed, or missing (its data could not be loaded or partitioned)."""

    kind: str
    text: str


@locks_run_dir
def run(settings: Settings, run_dir: Path) -> None:
    """Make all runs of the sweep that are not done; report on all into run_dir.

    Raises InputError before the first of them where any has a mistake, TrainingError at the end if any failed.
    """
    folder = _folder(settings)
    figures.check_installed()
    print(f"{folder}: checking the settings of every run", flush=True)
    planned = plan(settings)
    done = [is_done(folder / one.name, one) for one in planned]
    folder.mkdir(parents=True, exist_ok=True)
    # The runs of a sweep hold its lock, too, so that one which outlives a killed sweep is waited for.
    with exclusive(folder / ".lock", f"sweep.dir={folder}") as lock, terminate_as_exit():
        print(f"{folder}: {len(planned)} runs, {sum(done)} of them done before", flush=True)
        todo = [one for one, was_done in zip(planned, done, strict=True) if not was_done]
        outcomes = _run_all(folder, todo, len(planned), lock)
    if sum(done) or any(outcome.kind == "done" for outcome in outcomes.values()):
        report.make(run_dir, folder)
    _print_remains(outcomes)
    failed = sum(outcome.kind == "failed" for outcome in outcomes.values())
    if failed:
        raise TrainingError(
            f"{failed} of {len(planned)} runs failed; the same command tries them again"
        )


def _folder(settings: Settings) -> Path:
    if settings.app != "train":
        raise InputError(
            f"app={settings.app}: sweep.axes is for app=train; leave the app out, or the sweep"
        )
    if settings.sweep.dir is None:
        raise InputError(
            "sweep.dir=null: sweep.axes needs sweep.dir=DIR, the folder that the runs go to"
        )
    return Path(settings.sweep.dir)


# --- what to run -------------------------------------------------------------------------------------------------------


def plan(settings: Settings) -> list[Planned]:
    """Every combination of the axes, each composed and checked; the last axis varies fastest."""
    axes = settings.sweep.axes or {}
    for name, values in axes.items():
        if not values or any(
            not value or value.startswith(".") or "/" in value for value in values
        ):
            raise InputError(
                f"sweep.axes.{name}={values}: needs values, each fit to be the name of a directory"
            )
    if not axes:
        raise InputError(
            "sweep.axes={}: needs at least one axis, such as {seed: {s0: seed=0, s1: seed=1}}"
        )
    planned = []
    for place in itertools.product(*(values.items() for values in axes.values())):
        name = "/".join(value for value, _ in place)
        own = [argument for _, text in place for argument in shlex.split(text)]
        planned.append(_planned(name, merged([*settings.arguments, *own, "sweep.axes=null"])))
    return planned


def merged(arguments: Sequence[str]) -> list[str]:
    """One choice of experiments, as Hydra takes no second; of several --config-name the last. Options are in front."""
    options = {
        argument.partition("=")[0]: argument for argument in arguments if argument.startswith("--")
    }
    experiments = [
        argument for argument in arguments if argument.startswith(("+experiment=", "experiment="))
    ]
    names = [
        name.strip()
        for argument in experiments
        for name in argument.partition("=")[2].strip("[]").split(",")
    ]
    joined = [f"+experiment=[{','.join(dict.fromkeys(names))}]"] if names else []
    rest = [
        argument
        for argument in arguments
        if not argument.startswith("--") and argument not in experiments
    ]
    return [*options.values(), *joined, *rest]


def _planned(name: str, arguments: list[str]) -> Planned:
    """Compose a run's settings, and give it a partition_dir that all runs on the same partitions share."""
    options = dict(
        argument[2:].replace("-", "_", 1).split("=", 1)
        for argument in arguments
        if argument.startswith("--")
    )
    try:
        settings = compose(
            [argument for argument in arguments if not argument.startswith("--")], **options
        )
        request = json.dumps(requested_settings(settings.partition), sort_keys=True)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    base = Path(settings.partition.dir) / hashlib.sha256(request.encode()).hexdigest()[:12]
    partitions = directory_of(replace(settings.partition, dir=str(base)))
    return Planned(name, [*arguments, f"partition_dir={_quoted(base)}"], settings, partitions)


def _quoted(path: Path) -> str:
    """As Hydra reads any text."""
    return "'" + str(path).replace("'", "\\'") + "'"


def is_done(directory: Path, planned: Planned) -> bool:
    """Whether the run is done there; InputError where another one is."""
    try:
        summary = read_summary(directory / "summary.json")
    except (OSError, ValueError):  # none, or damaged: it is run again
        return False
    differing = differing_settings(summary.get("settings"), planned.settings.resolved)
    if differing:
        raise InputError(
            f"sweep.dir: {directory} holds a run with another {', '.join(differing[:3])}; choose another sweep.dir"
        )
    return bool(summary.get("status") == "done")


# --- running -----------------------------------------------------------------------------------------------------------


def _run_all(folder: Path, todo: Sequence[Planned], total: int, lock: int) -> dict[str, Outcome]:
    """One run after the other, with the progress of the whole sweep."""
    start = time.monotonic()
    outcomes = {}
    for place, one in enumerate(todo, start=1):
        outcome = outcomes[one.name] = _run_one(folder / one.name, one, lock)
        elapsed = time.monotonic() - start
        print(
            f"[{total - len(todo) + place}/{total}] {one.name}: {outcome.kind}, {outcome.text} | "
            f"elapsed {timedelta(seconds=round(elapsed))}, "
            f"remaining about {timedelta(seconds=round(elapsed / place * (len(todo) - place)))}",
            flush=True,
        )
    return outcomes


def _run_one(directory: Path, one: Planned, lock: int) -> Outcome:
    try:
        with exclusive_run_dir(directory, 0):
            _clear(directory)
    except InputError as error:
        return Outcome("failed", str(error))
    log = directory / "output.log"
    log.unlink(missing_ok=True)
    command = [*one.arguments, f"hydra.run.dir={_quoted(directory)}"]
    if not one.partitions.exists() and _call([*command, "app=partition_data"], log, lock) != 0:
        return Outcome("missing", _reason(log))
    if _call([*command, "app=train"], log, lock) != 0:
        return Outcome("failed", _reason(log))
    summary = read_summary(directory / "summary.json")
    test, seconds = (
        summary.get("test", {"mrr": None}),
        summary["seconds"]["train"],
    )  # none of links without test pairs
    name, score = ("MRR", test["mrr"]) if "mrr" in test else ("accuracy", test["accuracy"])
    scored = (
        f"no test {'pairs' if name == 'MRR' else 'nodes'}"
        if score is None
        else f"test {name} {score:.4f}"
    )
    return Outcome(
        "done", f"{scored}, {byte_text(summary['bytes']['total'])}, {seconds:.1f} s of training"
    )


def _clear(directory: Path) -> None:
    """Remove what an earlier attempt left, and nothing else."""
    for name in (*OUTPUTS, "state", "tensorboard"):
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _call(arguments: Sequence[str], log: Path, lock: int) -> int:
    """Run `retexo` to its end, its output to the log; when the sweep is stopped, the run is."""
    path = (str(PACKAGE.parent), os.environ.get("PYTHONPATH"))  # the same code, wherever it lies
    with open_regular(log, "a") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "retexo", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=[lock],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        )
        try:
            return process.wait()
        except BaseException as stop:
            if isinstance(stop, KeyboardInterrupt):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
            process.terminate()
            process.wait()
            raise


def _reason(log: Path) -> str:
    """The last error that the command told, or where to look."""
    lines = read_bytes(log).decode(errors="replace").splitlines()
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return told[-1] if told else f"see {log}"


def _print_remains(outcomes: dict[str, Outcome]) -> None:
    """What is not done, at the end; runs of one reason together."""
    names: defaultdict[Outcome, list[str]] = defaultdict(list)
    for name, outcome in outcomes.items():
        names[outcome].append(name)
    for kind in ("missing", "failed"):
        for outcome, found in names.items():
            if outcome.kind == kind:
                print(f"{kind}: {', '.join(found)}: {outcome.text}")
