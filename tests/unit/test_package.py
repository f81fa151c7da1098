"""The package: its name, the command and the functions for Python; test_examples.py builds it.

The name `retexo` on the public package index is somebody else's: nothing tells anybody to install
that.
"""

import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from socket import socket
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support import ROOT, run_main

import retexo
from partitioning.errors import InputError
from retexo.apps import notebook, train
from retexo.comm.socket_transport import Streams
from retexo.settings.compose import compose
from retexo.worker import train as worker
from retexo.worker.process import serve
from retexo.worker.train import TrainJob

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_what_setup_installs_is_locked_with_hashes() -> None:
    """Every requirement of pyproject.toml is in requirements/dev.txt, as constraints.txt has it.

    `python scripts/lock.py` writes those files.
    """
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    locked = {}
    for name in ("build", "torch", "demo", "image", "dev"):
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        for line in text.replace(" \\\n", "").splitlines()[1:]:
            pinned, _, hashes = line.partition("--hash=")
            requirement = Requirement(pinned.strip())
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", hashes.split()[0]), line
            locked[requirement.name] = str(requirement.specifier).removeprefix("==")
    ours = {name for name in locked if not name.startswith(("nvidia-", "cuda-", "triton"))}
    assert {name: locked[name] for name in ours} == {name: pins[name] for name in ours}
    extras = PROJECT["optional-dependencies"]
    for text in (*PROJECT["dependencies"], *itertools.chain(*extras.values())):
        requirement = Requirement(text)
        if requirement.name != PROJECT["name"]:
            assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), text


def test_the_environment_of_the_demo_can_draw_its_report() -> None:
    locked = (ROOT / "requirements/demo.txt").read_text()
    for text in PROJECT["optional-dependencies"]["report"]:
        name = canonicalize_name(Requirement(text).name)
        assert re.search(rf"^{name}==", locked, re.M), name


def test_nobody_is_told_to_install_a_strangers_package() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    texts = [
        ROOT / name
        for name in listed
        if name.endswith((".py", ".md", ".sh", ".toml", ".yaml", ".yml", ".cff", ".ipynb"))
        or name.endswith("Dockerfile")
    ]
    assert not [
        path
        for path in texts
        if path.exists() and re.search(r"pip install +['\"]?retexo", path.read_text())
    ]


TRAINS = ("app=train", "dataset_name=synthetic", "num_partitions=2", "num_rounds=2")
HEAVY = {
    *("torch", "torch._dynamo", "dgl", "ogb", "torch_geometric", "numba", "sklearn", "networkx"),
    *("scipy", "scipy.stats", "scipy.optimize", "sympy", "pandas", "pyarrow", "matplotlib"),
    *("cryptography", "mlflow", "tensorboard", "hydra"),
}
"""Modules that take a tenth of a second or more to load."""


LOADED = {
    "--help": "hydra",
    "num_roundz=3": "hydra",
    "app=trian": "hydra",
    " ".join((*TRAINS, "hydra.run.dir=run")): "hydra torch scipy",
    "app=predict checkpoint_dir=run dataset_name=synthetic": "hydra torch scipy pandas pyarrow",
}
"""By command those of them that it needs, and those of the commands before it."""


def test_an_import_and_each_command_load_only_what_they_use(tmp_path: Path) -> None:
    """Fresh processes run the commands, one after the other."""
    light = {*HEAVY, "numpy", "multiprocessing", "subprocess"}
    code = (
        f"import sys, retexo\nassert not {light} & sys.modules.keys()\n"
        "from contextlib import suppress\nfrom retexo.__main__ import main\n"
        f"for words, loaded in {LOADED}.items():\n"
        "    sys.argv = ['', *words.split()]\n"
        "    with suppress(SystemExit):\n        main()\n"
        f"    found = {HEAVY} & sys.modules.keys()\n"
        "    assert found == {*loaded.split()}, (words, found)\n"
    )
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=path, check=True, timeout=200)


def test_workers_share_all_that_they_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server loads it, without Hydra, and a worker adds next to nothing."""
    code = f"import sys, retexo.worker.preload, gc; found = {HEAVY} & sys.modules.keys();"
    code += " assert found == {'torch', 'scipy'}, found; assert gc.get_freeze_count() > 100_000"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=100)
    monkeypatch.setattr(train, "main", note_modules)
    run_main(*TRAINS, f"hydra.run.dir={tmp_path}/run", cwd=tmp_path)
    loaded = [(tmp_path / f"run/modules-{rank}").read_text() for rank in range(2)]
    assert loaded == ["torch.utils._device"] * 2


def note_modules(rank: int, job: TrainJob, parent: socket, streams: Streams | None) -> None:
    """Be a worker that writes the names of the modules that it loads."""

    def run(rank: int, job: TrainJob, *others: Any) -> Any:
        before = {*sys.modules}
        result = worker.run(rank, job, *others)
        (job.run_dir / f"modules-{rank}").write_text(" ".join(sys.modules.keys() - before))
        return result

    serve(run, rank, job, parent, streams)


def test_settings_are_given_as_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    monkeypatch.setattr(
        notebook.apps,  # type: ignore[attr-defined]
        "run",
        lambda settings, run_dir, *_: taken.append((settings, run_dir)),
    )
    values = {
        "model": "sage",
        "num_rounds": (1, 0),
        "weight_decay": 0,
        "stopping": {"patience": None},
        "measure_dv": True,
        "partition_dir": tmp_path / "it's",
        "hydra.run.dir": "here",
    }
    retexo.train(values, config_name="node_classification_gat")
    overrides = [
        "model=sage",
        "num_rounds=[1,0]",
        "weight_decay=0",
        "stopping.patience=null",
        "measure_dv=true",
        f'partition_dir="{tmp_path}/it\'s"',
    ]
    retexo.run([*overrides, "hydra.run.dir=here"], "node_classification_gat")
    expected = compose(overrides, "node_classification_gat")
    assert [settings.stored for settings, _ in taken] == [expected.stored] * 2
    assert [run_dir for _, run_dir in taken] == [Path("here")] * 2
    assert (expected.model.name, expected.dropout) == ("sage", 0.3)
    for settings, message in (
        ({"num_roundz": 3}, "did you mean num_rounds"),
        (["num_rounds=[1"], "no viable"),
    ):
        with pytest.raises(InputError, match=message):
            retexo.run(settings)
    with pytest.raises(InputError, match="no such folder"):
        retexo.run(config_dir=str(tmp_path / "none"))


def test_the_shell_completes_settings_and_values(tmp_path: Path) -> None:
    for line, offered in (
        ("retexo model=", "model=gat model=gcn"),
        ("retexo stopping.pat", "stopping.patience="),
    ):
        ended = run_main(
            "-sc", "query=bash", cwd=tmp_path, env={"COMP_LINE": line, "COMP_POINT": str(len(line))}
        )
        assert offered in ended.stdout, ended.output
