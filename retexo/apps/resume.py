"""The setting `resume`: whether `app=train` begins anew or continues an interrupted run."""

import hashlib
import json
import logging
import shutil
from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from partitioning.errors import InputError
from partitioning.files.file_io import SHA256, read_json
from retexo.apps.run_identity import PER_NODE
from retexo.results.atomic_write import plain_json, write_json
from retexo.settings.flatten import flatten
from retexo.settings.run_settings import Settings
from retexo.settings.schema import GONE, normal_form

logger = logging.getLogger(__name__)

RUN_FILE = Path("state", "run.json")
DONE_FILE = Path("done.json")
"""Summary of a finished run on nodes that do not write summary.json."""
OUTPUTS = ("summary.json", str(DONE_FILE), "metrics.jsonl", "checkpoint", str(RUN_FILE))
REMEDIES = {
    "threads": "set cluster.threads={there}: another number changes the last bits of the results",
    "partitions": "use the partition directory that the run was started with",
    "retexo": "use retexo {there}",
    "torch": "use torch {there}",
}


def check_unused(run_dir: Path, outputs: tuple[str, ...]) -> None:
    """Raise InputError if a run directory holds any of these files or folders."""
    for name in outputs:
        if (run_dir / name).exists():
            raise InputError(
                f"hydra.run.dir={run_dir}: holds {name} of another run; choose another directory"
                + (", or resume that run: resume=auto" if (run_dir / RUN_FILE).exists() else "")
            )


def continue_job(settings: Settings, run_dir: Path) -> Settings:
    """Return the settings of an unfinished job of --multirun, which may have been started before.

    It goes on from its state. Without one, the OUTPUTS of an earlier attempt are removed.
    """
    if settings.checkpoint.keep and (run_dir / RUN_FILE).is_file():
        return replace(settings, resume="auto")
    for path in (run_dir / name for name in OUTPUTS):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return settings


def finished(
    resume: str | None, run_dir: Path, settings: dict[str, Any], ignored: Set[str]
) -> dict[str, Any] | None:
    """With resume=auto, return the summary of a run that is finished already; else None.

    None also if the summary cannot be read. Settings of earlier versions that no command has are
    not compared.

    Args:
        settings: those of this command, nested.
        ignored: those that may differ, because the partition directory decides them.

    Raises:
        InputError: the run had other settings.
    """
    path = run_dir / "summary.json"
    if not path.is_file():
        path = run_dir / DONE_FILE
    if resume != "auto" or not path.is_file():
        return None
    try:
        summary = read_json(path)
        summary.pop(SHA256, None)
        if summary["status"] != "done":
            return None
        made_with = flatten(summary["settings"], without=PER_NODE | ignored)
    except (ValueError, KeyError, TypeError):
        return None
    here = flatten(settings, without=PER_NODE | ignored)
    _check_settings(run_dir, here, made_with, skipped=GONE)
    return summary


def note_done(run_dir: Path, summary: dict[str, Any]) -> None:
    """Write DONE_FILE on nodes other than 0, so that the same command ends at once.

    Not where the directory is shared with node 0, which wrote summary.json.
    """
    if not (run_dir / "summary.json").exists():  # nodes may share a directory
        write_json(run_dir / DONE_FILE, summary)


def check_place(resume: str | None, run_dir: Path) -> None:
    """Raise InputError for a run directory in use, or a `resume` without state/run.json.

    resume=auto goes on with the run of the directory if it has state/run.json; any other use of the
    directory, such as a finished run, is an error as without resume.
    """
    if resume not in (None, "auto") and not (Path(str(resume)) / RUN_FILE).is_file():
        raise InputError(
            f"resume={resume}: has no state/run.json to resume from; give the run directory of an"
            " interrupted app=train (a finished run keeps no state)"
        )
    if resume == "auto" and (run_dir / RUN_FILE).is_file():
        return
    check_unused(run_dir, OUTPUTS)
    if resume == "auto":
        logger.info("resume=auto: %s holds no state, so this run begins anew", run_dir)


def count_saved(resume: str | None, run_dir: Path, ranks: range) -> int | None:
    """Return the smallest number of saved states of a worker among `ranks`.

    None where nothing is resumed, or the run to resume has no state/run.json.
    """
    source = _find_saved(resume, run_dir)
    if source is None:
        return None
    return min(len(list((source / "state" / f"rank{rank}").glob("*.state"))) for rank in ranks)


def prepare_resume(
    resume: str | None, run_dir: Path, ranks: range, run: dict[str, Any], settings: dict[str, Any]
) -> str:
    """Copy the state to resume from to run_dir and describe the run there.

    A resumed run keeps the description of its state, which `check_same` found to be equal. State of
    a run that was killed before it was described is removed, with a warning. From another directory
    metrics.jsonl is copied, too. InputError if the state's run.json is damaged.

    Args:
        run, settings: the description of a new run.

    Returns:
        The identity of the run, a SHA-256 in hex.
    """
    source = _find_saved(resume, run_dir)
    if source is not None:
        run, settings = _read_run_file(source)
    for folder in (run_dir / "state" / f"rank{rank}" for rank in ranks):
        if folder.exists() and not (run_dir / RUN_FILE).is_file():
            logger.warning(
                "%s: has no %s, so its run was killed before it began; removed",
                folder,
                RUN_FILE.name,
            )
            shutil.rmtree(folder)
    if source is not None and source != run_dir:
        for rank in ranks:
            shutil.copytree(source / "state" / f"rank{rank}", run_dir / "state" / f"rank{rank}")
        if 0 in ranks and (source / "metrics.jsonl").is_file():
            shutil.copy(source / "metrics.jsonl", run_dir)
    (run_dir / "state").mkdir(parents=True, exist_ok=True)
    write_json(run_dir / RUN_FILE, {"run": run, "settings": settings})
    return hashlib.sha256(
        json.dumps(plain_json([run, settings]), sort_keys=True).encode()
    ).hexdigest()


def _find_saved(resume: str | None, run_dir: Path) -> Path | None:
    """Return the run directory with the state to resume from; None where there is none."""
    source = run_dir if resume == "auto" else Path(resume or "")
    return source if resume is not None and (source / RUN_FILE).is_file() else None


def _read_run_file(source: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `run` and `settings` of state/run.json of a saved run.

    Raises InputError if they cannot be read.
    """
    path = source / RUN_FILE
    try:
        content = read_json(path)
        return dict(content["run"]), dict(content["settings"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: damaged; begin anew in another hydra.run.dir, without resume"
        ) from error


def check_same(
    resume: str | None, run_dir: Path, run: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Raise InputError if the state to resume was made with another `run` or other settings.

    Also if its run.json is damaged. Nothing to check without a saved state.
    """
    source = _find_saved(resume, run_dir)
    if source is None:
        return
    before, made_with = _read_run_file(source)
    for name, here in run.items():
        there = before.get(name)
        if here != there:
            remedy = REMEDIES[name].format(there=there)
            raise InputError(
                f"resume={resume}: the run in {source} has {name} {there!s:.12}, here"
                f" {here!s:.12}; {remedy}"
            )
    _check_settings(source, settings, made_with)


def _check_settings(
    source: Path,
    settings: dict[str, Any],
    made_with: dict[str, Any],
    *,
    skipped: Set[str] = frozenset(),
) -> None:
    """Raise InputError for the first setting that differs from those the run was started with."""
    plain = json.loads(json.dumps(settings, default=str))
    now, then = (normal_form(flatten(known)) for known in (plain, made_with))
    for name in sorted((now.keys() | then.keys()) - skipped):
        here, there = now.get(name), then.get(name)
        if here == there:
            continue
        setting = f"{name}={here}"
        how = f"{name}={there}; leave it as it was"
        if name in GONE:
            setting = name
            how = f"{name}={there}, which is no setting any more; use the retexo that began it"
        raise InputError(
            f"{setting}: the run in {source} was started with {how} to resume that run, or begin"
            " anew without resume"
        )
