"""Ranks of processes that torchrun or Slurm started, read from their environment variables."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from partitioning.errors import InputError

logger = logging.getLogger(__name__)

D = TypeVar("D", int, None)
FIRST_PORT = 10011


@dataclass(frozen=True)
class LauncherEnv:
    """Rank and address of this process from the launcher's variables; InputError for a bad rank."""

    launcher: str
    """torchrun or Slurm"""
    rank: int
    world_size: int
    local_rank: int
    local_size: int
    """Processes of the run on this machine."""
    cores: int | None
    """Cores of this process; None if the launcher does not set them."""
    master_addr: str
    master_port: int | None
    """None: use distributed.master_port."""
    run_key: str
    """Tells this run from others of the same launcher."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InputError(
                f"rank {self.rank} of {self.launcher}: must be in [0, {self.world_size}); start it"
                " anew"
            )

    @property
    def variables(self) -> str:
        """Names of the variables that identify the launcher."""
        return "RANK and WORLD_SIZE" if self.launcher == "torchrun" else "SLURM_PROCID"

    @property
    def one_machine(self) -> bool:
        return self.local_size == self.world_size


def detect(environ: Mapping[str, str]) -> LauncherEnv | None:
    """Read the variables of torchrun or srun; None if neither started this process.

    A single process is none of theirs, except below torchrun; RANK is then ignored with a warning.

    Raises:
        InputError: Names a variable that is invalid or contradicts another.
    """
    if {"RANK", "WORLD_SIZE"} <= environ.keys():
        if environ["WORLD_SIZE"] != "1" or "TORCHELASTIC_RUN_ID" in environ:
            return _read_torchrun(environ)
        logger.warning(
            "the environment has RANK=%s and WORLD_SIZE=1 without torchrun's own variables:"
            " ignored",
            environ["RANK"],
        )
    if "SLURM_PROCID" in environ and _number(environ, "SLURM_NTASKS", 1) > 1:
        return _read_slurm(environ)
    return None


def _read_torchrun(environ: Mapping[str, str]) -> LauncherEnv:
    """Read torchrun's variables; the port is another one where torchrun's store has MASTER_PORT.

    InputError for a value that is no number.
    """
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    port = _number(environ, "MASTER_PORT", None)
    if port is not None and environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port = _port_of(port)  # torchrun's own store listens at MASTER_PORT
    return LauncherEnv(
        launcher="torchrun",
        rank=_number(environ, "RANK", 0),
        world_size=_number(environ, "WORLD_SIZE", 0),
        local_rank=_number(environ, "LOCAL_RANK", 0),
        local_size=_number(environ, "LOCAL_WORLD_SIZE", 1),
        cores=None,
        master_addr=environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=port,
        run_key=f"torchrun {environ.get('TORCHELASTIC_RUN_ID', '')} attempt {attempt}",
    )


def _read_slurm(environ: Mapping[str, str]) -> LauncherEnv:
    """Read the rank and addresses from Slurm's variables; InputError for a value it cannot read."""
    world_size = _number(environ, "SLURM_NTASKS", 0)
    host = first_host(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST", ""))
    job = environ.get("SLURM_JOB_ID", "")
    counts = expand_counts(
        environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    )
    node = _number(environ, "SLURM_NODEID", 0)
    num_nodes = _number(environ, "SLURM_STEP_NUM_NODES", _number(environ, "SLURM_NNODES", 1))
    port = _number(environ, "MASTER_PORT", None)
    if port is None and job.isdigit():  # two jobs may share a machine
        port = _port_of(int(job))
    return LauncherEnv(
        launcher="Slurm",
        rank=_number(environ, "SLURM_PROCID", 0),
        world_size=world_size,
        local_rank=_number(environ, "SLURM_LOCALID", 0),
        local_size=counts[node] if node < len(counts) else -(-world_size // max(1, num_nodes)),
        cores=_number(environ, "SLURM_CPUS_PER_TASK", None),
        master_addr=environ.get("MASTER_ADDR") or host or "127.0.0.1",
        master_port=port,
        run_key=f"Slurm {job} step {environ.get('SLURM_STEP_ID', '')}",
    )


def _port_of(number: int) -> int:
    """Return the port of node 0 of a job; jobs with other numbers have other ports, mostly."""
    return FIRST_PORT + number % 20000


def _number(environ: Mapping[str, str], name: str, default: D) -> int | D:
    """Return a variable as a number from 0 on, or a default; InputError for another value."""
    value = environ.get(name)
    if value is None:
        return default
    if not value.isdecimal():
        raise InputError(
            f"environment variable {name}={value}: must be a number; torchrun or srun sets it"
        )
    return int(value)


def first_host(nodelist: str) -> str:
    """Return the first host of Slurm's compressed list: 'a[07-09],b' gives a07; '' gives ''.

    InputError where it is no host name.
    """
    host = re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", nodelist).split(",")[0]
    if not re.fullmatch(r"[\w.-]*", host):
        raise InputError(
            f"SLURM_NODELIST={nodelist[:40]}: cannot read its first host; srun sets it"
        )
    return host


def expand_counts(text: str) -> list[int]:
    """Expand Slurm's task counts: '2(x3),1' gives [2, 2, 2, 1]. Other text is skipped."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts
