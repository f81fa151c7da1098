"""The package: what a wheel holds and does outside the checkout, the command and the functions for Python.

The name `retexo` on the public package index is somebody else's: nothing tells anybody to install that.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from support import ROOT, run_main

import retexo
from partitioning.errors import InputError
from retexo.apps import notebook, sweep
from retexo.config.compose import compose
from retexo.config.schema import CONFIG_DIR

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPT = """
print("started")
import retexo
summary = retexo.train({"dataset_name": "cora", "partition_dir": "parts", "num_partitions": 2, "hidden_dim": 8,
                        "num_rounds": [1], "device": "cpu", "cluster": {"threads": 1}, "hydra.run.dir": "run"})
print(retexo.__file__, summary["status"], summary["rounds"], summary["seconds"]["total"] < 500)
"""


def test_the_distribution_has_a_name_of_its_own() -> None:
    assert PROJECT["name"] == "retexo-gnn"
    assert re.fullmatch(r"\d+\.\d+\.\d+", retexo.__version__)


def test_nobody_is_told_to_install_a_strangers_package() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = [ROOT / name for name in listed if name.endswith((".py", ".md", ".sh", ".toml", ".yaml", ".cff"))]
    assert not [path for path in texts if path.exists() and re.search(r"pip install +['\"]?retexo", path.read_text())]


def call(*command: str | Path, cwd: Path) -> str:
    """What a command prints; its status has to be 0."""
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=250, env={"PATH": "/usr/bin:/bin"})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.timeout(600)
def test_a_wheel_partitions_and_trains_in_an_empty_folder(tmp_path: Path) -> None:
    """Installed without its dependencies, which are those of the tests; trained by a script that has no main guard."""
    source, environment, here = tmp_path / "source", tmp_path / "environment", tmp_path / "here"
    for folder in ("retexo", "partitioning", "conf"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / file, source)
    alone = ("--no-deps", "--no-index", "--disable-pip-version-check")
    call(sys.executable, "-m", "pip", "wheel", *alone, "--no-build-isolation", "-w", tmp_path, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    check_contents(wheel)
    call(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    call(sys.executable, "-m", "pip", "--python", environment, "install", *alone, wheel, cwd=tmp_path)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(str(Path(pytest.__file__).parents[1]))  # a .pth file in there is not followed
    here.mkdir()
    (here / "script.py").write_text(SCRIPT)
    cora = ("dataset_name=cora", "num_partitions=2", "partition_dir=parts")
    call(environment / "bin" / "retexo", "app=partition_data", *cora, cwd=here)
    lines = call(environment / "bin" / "python", "script.py", cwd=here).splitlines()
    assert lines.count("started") == 1, "the workers ran it, too"
    assert lines[-1].split() == [str(packages / "retexo" / "__init__.py"), "done", "[1,", "1]", "True"]
    assert json.loads((here / "run" / "summary.json").read_text())["status"] == "done"


def check_contents(wheel: Path) -> None:
    """Code, configuration and data, no tests; extras that name this distribution and one another."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("dist-info/METADATA"))
        (commands,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    for package in ("retexo", "partitioning"):
        code = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.*") if path.suffix != ".pyc"}
        assert code <= names
        assert f"{package}/py.typed" in code
    assert {f"retexo/conf/{path.relative_to(CONFIG_DIR).as_posix()}" for path in CONFIG_DIR.rglob("*.yaml")} <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"retexo", "partitioning"}
    assert "retexo = retexo.__main__:main" in commands
    assert re.search(r"^Name: retexo-gnn$", metadata, re.M)
    assert f"\nVersion: {retexo.__version__}\n" in metadata
    extras = set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.M)) - {"dev"}
    own = re.findall(r'^Requires-Dist: (retexo\S*)\[(.*)\]; extra == "dev"$', metadata, re.M)
    assert [(name, set(each.split(","))) for name, each in own] == [("retexo-gnn", extras)]


def test_an_import_loads_nothing_and_starts_nothing() -> None:
    heavy = "{'torch', 'dgl', 'hydra', 'numpy', 'multiprocessing', 'subprocess'}"
    call(sys.executable, "-c", f"import retexo, sys; assert not {heavy} & sys.modules.keys()", cwd=ROOT)


def test_settings_are_given_as_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(notebook.apps, "run", lambda settings, run_dir: taken.append((settings, run_dir)))
    values = {"model": "sage", "num_rounds": (1, 0), "weight_decay": 0, "stopping": {"patience": None},
              "measure_dv": True, "partition_dir": tmp_path / "it's", "hydra.run.dir": "here"}  # fmt: skip
    retexo.train(values, config_name="node_classification_gat")
    overrides = ["model=sage", "num_rounds=[1,0]", "weight_decay=0", "stopping.patience=null",
                 "measure_dv=true", f"partition_dir=\"{tmp_path}/it's\""]  # fmt: skip
    retexo.run([*overrides, "hydra.run.dir=here"], "node_classification_gat")
    wanted = compose(overrides, "node_classification_gat")
    assert [settings.resolved for settings, _ in taken] == [wanted.resolved] * 2
    assert [run_dir for _, run_dir in taken] == [Path("here")] * 2
    assert (wanted.train.model.name, wanted.train.model.dropout) == ("sage", 0.3)
    for settings, told in (({"num_roundz": 3}, "did you mean num_rounds"), (["num_rounds=[1"], "no viable")):
        with pytest.raises(InputError, match=told):
            retexo.run(settings)
    with pytest.raises(InputError, match="no such folder"):
        retexo.run(config_dir=str(tmp_path / "none"))


def test_a_folder_of_the_users_own_configurations(tmp_path: Path) -> None:
    """By --config-dir: with the command, for the runs of a sweep, and from Python."""
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "mine.yaml").write_text("defaults: [node_classification_sage, _self_]\nhidden_dim: 17\n")
    axes = "{seed: {a: seed=1, b: seed=2}}"
    (tmp_path / "own" / "experiment" / "two.yaml").write_text(
        f"# @package _global_\nsweep: {{dir: runs, axes: {axes}}}"
    )
    told = run_main("--config-dir", "own", "--config-name", "mine", "--cfg", "job", cwd=tmp_path)
    assert told.rc == 0, told.output
    assert "hidden_dim: 17" in told.stdout
    settings = compose(["+experiment=two"], "mine", str(tmp_path / "own"))
    assert settings.arguments[:2] == ("--config-name=mine", f"--config-dir={tmp_path}/own")
    planned = sweep.plan(settings)
    assert [(one.settings.train.seed, one.settings.train.model.hidden_dim) for one in planned] == [(1, 17), (2, 17)]


def test_the_shell_completes_settings_and_values(tmp_path: Path) -> None:
    for line, offered in (("retexo model=", "model=gat model=gcn"), ("retexo stopping.pat", "stopping.patience=")):
        said = run_main("-sc", "query=bash", cwd=tmp_path, env={"COMP_LINE": line, "COMP_POINT": str(len(line))})
        assert offered in said.stdout, said.output
