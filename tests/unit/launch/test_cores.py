"""Cores by affinity and by the quota of the control group, from a tree of files like the
kernel's.
"""

from pathlib import Path

import psutil
import pytest

from retexo.launch.cores import usable_cores

CORES = 16


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(range(CORES)))


def tree(root: Path, files: dict[str, str]) -> int:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return usable_cores(root)


OWN, CGROUP = "proc/self/cgroup", "sys/fs/cgroup"
TREES: dict[str, tuple[dict[str, str], int]] = {
    "no control groups": ({}, CORES),
    "no quota": ({OWN: "0::/a\n", f"{CGROUP}/a/cpu.max": "max 100000\n"}, CORES),
    "a quota": ({OWN: "0::/a\n", f"{CGROUP}/a/cpu.max": "400000 100000\n"}, 4),
    "of a container": ({OWN: "0::/\n", f"{CGROUP}/cpu.max": "250000 100000\n"}, 2),
    "below one core": ({OWN: "0::/a\n", f"{CGROUP}/a/cpu.max": "50000 100000\n"}, 1),
    "more than there are": ({OWN: "0::/a\n", f"{CGROUP}/a/cpu.max": "9900000 100000\n"}, CORES),
    "of a group above": (
        {
            OWN: "0::/a/b/c\n",
            f"{CGROUP}/a/cpu.max": "300000 100000\n",
            f"{CGROUP}/a/b/cpu.max": "500000 100000\n",
        },
        3,
    ),
    "not visible": ({OWN: "0::/../../far/away\n", f"{CGROUP}/cpu.max": "200000 100000\n"}, 2),
    "version 1": (
        {
            OWN: "5:memory:/a\n4:cpu,cpuacct:/job\n",
            f"{CGROUP}/cpu,cpuacct/job/cpu.cfs_quota_us": "600000\n",
            f"{CGROUP}/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        },
        6,
    ),
    "version 1 without a quota": (
        {
            OWN: "4:cpu,cpuacct:/\n",
            f"{CGROUP}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            f"{CGROUP}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        CORES,
    ),
    "nonsense": ({OWN: "what\n0::/a\n", f"{CGROUP}/a/cpu.max": "0 0\n"}, CORES),
}


@pytest.mark.parametrize("name", TREES)
def test_cores(tmp_path: Path, name: str) -> None:
    files, cores = TREES[name]
    assert tree(tmp_path, files) == cores


def test_here() -> None:
    assert 1 <= usable_cores() <= CORES
