"""Every command of README.md and docs/*.md is run for few rounds, or listed with a reason.

A command is a line in a fenced block, joined with those that its backslashes continue, that begins
with a program. The commands of a page are run in their order; a page that goes on from another is
run in that one's folder.
"""

import contextlib
import functools
import importlib
import io
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, random_graph, run_main, save_npz

PROGRAMS = (
    "python",
    "python3",
    "pip",
    "bash",
    "source",
    "git",
    "ssh",
    "torchrun",
    "sbatch",
    "docker",
    "kubectl",
    "retexo",
    "cd",
    "eval",
)
WRITES_DATA = ("docs/data.md", "docs/links.md", "docs/rare-class.md")
"""Pages whose Python writes the data that their commands read."""
CONTINUES = {"docs/inference.md": "README.md", "docs/report.md": "README.md"}
SMALL = ("num_rounds=[2]", "hidden_dim=16", "device=cpu")
FEWER = ("num_partitions=2",)
"""In the usual run, whose pages name no number of partitions."""
MACHINES = "needs several machines; "
HOURS = "takes up to hours; its page has what it said"
NOT_RUN = {
    r"python main\.py app=predict .*dataset_file=NEW": (
        "test_inference.py predicts a graph without labels"
    ),
    r"python main\.py .*=s3://": "needs a store; tests/integration/test_object_stores.py has one",
    r"python main\.py app=describe": "tests/integration/test_residency.py runs it",
    r"python main\.py --config-name edge_": (
        "tests/integration/test_labelled_edges.py has tables with labels of edges"
    ),
    r"python main\.py app=update": "tests/unit/partitioning/test_directory_update.py runs it",
    r"bash scripts/(demo|test)\.sh|source \.venv": "makes the environment; .ci/run has the tests",
    r"bash examples/sites\.sh": "tests/integration/test_examples.py runs it",
    r".* distributed\.master_addr=": (
        MACHINES + "tests/distributed/multinode has them as namespaces of the network"
    ),
    r"python scripts/launch\.py": (
        MACHINES + "tests/integration/test_cluster.py runs it with an ssh of its own"
    ),
    "torchrun": (
        "tests/integration/test_cluster.py runs it, and what it sets; `...` stands for arguments"
    ),
    "sbatch|docker|kubectl": "tests/integration/test_cluster.py reads their files",
    r"python benchmarks/": HOURS,
    r"python main\.py (.*\+experiment=paper|app=report report\.runs=outputs/paper)": HOURS,
    r"python main\.py \+hparams_search": "tests/integration/test_cli.py runs it",
    "(python -m )?pip install": "tests/integration/test_examples.py installs a wheel",
    "retexo credentials": "tests/distributed/test_tls.py has the commands",
    r"python main\.py app=serve": "runs until it is ended; tests/integration/test_service.py",
    r"python main\.py app=hub": "runs until it is ended; tests/distributed/test_tls.py",
    "retexo --help|eval": (
        "tests/integration/test_cli.py and tests/unit/test_package.py ask the same of main.py"
    ),
    r"python benchmarks/estimate\.py --one-node-a-client": (
        "tests/unit/plan/test_plan.py counts it"
    ),
}
"""Regular expressions that a command is matched with from its beginning, and why it is not run."""
LONG = (
    r"python main\.py .*\+experiment=seeds5",
    r"python main\.py .*trainer=sampled",
    r"python main\.py -m app=train dataset_name=cora model=",  # test_cli.py has a multirun
    r"python main\.py app=report report\.runs=outputs/models",
)
"""Run with --all."""


def fenced(page: str) -> list[tuple[str, str]]:
    """Language and text of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def commands_of(page: str) -> list[str]:
    """The commands of a page; a block of a shell has nothing else."""
    commands = []
    for language, text in fenced(page):
        for line in re.sub(r" *\\\n *", " ", text).splitlines():
            words = line.split()
            if words and words[0] in PROGRAMS and language in ("", "bash", "sh"):
                commands.append(line)
            elif language in ("bash", "sh"):
                assert not words or line.startswith("#"), f"{page}: {line}: not known as a command"
    return commands


PAGES = [
    "README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")),
]
COMMANDS = {page: commands_of(page) for page in PAGES}


def reason(command: str) -> str | None:
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, command)), None)


def is_long(command: str) -> bool:
    return any(re.match(pattern, command) for pattern in LONG)


def test_what_is_not_run_is_in_the_documents() -> None:
    every = [command for commands in COMMANDS.values() for command in commands]
    assert len(every) > 40
    for pattern in (*NOT_RUN, *LONG):
        assert any(re.match(pattern, command) for command in every), f"{pattern}: no such command"


FOLDERS = {
    first: [page for page in PAGES if CONTINUES.get(page, page) == first]
    for first in PAGES
    if first not in CONTINUES and any(reason(command) is None for command in COMMANDS[first])
}


USUAL = ("README.md",)
"""Pages whose commands the usual run tries; --all tries those of all."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(page, marks=[] if page in USUAL else pytest.mark.long("takes a minute"))
        for page in FOLDERS
    ],
)
def test_commands_in_a_fresh_folder(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    save_npz(folder / "mygraph.npz", random_graph())
    commands = [
        command for page in FOLDERS[first] for command in COMMANDS[page] if reason(command) is None
    ]
    if not request.config.getoption("--all"):
        commands = [command for command in commands if not is_long(command)]
    if not commands:
        pytest.skip("takes long; --all runs it")
    for page in FOLDERS[first] if first in WRITES_DATA else []:
        for language, text in fenced(page):
            if language == "python":
                exec(text, {})
    for number, command in enumerate(commands):
        run(command, folder, number, (*SMALL, *FEWER) if first in USUAL else SMALL)
    for page in FOLDERS[first]:
        for language, text in fenced(page):
            if language == "python" and "retexo.load" in text:
                exec(text, {})
            assert language != "text" or any(
                set(text.splitlines()) <= set(json.loads(file.read_text())["features"])
                for file in folder.rglob("summary.json")
            )


def run(command: str, folder: Path, number: int, small: tuple[str, ...]) -> None:
    """Run one command of the documents for few rounds; it has to end with status 0."""
    words = shlex.split(
        command.replace("RUN_DIR'), 4, 'parquet'", "predicted'), 2, 'csv'"), comments=True
    )
    if words[1] == "-c":
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(words[2], {})
        assert output.getvalue() == "[]\n", f"{command}: {output.getvalue()}"
    elif words[1] == "main.py":
        is_first = "app=predict" in words and not (folder / "predicted").exists()
        run_dir = "predicted" if is_first else f"runs/{number}"
        named = (
            []
            if any(word.startswith("hydra.run.dir=") for word in words)
            else [f"hydra.run.dir={run_dir}"]
        )
        run_main(*words[2:], *small, *named, cwd=folder)
    else:
        done = subprocess.run(
            [sys.executable, str(ROOT / words[1]), *words[2:]],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_length_of_the_pages() -> None:
    """A page that grows makes another one shorter; tables without spaces count few words."""
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    assert len(texts["README.md"].splitlines()) <= 120
    assert sum(len(text.split()) for text in texts.values()) <= 23_000


def test_site_without_broken_links(tmp_path: Path) -> None:
    """mkdocs.yml lists every page, and no page names a page, a heading or an object that is not."""
    pytest.importorskip("mkdocstrings_handlers.python", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "api.html").read_text(encoding="utf-8")
    assert "retexo.predict.predictor.Predictor" in page


OTHERS = {
    "Data",
    "None",
    "True",
    "False",
    "DistEmbedding",
    "DistGraph",
    "DistTensor",  # DGL
    "Explainer",
    "GraphConv",
    "HeteroData",
    "NeighborLoader",
    "ToUndirected",  # PyG, DGL
}
"""Classes of other libraries that the pages name."""
EXAMPLES = {"conf/trainer/edgeless.yaml", "retexo/trainers/edgeless.py"}
"""Files that a page tells the reader to write."""


@functools.cache
def names_in_code() -> tuple[set[str], set[str]]:
    """Functions and classes, and names of files, of the package, the tests and the benchmarks."""
    names, files = set(), set()
    for folder in ("retexo", "partitioning", "tests", "benchmarks", "scripts", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            files.add(path.name)
            code = path.read_text(encoding="utf-8")
            names.update(re.findall(r"^ *(?:def|class) (\w+)", code, re.MULTILINE))
    return names | OTHERS, files | {"main.py", "setup.py"}


def resolves(dotted: str) -> bool:
    """Whether `retexo.module.name` can be imported, or is a documented alias of a setting."""
    if (ROOT / (dotted.replace(".", "/") + ".py")).is_file():
        return True
    module, _, name = dotted.rpartition(".")
    if dotted.startswith("retexo.metrics."):  # the published `task._target_`
        return name in ("NodeClassification", "NodeRegression", "LinkPrediction")
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


@pytest.mark.parametrize("page", [*PAGES, "SECURITY.md", "CONTRIBUTING.md"])
def test_code_that_a_page_names_exists(page: str) -> None:
    """Files, dotted names and classes in `inline code`."""
    prose = re.sub(
        r"^```.*?^```",
        "",
        (ROOT / page).read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    known, files = names_in_code()
    folders = [ROOT, ROOT / "retexo", ROOT / "tests" / "distributed"]
    missing = []
    for span in re.findall(r"`([^`\n]+)`", prose):
        for word in (word.strip(".") for word in re.findall(r"[\w./]+", span)):
            if "/" in word and word.endswith(".py"):
                exists = any((folder / word).exists() for folder in folders) or word in EXAMPLES
            elif word.endswith(".py"):
                exists = word in files
            elif re.fullmatch(r"(retexo|partitioning)(\.\w+)+", word):
                exists = resolves(word)
            elif re.fullmatch(r"[A-Z][a-z]{2,}\w*", word):
                exists = word in known
            else:
                continue
            if not exists:
                missing.append(word)
    assert not missing


ADDED = """
import sys
from retexo.__main__ import main
from retexo.settings.compose import compose
from retexo.settings.table import help_text

settings = compose(
    ["model=graphconv", "model.reduce=mean", "trainer=edgeless", "stopping.warm_up=3"]
)
print(settings.model.own, settings.trainer.name, settings.stopping.warm_up)
print({"model.reduce=add", "stopping.warm_up=0"} <= set(help_text().split()))
print("model=graphconv" in open("docs/training.md").read())
sys.exit(main())
"""


ADDED_SETTINGS = (
    *("app=train", "dataset_name=two-rings", "num_partitions=2", "num_rounds=[3]"),
    *("model=graphconv", "model.reduce=mean"),
    *("stopping.metric=matthews", "objective=val.matthews", "exchange.precision=fp16"),
    *("smoothing.steps=0", "hydra.run.dir=run"),
)


def test_what_contributing_adds(tmp_path: Path) -> None:
    """Its diffs apply to the code as it is; what they and the trainer add is then known."""
    for part in ("retexo", "partitioning", "conf", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("img", "*.pyc"))
    blocks = fenced("CONTRIBUTING.md")
    for diff in (text for language, text in blocks if language == "diff"):
        command = ["git", "apply", "--recount", "--whitespace=nowarn", "-"]
        subprocess.run(command, cwd=tmp_path, input=diff, text=True, check=True)
    (module,) = (text for language, text in blocks if language == "python")
    (conf,) = (text for language, text in blocks if language == "yaml")
    (tmp_path / "retexo/trainers/edgeless.py").write_text(module)
    (tmp_path / "conf/trainer/edgeless.yaml").write_text(conf)
    changed = ["retexo/models/conv", "retexo/settings", "retexo/trainers", "retexo/scores.py"]
    changed += ["retexo/codecs.py", "retexo/tasks", "partitioning/datasets"]
    config = ["--config", str(ROOT / "pyproject.toml")]
    for command in (["check", "-q"], ["format", "-q", "--check"]):
        subprocess.run(["ruff", *command, *config, *changed], cwd=tmp_path, check=True)
    command = [sys.executable, "-u", "-c", ADDED, *ADDED_SETTINGS]  # prints before workers log
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" with model.reduce=mean edgeless 3\nTrue\nTrue\n")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["chosen"]["metric"] == "matthews"
    assert -1 <= summary["test"]["matthews"] <= 1
    assert summary["settings"]["exchange"]["precision"] == ["fp16", "fp16"]
    assert "Matthews correlation on test is" in done.stdout


def test_the_breaks_that_same_results_has_to_see_are_in_the_source() -> None:
    for broken in runpy.run_path(str(ROOT / "benchmarks/chains/breaks.py"))["BREAKS"]:
        assert (ROOT / broken.file).read_text().count(broken.old) == 1, broken.name
