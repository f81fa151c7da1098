"""The scripts of examples/, and the lines of Python of docs/python.md, for few rounds.

Also a wheel that partitions and trains in an empty folder.
"""

import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT, finish, kill_group, need_dgl, run_main

import retexo
from retexo.settings.schema import CONFIG_DIR


def test_a_graph_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["own_graph.py"])
    runpy.run_path(str(ROOT / "examples" / "own_graph.py"), run_name="__main__")
    accuracy, nodes = capsys.readouterr().out.splitlines()[-2:]
    assert float(accuracy.split()[2].rstrip(",")) > 0.8
    assert nodes.startswith("nodes [0 1 2] classes [")


@pytest.mark.long("a minute; the quick example runs always")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "options", "results"),
    [
        ("several_machines", (), "node0"),
        ("sites", (), "run-north"),
        ("sites", ("--secure",), "run-north"),
    ],
)
def test_several_nodes(tmp_path: Path, name: str, options: tuple[str, ...], results: str) -> None:
    if options:
        pytest.importorskip("cryptography")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for _ in range(1 if options else 2):  # the results of the first time are replaced
        process = subprocess.Popen(
            [
                "bash",
                str(ROOT / "examples" / f"{name}.sh"),
                *options,
                str(tmp_path),
                "num_rounds=[2]",
                "hidden_dim=8",
            ],
            env={
                **os.environ,
                "PYTHON": sys.executable,
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            ended = finish(process, timeout=240)
        finally:
            kill_group(process.pid)
    assert "bytes sent" in ended.stdout
    assert json.loads((tmp_path / results / "summary.json").read_text())["status"] == "done"


@pytest.mark.long("starts two servers and two trainers")
@pytest.mark.timeout(200)
def test_learnt_vectors_by_dgl(tmp_path: Path) -> None:
    need_dgl()
    run_main(
        "app=partition_data",
        "dataset_name=cora",
        "num_partitions=2",
        "partition_dir=parts",
        cwd=tmp_path,
    )
    (directory,) = (tmp_path / "parts").iterdir()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "dist_embedding.py"), str(directory), "6"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        text=True,
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    ended = finish(process, timeout=150)
    (accuracy_line,) = (
        line for line in ended.stdout.splitlines() if line.startswith("test accuracy")
    )
    assert float(accuracy_line.split()[2]) > 0.5  # of seven classes, by their edges alone


def places(ids: Any) -> Any:
    """Return the number after the letter of each id."""
    return ids.str[1:].astype(int)


def right(known: dict[str, Any]) -> float:
    return float(known["summary"]["test"]["accuracy"])


GOOD: dict[str, Callable[[dict[str, Any]], list[bool]]] = {
    "tables_to_service": lambda known: [
        known["answer"]["predictions"][0]["class"]
        == known["model"].predict(new=(known["newcomer"], known["edges"]))["class"][0],
        right(known) > 0.8,
    ],
    "rare_class": lambda known: [
        known["summary"]["test"]["roc_auc"] > 0.7,
        known["fraud"][places(known["first"].id)].sum() >= 2,
    ],
    "links": lambda known: [
        (known["town"][places(known["best"].partner)] == known["town"][0]).sum() >= 3
    ],
    "heterogeneous": lambda known: [
        np.mean(
            known["predicted"]["class"] == known["genres"][known["genre"][known["label"].isna()]]
        )
        > 0.6
    ],
    "two_nodes": lambda known: [
        [node.returncode for node in known["nodes"]] == [0, 0],
        right(known) > 0.75,
    ],
}
"""By notebook, what its results have to be, which they are not by chance."""


@pytest.mark.long("a minute, all; own_graph.py and the tests of their subjects run always")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", GOOD)
def test_the_notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == "tables_to_service":
        pytest.importorskip("uvicorn", reason="the extra serve")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = json.loads((ROOT / "examples" / "notebooks" / f"{name}.ipynb").read_text())
    known: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), known)
    assert all(GOOD[name](known))


@pytest.mark.long("a minute; the quick example runs always")
def test_the_page_on_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for page in ("experiments", "python"):
        text = (ROOT / "docs" / f"{page}.md").read_text()
        exec(text.partition("```python\n")[2].partition("```")[0], {})
    accuracy, classes = capsys.readouterr().out.splitlines()[-2:]
    assert float(accuracy.split()[0]) > 0.6
    assert len(classes.strip("[]").split()) == 2


SCRIPT = """
print("started")
import retexo
small = {"hidden_dim": 8, "num_rounds": [1], "device": "cpu", "cluster": {"threads": 1}}
cora = {"dataset_name": "cora", "partition_dir": "parts", "num_partitions": 2}
summary = retexo.train({**cora, **small, "hydra.run.dir": "run"})
print(retexo.__file__, summary["status"], summary["rounds"], summary["seconds"]["total"] < 500)
"""


def call(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Return what a command prints; its status has to be 0."""
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=250,
        env={"PATH": "/usr/bin:/bin", **environment},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.timeout(600)
def test_a_wheel_partitions_and_trains_in_an_empty_folder(tmp_path: Path) -> None:
    """Trained by a script that has no main guard. scripts/release.sh tries it in an environment."""
    source, packages, here = (tmp_path / name for name in ("source", "packages", "here"))
    for folder in ("retexo", "partitioning", "conf"):
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / file, source)
    alone = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    call("-m", "pip", "wheel", *alone, "-w", tmp_path, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    check_contents(wheel)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    here.mkdir()
    (here / "script.py").write_text(SCRIPT)
    lines = call("script.py", cwd=here, PYTHONPATH=str(packages)).splitlines()
    assert lines.count("started") == 1, "the workers ran it, too"
    assert lines[-1] == f"{packages / 'retexo' / '__init__.py'} done [1, 1] True"
    assert json.loads((here / "run" / "summary.json").read_text())["status"] == "done"


def check_contents(wheel: Path) -> None:
    """Code, configuration and data, no tests.

    Extras that name this distribution and one another.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (
            archive.read(name).decode() for name in names if name.endswith("dist-info/METADATA")
        )
        (commands,) = (
            archive.read(name).decode() for name in names if name.endswith("entry_points.txt")
        )
    for package in ("retexo", "partitioning"):
        files = (
            path for path in (ROOT / package).rglob("*.*") if path.parent.name != "__pycache__"
        )
        code = {path.relative_to(ROOT).as_posix() for path in files if path.is_file()}
        assert code <= names
        assert f"{package}/py.typed" in code
    assert {
        f"retexo/conf/{path.relative_to(CONFIG_DIR).as_posix()}"
        for path in CONFIG_DIR.rglob("*.yaml")
    } <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {
        "retexo",
        "partitioning",
    }
    assert "retexo = retexo.__main__:main" in commands
    assert re.search(r"^Name: retexo-gnn$", metadata, re.M)
    assert f"\nVersion: {retexo.__version__}\n" in metadata
    extras = set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.M)) - {"dev"}
    own = re.findall(r'^Requires-Dist: (retexo\S*)\[(.*)\]; extra == "dev"$', metadata, re.M)
    assert [(name, set(extras_named.split(","))) for name, extras_named in own] == [
        ("retexo-gnn", extras)
    ]
