"""Bad input to the command line: status 2 and one line that says what is wrong; every file stays as it was.

The list of mistakes in test_cli.py has the words that each message must hold; here are many more, and stranger ones.
"""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support import Ended, dgl_directory, random_graph, run_cli, run_main, save_npz, snapshot, thirds

DATA = ("dataset_name=file", "dataset_file=toy.npz", "partition_dir=parts", "num_partitions=2")
TRAIN = ("app=train", *DATA, "hidden_dim=8", "num_rounds=[2]", "device=cpu", "cluster.threads=1")
pytestmark = pytest.mark.timeout(900)  # the first test waits for all commands
CUT = ("app=partition_data", *DATA)
PART = "toy-random-vol-2"
FILES = ("meta.json", f"{PART}.json", "part0/graph.dgl", "part1/node_feat.dgl", "part1/edge_feat.dgl")

# What runs always; the others with --all, each as a process: what ends that shall end no other test.
FIRST: dict[str, tuple[str, ...]] = {
    "layers": (*TRAIN, "num_layers=1000000000"),
    "seed": (*TRAIN, "seed=9223372036854775808"),
    "interpolation": (*TRAIN, "num_rounds=${seed}"),
    "group is a number": (*TRAIN, "model=3"),
    "long name": (*CUT[:1], "dataset_name=file", f"dataset_file={'a' * 300}.npz"),
    "folder below a file": (*CUT, "partition_dir=toy.npz"),
    "run directory below a file": (*TRAIN, "hydra.run.dir=toy.npz/run"),
    "synthetic": ("app=partition_data", "dataset_name=synthetic", "synthetic.nodes=100000000000000"),
    "meta without version": (*TRAIN, "partition_dir=edited-version"),
    "meta of other parts": (*TRAIN, "partition_dir=edited-num_nodes"),
    "crash of DGL": (*TRAIN, "partition_dir=crash"),
    "meta.json is a folder": (*TRAIN, "partition_dir=folder-0"),
}
MORE: dict[str, tuple[str, ...]] = {
    **{f"{change} {FILES[number]}": (*TRAIN, f"partition_dir={change}-{number}")
       for change in ("flipped", "truncated", "missing", "folder", "swapped") for number in range(len(FILES))
       if (change, number) not in {("missing", 0), ("folder", 0)}},
    **{f"{change} again {FILES[number]}": (*CUT, f"partition_dir={change}-{number}")
       for change in ("flipped", "truncated") for number in range(len(FILES))},
    "threads": (*TRAIN, "cluster.threads=1000000000"),
    "timeout": (*TRAIN, "distributed.timeout=1e300"),
    "rate": (*TRAIN, "learning_rate=[1e300]"),
    "list is a mapping": (*TRAIN, "num_rounds={a:1}"),
    "parts": (*CUT, "num_partitions=1000000000"),
    "checkpoint is a file": ("app=evaluate", *TRAIN[1:], "checkpoint_dir=toy.npz"),
    "checkpoint is nowhere": ("app=predict", *TRAIN[1:], f"checkpoint_dir={'b' * 300}"),
    "two values": (*TRAIN, "seed=1,2"),
    "deleted": (*TRAIN, "~num_layers"),
    "missing value": (*TRAIN, "num_layers=???"),
    "root": ("app=partition_data", "dataset_name=file", "dataset_file=/"),
    "device file": ("app=partition_data", "dataset_name=file", "dataset_file=/dev/null"),
}  # fmt: skip


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def swap(path: Path) -> None:
    """The content of another file of the directory."""
    other = path.parent / ("graph.dgl" if path.name != "graph.dgl" else "node_feat.dgl")
    path.write_bytes(other.read_bytes() if other.is_file() else b"{}")


CHANGES: dict[str, Callable[[Path], None]] = {
    "flipped": flip, "truncated": truncate, "missing": Path.unlink, "folder": folder, "swapped": swap
}  # fmt: skip


def spoil(place: Path) -> None:
    """Copies of the partition directory, each with one thing wrong."""
    for change, function in CHANGES.items():
        for number, name in enumerate(FILES):
            shutil.copytree(place / "parts", place / f"{change}-{number}")
            function(place / f"{change}-{number}" / PART / name)
    for key, value in (("version", None), ("num_nodes", 41)):
        shutil.copytree(place / "parts", place / f"edited-{key}")
        path = place / f"edited-{key}" / PART / "meta.json"
        content = {**json.loads(path.read_text()), key: value}
        path.write_text(json.dumps({name: entry for name, entry in content.items() if entry is not None}))
    dgl_directory(place / "crash" / PART, random_graph(), thirds(40), np.arange(40) % 2)
    truncate(place / "crash" / PART / "part1" / "node_feat.dgl")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = Path(tmp_path_factory.mktemp("fuzz"))
    save_npz(where / "toy.npz", random_graph(), thirds(40))
    made = run_main(*CUT, cwd=where)
    assert made.rc == 0, made.output
    spoil(where)
    return where


def run_all(place: Path, commands: dict[str, tuple[str, ...]], in_process: bool) -> dict[str, Ended]:
    """How each ended; processes run three at a time."""
    before = snapshot(place)

    def run(name: str) -> Ended:
        arguments = commands[name]
        if not any(argument.startswith("hydra.run.dir") for argument in arguments):
            arguments = (*arguments, f"hydra.run.dir=runs/{name.replace(' ', '-').replace('/', '-')}")
        if in_process and name != "crash of DGL":
            return run_main(*arguments, cwd=place)
        return run_cli(*arguments, cwd=place, timeout=240)

    with ThreadPoolExecutor(1 if in_process else 3) as pool:
        found = dict(zip(commands, pool.map(run, commands), strict=True))
    assert before.items() <= snapshot(place).items(), "a file was lost or overwritten"
    return found


@pytest.fixture(scope="module")
def first(place: Path) -> dict[str, Ended]:
    return run_all(place, FIRST, in_process=True)


@pytest.fixture(scope="module")
def more(place: Path) -> dict[str, Ended]:
    return run_all(place, MORE, in_process=False)


def check(ended: Ended) -> None:
    assert ended.rc == 2, ended.output
    assert "Traceback" not in ended.output
    assert ended.stderr.strip().splitlines()[-1].startswith("error: "), ended.stderr


@pytest.mark.parametrize("name", FIRST)
def test_bad_input_ends_with_status_2(first: dict[str, Ended], name: str) -> None:
    check(first[name])


@pytest.mark.long
@pytest.mark.parametrize("name", MORE)
def test_more_bad_input_ends_with_status_2(more: dict[str, Ended], name: str) -> None:
    check(more[name])
