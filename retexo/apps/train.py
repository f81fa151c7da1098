"""`app=train`: train a GNN over a partition directory, with one worker per partition.

When a process dies or a connection breaks, all nodes restart from the last round that all of them
have saved.
"""

import logging
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from retexo.apps import resume
from retexo.apps.find_partitions import (
    open_partitions,
    settings_of_directory,
    with_found_parts,
)
from retexo.apps.partition_request import data_checksums
from retexo.apps.run_identity import shared_settings, versions
from retexo.apps.seeds import run_seeds
from retexo.apps.summary import baselines_of, describe_features, print_results
from retexo.errors import Interrupted, TrainingError, describe_error
from retexo.launch import rendezvous, start_workers
from retexo.launch.handshake import RunInfo
from retexo.results.atomic_write import write_json
from retexo.results.checkpoint import open_checkpoint
from retexo.results.conclusion import conclude
from retexo.results.observers import Observers, observing
from retexo.results.run_lock import locks_run_dir
from retexo.settings.run_settings import Settings
from retexo.trainers.registry import check_trainer_settings
from retexo.worker.compatibility import check_continues
from retexo.worker.process import check_machine, num_threads
from retexo.worker.train import TrainJob, main

logger = logging.getLogger(__name__)

DEFAULT_RESTARTS = 3
"""distributed.max_restarts where rounds are saved."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before the first restart; each pause is twice the one before, up to the longest."""
RETRY_PAUSE = 1.0
"""Seconds before nodes try again to connect at a restart."""


def run(settings: Settings, run_dir: Path, callbacks: Sequence[Any] = ()) -> dict[str, Any]:
    """Train once, or once per seed of `seeds`; see `train_once` and retexo.apps.seeds."""
    if settings.seeds is not None:
        return run_seeds(settings, run_dir, partial(train_once, callbacks=callbacks))
    return train_once(settings, run_dir, callbacks)


@locks_run_dir
def train_once(settings: Settings, run_dir: Path, callbacks: Sequence[Any] = ()) -> dict[str, Any]:
    """Train and return the content of summary.json, which node 0 writes into the run directory.

    Makes the partitions first if there are none. Also prints the results, and removes the state
    to resume from. Other nodes write done.json if rounds are saved. A run that is finished already
    (resume=auto, or a job of a sweep) only returns its summary.

    Raises:
        InputError: before a worker is started.
        TrainingError: a worker failed.
        SystemExit: at SIGTERM or SIGHUP. What a callback raises is raised, too.
    """
    # 1. Complete the settings, since runs are compared by them: the model of `init`, the number of
    # partitions that are there.
    initial = None
    if settings.init is not None:
        from retexo.apps.evaluate import with_model_of  # with all that predicts; slow to load

        initial = open_checkpoint(Path(settings.init), "init")
        settings = with_model_of(initial, settings, predict=False)
        model = settings.model
        logger.info(
            "starts from %s: %s with num_layers=%d", initial.directory, model.name, model.depth
        )
    check_trainer_settings(settings)
    settings = with_found_parts(settings)
    shared = shared_settings(settings)
    # 2. A finished run needs no partitions: its data may be gone.
    is_new_job = settings.is_multirun_job and settings.resume is None
    source = "auto" if is_new_job else settings.resume
    finished = resume.finished(source, run_dir, settings.stored, settings_of_directory(settings))
    if finished is not None:
        logger.info("%s: this run is finished already", run_dir)
        return finished
    # 3. Refuse a run directory in use, and a machine without the memory or GPUs, before partitions
    # are made.
    if is_new_job:
        settings = resume.continue_job(settings, run_dir)
    resume.check_place(settings.resume, run_dir)
    check_machine(settings)
    # 4. Find or make the partitions. What the run stores of them does not change `shared`: nodes
    # and resumed runs compare the digest instead.
    directory, settings = open_partitions(settings)
    description = {
        "partitions": directory.content_digest(settings.local_ranks),
        "threads": num_threads(settings),
        **{name: versions()[name] for name in ("retexo", "torch")},
    }
    # 5. Compare the partitions with the model of `init`, and with those of the run to resume.
    if initial is not None:
        check_continues(initial, directory, settings.local_ranks)
    resume.check_same(settings.resume, run_dir, description, shared)
    # 6. Train. Up to here nothing was written but partitions.
    with (
        observing(settings, run_dir, callbacks) as observers,
        start_workers.terminate_as_exit(),
    ):
        training = Training(settings, run_dir, directory, description, shared, observers)
        summary = training.run()
    # 7. Note that the results are complete; only then remove the state to resume from.
    if settings.node_rank != 0 and settings.checkpoint.keep:
        resume.note_done(run_dir, summary)
    shutil.rmtree(run_dir / "state", ignore_errors=True)  # nodes may share a directory
    if settings.node_rank == 0:
        print_results(summary, {"results": run_dir}, measure_dv=settings.measure_dv)
        print("", *conclude(summary, str(run_dir)), sep="\n")
    else:
        scored = ", ".join(
            f"{name} {value:.4f}" for name, value in list(summary.get("test", {}).items())[:1]
        )
        print(f"node {settings.node_rank}: done, test {scored}; node 0 has the results")
    return summary


@dataclass(eq=False)
class Training:
    """A run on this node, with its restarts."""

    settings: Settings
    run_dir: Path
    directory: PartitionDirectory
    description: dict[str, Any]
    """What a resumed run has to have in common with its state, besides the settings."""
    shared: dict[str, Any]
    """Settings that are the same on every node."""
    observers: Observers
    """Empty on nodes other than 0, which have no rounds."""
    causes: list[str] = field(default_factory=list)
    """Causes of the restarts so far."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Last content of summary.json; empty before the nodes have connected."""

    @property
    def max_restarts(self) -> int:
        """Return distributed.max_restarts; unset, DEFAULT_RESTARTS if states are saved, else 0."""
        if self.settings.distributed.max_restarts is not None:
            return self.settings.distributed.max_restarts
        return DEFAULT_RESTARTS if self.settings.checkpoint.every else 0

    @property
    def resume_from(self) -> str | None:
        """Return the setting `resume`, None to begin anew.

        A restart resumes the state in the run directory, if it keeps one.
        """
        return "auto" if self.causes and self.settings.checkpoint.keep else self.settings.resume

    def run(self) -> dict[str, Any]:
        """Run, and restart after a curable failure; return the content of summary.json.

        Node 0 writes summary.json and config.json. Observers hear of start, rounds and end, not of
        restarts. TrainingError for another failure or too many restarts, InputError where nodes do
        not fit together.
        """
        try:
            self.observers.start(self.settings.stored)
            return self._run_with_restarts()
        finally:
            self.observers.end(self.summary)

    def _run_with_restarts(self) -> dict[str, Any]:
        """Run until an attempt succeeds, again after each curable failure.

        A failure is written to the summary.
        """
        try:
            while True:
                try:
                    return self._attempt()
                except Interrupted as error:
                    if not self.summary or len(self.causes) >= self.max_restarts:
                        raise
                    self.causes.append(str(error))
                self._pause()
        except BaseException as error:
            if self.summary:
                ended = isinstance(error, SystemExit)  # by a signal
                said = f"terminated ({start_workers.name_of(error)})" if ended else None
                with suppress(TrainingError):  # with a full disk the first error is enough
                    self._write_summary(status="failed", error=said or describe_error(error))
            raise

    def _attempt(self) -> dict[str, Any]:
        """Connect the nodes, run the workers once, and return the summary.

        Node 0 writes summary.json before (status: running) and after. config.json has the settings.
        """
        with ExitStack() as stack:
            node = self._connect(stack)
            self.run_dir.mkdir(parents=True, exist_ok=True)
            job = self._make_job(node)
            if self.settings.local_index(self.settings.local_ranks.start) == 0:
                write_json(
                    self.run_dir / "config.json",
                    {"run_id": node.run_id, **self.settings.stored},
                )
            meta = self.directory.meta
            self.summary = {
                **baselines_of(self.directory),
                "status": "running",
                "run_id": node.run_id,
                "versions": versions(),
                "settings": self.settings.stored,
                "partition_digest": self.directory.digest(),
                "features": describe_features(self.directory),
                "data_checksums": {} if meta is None else data_checksums(meta),
                "restarts": {"count": len(self.causes), "causes": self.causes},
            }
            self._write_summary()
            results = start_workers.run_workers(
                self.settings.local_ranks,
                main,
                job,
                node,
                may_restart=len(self.causes) < self.max_restarts,
                look=self.observers.look,
            )
        result = results[self.settings.local_ranks.start]
        result["seconds"]["total"] = time.time() - self.settings.started
        self._write_summary(status="done", **result)
        return self.summary

    def _connect(self, stack: ExitStack) -> rendezvous.Node:
        """Connect to the other nodes; `stack` closes the connections.

        A restart tries again until init_timeout; then TrainingError in place of InputError.
        """
        info = RunInfo(
            {**self.shared, "resume": self.resume_from is not None},
            self.directory.digest(),
            self.directory.remedy,
            num_saved=resume.count_saved(self.resume_from, self.run_dir, self.settings.local_ranks),
        )
        if not self.causes:
            return stack.enter_context(rendezvous.connect_nodes(self.settings, info))
        deadline = time.monotonic() + self.settings.distributed.init_timeout
        while True:
            seconds = max(1.0, deadline - time.monotonic())
            try:
                return stack.enter_context(rendezvous.connect_nodes(self.settings, info, seconds))
            except Interrupted as error:
                if time.monotonic() + RETRY_PAUSE >= deadline:
                    raise
                logger.warning("the nodes did not connect and try again: %s", error)
                time.sleep(RETRY_PAUSE)
            except (InputError, TrainingError) as error:
                raise TrainingError(f"{error}; restarted because {self.causes[-1]}") from error

    def _make_job(self, node: rendezvous.Node) -> TrainJob:
        """Return what the workers of this node receive; prepare the state to resume from."""
        identity = ""
        if self.settings.checkpoint.keep:
            identity = resume.prepare_resume(
                self.resume_from,
                self.run_dir,
                self.settings.local_ranks,
                self.description,
                self.shared,
            )
        settings = replace(self.settings, resume=self.resume_from)
        return TrainJob(settings, self.directory, self.run_dir, node.rendezvous, identity)

    def _pause(self) -> None:
        """Wait before a restart, longer each time, so that a node or connection can recover."""
        number = len(self.causes)
        seconds = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (number - 1))
        logger.warning(
            "%s: restart %d of %d in %g s, from the last round that all nodes have saved",
            self.causes[-1],
            number,
            self.max_restarts,
            seconds,
        )
        time.sleep(seconds)

    def _write_summary(self, **changes: Any) -> None:
        """Update the summary; node 0 writes it."""
        self.summary |= changes
        if self.settings.node_rank == 0:
            write_json(self.run_dir / "summary.json", self.summary, checksum=True)
