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

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support import ROOT, run_main

import retexo
from partitioning.errors import InputError
from retexo.apps import notebook
from retexo.settings.compose import compose

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_distribution_has_a_name_of_its_own() -> None:
    assert PROJECT["name"] == "retexo-gnn"
    assert re.fullmatch(r"\d+\.\d+\.\d+", retexo.__version__)


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


def test_a_command_that_trains_loads_only_what_it_uses(tmp_path: Path) -> None:
    """The others take seconds before the first round; a fresh process has none of them."""
    words = ["", "app=train", "dataset_name=synthetic", "num_partitions=2", "num_rounds=2"]
    code = (
        f"import sys; sys.argv = {words}; from retexo.__main__ import main; assert main() == 0;"
        " heavy = {'dgl', 'ogb', 'pandas', 'pyarrow', 'scipy.stats', 'sklearn', 'matplotlib',"
        " 'networkx'}; sys.exit(', '.join(heavy & sys.modules.keys()) or None)"
    )
    command = [sys.executable, "-c", code]
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=path, check=True, timeout=200)


def test_an_import_loads_nothing_and_starts_nothing() -> None:
    heavy = "{'torch', 'dgl', 'hydra', 'numpy', 'multiprocessing', 'subprocess'}"
    said = f"import retexo, sys; assert not {heavy} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", said], cwd=ROOT, check=True, timeout=100)


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
    wanted = compose(overrides, "node_classification_gat")
    assert [settings.stored for settings, _ in taken] == [wanted.stored] * 2
    assert [run_dir for _, run_dir in taken] == [Path("here")] * 2
    assert (wanted.model.name, wanted.dropout) == ("sage", 0.3)
    for settings, told in (
        ({"num_roundz": 3}, "did you mean num_rounds"),
        (["num_rounds=[1"], "no viable"),
    ):
        with pytest.raises(InputError, match=told):
            retexo.run(settings)
    with pytest.raises(InputError, match="no such folder"):
        retexo.run(config_dir=str(tmp_path / "none"))


def test_a_folder_of_the_users_own_configurations(tmp_path: Path) -> None:
    """By --config-dir: with the command, for the runs of a sweep, and from Python."""
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "mine.yaml").write_text(
        "defaults: [node_classification_sage, _self_]\nhidden_dim: 17\n"
    )
    (tmp_path / "own" / "experiment" / "two.yaml").write_text(
        "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {seed: '1,2'}}}"
    )
    told = run_main("--config-dir", "own", "--config-name", "mine", "--cfg", "job", cwd=tmp_path)
    assert told.rc == 0, told.output
    assert "hidden_dim: 17" in told.stdout
    settings = compose(["+experiment=two"], "mine", str(tmp_path / "own"))
    assert settings.arguments[:2] == ("--config-name=mine", f"--config-dir={tmp_path}/own")
    jobs = run_main(
        *("--config-dir", "own", "--config-name", "mine", "+experiment=two", "dropout=2"),
        cwd=tmp_path,
    )
    assert (jobs.rc, "2 of 2 jobs failed" in jobs.stdout) == (2, True)


def test_the_shell_completes_settings_and_values(tmp_path: Path) -> None:
    for line, offered in (
        ("retexo model=", "model=gat model=gcn"),
        ("retexo stopping.pat", "stopping.patience="),
    ):
        said = run_main(
            "-sc", "query=bash", cwd=tmp_path, env={"COMP_LINE": line, "COMP_POINT": str(len(line))}
        )
        assert offered in said.stdout, said.output
