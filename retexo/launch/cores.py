"""The CPU cores that this process may use, by its affinity and its control group's quota."""

from collections.abc import Iterator
from pathlib import Path

import psutil


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of usable cores, at least 1. A quota of 2.5 cores counts as 2.

    Source: the kernel's cgroup-v2.rst (cpu.max) and scheduler/sched-bwc.rst (cpu.cfs_quota_us).

    Args:
        root: the folder with proc and sys, for tests.
    """
    cores = len(psutil.Process().cpu_affinity() or [0])
    return max(1, min([cores, *(int(quota) for quota in _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Return quotas, in cores, of this process's control groups and of the groups above them."""
    for group in _groups(root):
        for version in (
            _read_words(group / "cpu.max"),
            _read_words(group / "cpu.cfs_quota_us") + _read_words(group / "cpu.cfs_period_us"),
        ):
            if len(version) == 2 and all(
                entry.isdecimal() and int(entry) for entry in version
            ):  # else max, or -1
                yield int(version[0]) / int(version[1])


def _groups(root: Path) -> Iterator[Path]:
    """Yield the control groups' folders, from the process's own upwards; some may not exist."""
    mount = root / "sys/fs/cgroup"
    for line in _read_lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        if number == "0" or "cpu" in controllers.split(","):
            own = (mount / controllers if controllers else mount) / path.strip("/")
            yield own
            yield from (above for above in own.parents if above.is_relative_to(mount))


def _read_words(path: Path) -> list[str]:
    """Return the words of a file; none if it cannot be read."""
    return " ".join(_read_lines(path)).split()


def _read_lines(path: Path) -> list[str]:
    """Return the lines of a file; none if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
