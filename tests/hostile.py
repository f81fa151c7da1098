"""Bad input by the thousand: each is refused with status 2 and words, or does no harm.

    python tests/hostile.py [--seed 0] [--count 1600] [--only KIND [--index N]] [--jobs 2] [--limit 120]

prints how many inputs of each kind ended with which status, and lists those that ended with a traceback, a native crash,
no end within the limit, a process that stayed, a changed input file, or wrong data accepted that could be known wrong.
Exit status 1 if there are any. An input is made from seed, kind and number alone, so that one can be had again.

This process imports everything, computes nothing, and forks a child for each input: a crash is the child's.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import resource
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, forkserver, util
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import hydra  # noqa: E402
import mutations as mutate  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from support import _hydra_alone, dgl_directory, random_graph, save_npz, snapshot, thirds  # noqa: E402

from partitioning.dgl_import import dgl  # noqa: E402
from partitioning.directory.meta import content_digest  # noqa: E402
from partitioning.directory.read import find  # noqa: E402
from partitioning.files import file_checksum  # noqa: E402
from retexo.apps import evaluate, partition_data, plan, predict, report, sweep, train  # noqa: E402, F401
from retexo.cluster import launch  # noqa: E402
from retexo.cluster.heartbeat import Progress  # noqa: E402
from retexo.config.schema import CONFIG_DIR  # noqa: E402

NAME = "toy-random-vol-2"
DATA = ("dataset_name=file", "num_partitions=2")
TRAIN = ("app=train", "hidden_dim=4", "num_rounds=[3]", "stopping=none", "device=cpu", "cluster.threads=1",
         "checkpoint.every=1", "hydra.run.dir=out")  # fmt: skip
OURS = (*TRAIN, *DATA, "dataset_file=toy.npz", "partition_dir=parts")
Judge = Callable[[], str | None]
"""What is wrong with what was accepted; None where nothing is."""


@dataclass
class Input:
    """A command line, run in a folder where its files are."""

    said: str
    arguments: tuple[str, ...] | list[tuple[str, ...]]
    """Of one process, or of several that run at once."""
    judge: Judge = lambda: None
    names: tuple[str, ...] = ()
    """A refusal has to say one of these."""
    keeps: bool = True
    """Whether every file has to stay as it is."""
    refused: bool = False
    """Whether nothing else than a refusal will do."""


# --- what is damaged: made once ----------------------------------------------------------------------------------------  # noqa: E501


def make_bases(base: Path) -> None:
    base.mkdir()
    os.chdir(base)
    own_output(base.with_name("log"))
    launch.warm_up()
    save_npz(base / "toy.npz", random_graph(), thirds(40))
    arrays = dict(np.load("toy.npz"))
    for form in ("csv", "npy", "parquet", "bin"):
        write_form(base, form, arrays)
    for folder, seed in (("parts", 42), ("other", 7)):
        main(("app=partition_data", *DATA, "dataset_file=toy.npz", f"partition_dir={folder}", f"partition.seed={seed}"))
    dgl_directory(base / "theirs" / NAME, random_graph(), thirds(40), np.arange(40) % 2)
    from partitioning.sites import write_sites

    write_sites(base / "sites", random_graph(), thirds(40), np.arange(40) % 2, ["a", "b"])
    trained = [main((*OURS, "hydra.run.dir=run"))]
    trained.append(main((*OURS, "partition_dir=theirs", "hydra.run.dir=theirs-run")))
    trained.append(main((*TRAIN, "dataset_name=parts", "dataset_file=sites", "num_partitions=2", "hydra.run.dir=sites-run")))
    trained.append(main((*PREDICT, "checkpoint_dir=run", "hydra.run.dir=predicted")))
    at = Progress.at

    def dies(self: Progress, layer: int, number: int = -1) -> None:
        at(self, layer, number)
        if (layer, number) == (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)

    launch._kill_fork_server()
    with mock.patch.object(Progress, "at", dies):
        launch.warm_up()
        trained.append(main((*OURS, "hydra.run.dir=interrupted")) - 1)
    assert not any(trained), trained


PREDICT = (
    "app=predict", "predict.format=npy", *OURS[1:],
)  # fmt: skip


def write_form(folder: Path, form: str, arrays: mutate.Arrays, rng: Random | None = None) -> str:
    """The arrays as folder/toy.npz, folder/toy.bin, or tables below folder/toy-FORM; says what else was done."""
    if form == "npz":
        return mutate.save_npz(folder / "toy.npz", arrays, rng)
    if form == "bin":
        graph = dgl.graph((arrays.pop("src"), arrays.pop("dst")), num_nodes=len(arrays["label"]))
        for name, array in arrays.items():
            graph.ndata[name] = torch.from_numpy(array)
        dgl.save_graphs(str(folder / "toy.bin"), [graph])
        return ""
    place = folder / f"toy-{form}"
    place.mkdir()
    tables = {"features": arrays["feat"], "labels": arrays["label"], "edges": np.stack([arrays["src"], arrays["dst"]], 1)}
    for name in mutate.MASKS:
        if name in arrays:
            np.save(place / f"{name[:-5]}.npy", arrays[name])
    for name, table in tables.items():
        if form == "npy":
            np.save(place / f"{name}.npy", table)
        else:
            import pandas as pd

            columns = ["src", "dst"] if name == "edges" else None
            frame = pd.DataFrame(table, columns=columns).rename(columns=str)
            frame.to_csv(place / f"{name}.csv", index=False) if form == "csv" else frame.to_parquet(place / f"{name}.parquet")
    return ""


# --- kinds of inputs ---------------------------------------------------------------------------------------------------  # noqa: E501


def leaves(config: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and defaults of all settings, groups among them."""
    for key, entry in config.items():
        yield f"{prefix}{key}", entry
        if isinstance(entry, dict):
            yield from leaves(entry, f"{prefix}{key}.")


def defaults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(CONFIG_DIR.glob("*.yaml")):
        with hydra.initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            found |= dict(leaves(OmegaConf.to_container(hydra.compose(path.stem))))  # type: ignore[arg-type]
    return found | dict.fromkeys(("model.head_merge", "optimizer.momentum", "optimizer.lr", "no_such_setting", "split.sed"))


def override(name: str, value: Any) -> str:
    """As Hydra reads it: quoted."""
    return f"{name}={quoted(value)}"


def quoted(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(quoted, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{quoted(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, str):
        return "'" + value.replace("'", "\\'") + "'"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def settings(rng: Random, base: Path) -> Input:
    """Any value of any setting, up to the moment before workers are started."""
    for name in ("toy.npz", "parts", "run"):
        Path(name).symlink_to(base / name)
    chosen = rng.sample(sorted(DEFAULTS), rng.choice([1, 1, 2, 3]))
    given = []
    for name in chosen:
        found = mutate.like(DEFAULTS[name], rng)
        raw = isinstance(found, str) and rng.random() < 0.3
        prefix = rng.choice([""] * 8 + ["+", "++", "~"])
        given.append(prefix + (f"{name}={found}" if raw else override(name, found)))
    app = rng.choice(["train", "train", "train", "partition_data", "plan", "evaluate", "predict", "report"])
    fixed = {"train": OURS, "plan": OURS, "evaluate": (*PREDICT, "checkpoint_dir=run"), "predict": (*PREDICT, "checkpoint_dir=run"),
             "report": ("report.runs=run", "hydra.run.dir=out")}  # fmt: skip
    own = fixed.get(app, (*DATA, "dataset_file=toy.npz", "partition_dir=made", "hydra.run.dir=out"))
    words = {word for name in chosen for word in (name.split(".")[0], name.split(".")[-1])}

    def stop(*_: Any, **__: Any) -> None:
        raise SystemExit(0)

    launch.connect_nodes = plan._dry_run = stop  # type: ignore[assignment]
    return Input(" ".join(given), (*own, f"app={app}", *given), names=tuple(words))


def training(rng: Random, base: Path) -> Input:
    """Values that a run can have, through to its end: none may fail in a worker with a traceback."""
    Path("parts").symlink_to(base / "parts")
    choices: dict[str, list[Any]] = {
        "num_layers": [1, 2, 3, 6], "hidden_dim": [1, 2, 8, 64], "heads": [1, 2, 8], "dropout": [0, 0.5, 0.999],
        "model": ["gcn", "sage", "gat", "gin"], "num_rounds": [[0], [1], [2, 0], [3, 1, 1]], "local_epochs": [1, 3],
        "learning_rate": [[0], [1e30], [0.1, 1e-30], [1]], "weight_decay": [0, 1, 1e30], "batch_size": [None, 1, 3, 10**6],
        "trainer": ["lazy", "full_graph", "bns", "local", "sign", "fedgcn"], "gradient": ["sync", "local"],
        "gradient.precision": ["bf16"], "gradient.compression": ["powersgd"], "gradient.rank": [1, 4, 1000],
        "exchange.precision": ["bf16", "int8"], "exchange": ["plain", "exact"], "compute.precision": ["bf16"],
        "optimizer._target_": [f"torch.optim.{name}" for name in ("SGD", "LBFGS", "AdamW", "Rprop", "SparseAdam", "Muon", "Adafactor",
                                                                  "ASGD", "NAdam", "RMSprop", "Optimizer")],
        "stopping.patience": [1, None], "stopping.min_delta": [0, 1e300], "best_val_model": [False], "log_every": [1],
        "checkpoint.every": [None, 1, 100], "seed": [0, 2**32 - 1], "cluster.threads": [1, 2], "logger": ["tensorboard"],
        "measure_dv": [True], "distributed.timeout": [1, 1e6],
    }  # fmt: skip
    given = [override(name, rng.choice(choices[name])) for name in rng.sample(sorted(choices), rng.choice([2, 3, 4]))]
    return Input(" ".join(given), (*OURS, *given))


def data(form: str) -> Callable[[Random, Path], Input]:
    """A file of dataset_name=file: bytes of it are damaged, or it is written with an odd array."""

    def kind(rng: Random, base: Path) -> Input:
        name = {"npz": "toy.npz", "bin": "toy.bin"}.get(form, f"toy-{form}")
        arguments = ("app=partition_data", *DATA, f"dataset_file={name}", "partition_dir=parts", "hydra.run.dir=out")
        arrays = dict(np.load(base / "toy.npz"))
        edited = ""
        if form in ("csv", "npy", "parquet"):
            del arrays["node_id"]
        if rng.random() < 0.6:
            with contextlib.suppress(Exception):  # what cannot be written so
                edited = mutate.edit_arrays(arrays, rng)
                edited = f"{edited} {write_form(Path(), form, dict(arrays), rng)}"
                return Input(edited, arguments, lambda: None if mutate.is_graph(arrays) else "no graph", ("toy",))
            shutil.rmtree(name, ignore_errors=True)
        if (base / name).is_dir():
            shutil.copytree(base / name, name)
        else:
            Path("data").mkdir()
            shutil.copy(base / name, "data")
            arguments = (*arguments, f"dataset_file=data/{name}")
        said = mutate.damage(Path(name if (base / name).is_dir() else "data").resolve(), rng)
        return Input(", ".join(said), arguments, same_parts(base) if form == "npz" else readable, ("toy", "part"))

    return kind


def same_parts(base: Path) -> Judge:
    def judge() -> str | None:
        contents = [[part["content"] for part in json.loads((folder / "parts" / NAME / "meta.json").read_text())["parts"]]
                    for folder in (base, Path())]  # fmt: skip
        return None if contents[0] == contents[1] else "other data was read"

    return judge


def readable() -> str | None:
    """What was written is right in itself, say the checks of whoever reads it."""
    found = find([Path("parts") / NAME], 2)
    found.verify(range(2))
    return None if [found.read(part) for part in range(2)] else "nothing"


def same_files(made: str, base: Path, pattern: str) -> Judge:
    """The files of a pattern below `out` are those of a run on what was not damaged."""

    def judge() -> str | None:
        pairs = [(path, Path("out") / path.relative_to(base / made)) for path in sorted((base / made).glob(pattern))]
        assert pairs
        differ = [one.name for one, other in pairs if not other.is_file() or one.read_bytes() != other.read_bytes()]
        return f"other results: {', '.join(differ)}" if differ else None

    return judge


def ours(rng: Random, base: Path) -> Input:
    """A partition directory with checksums: whatever is done to it, what is trained on is what was written."""
    shutil.copytree(base / "parts", "parts")
    place = Path("parts", NAME).resolve()
    if rng.random() < 0.25:
        said = "sealed: " + edit_part(place, rng)[0]
        seal(place)
    else:
        said = ", ".join(mutate.damage(place, rng, base / "other" / NAME))
    judge = same_files("run", base, "checkpoint/*.safetensors") if (place / "meta.json").is_file() else lambda: None
    return Input(said, OURS, judge, ("parts",))


def edit_part(place: Path, rng: Random) -> tuple[str, mutate.Arrays]:
    """An odd array among those of the nodes of a part."""
    path = place / f"part{rng.randrange(2)}" / "node_feat.dgl"
    tensors = dgl.data.utils.load_tensors(str(path))
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    before = dict(arrays)
    said = mutate.edit_arrays(arrays, rng)
    with contextlib.suppress(TypeError, ValueError):
        changed = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        dgl.data.utils.save_tensors(str(path), changed)
        return f"{said} of {path.parent.name}", arrays
    return f"nothing ({said} cannot be written)", before


def seal(place: Path) -> None:
    """The files' checksums in meta.json are made anew."""
    meta = json.loads((place / "meta.json").read_text())
    meta["checksums"] = {name: file_checksum(place / name) for name in meta["checksums"]}
    (place / "meta.json").write_text(json.dumps(meta))


def theirs(rng: Random, base: Path) -> Input:
    """A directory of DGL's own, which has no checksums, and whose reader crashes at some files."""
    shutil.copytree(base / "theirs", "parts")
    place = Path("parts", NAME).resolve()
    if rng.random() < 0.4:
        said, arrays = edit_part(place, rng)
        arrays = {name.split("/")[-1]: array for name, array in arrays.items()}
        arrays |= {"src": np.empty(0, np.int64), "dst": np.empty(0, np.int64)}
        return Input(said, OURS, lambda: None if mutate.is_graph(arrays) else "no part of a graph", ("part",))
    return Input(", ".join(mutate.damage(place, rng)), OURS, names=("part",))


def checkpoint(rng: Random, base: Path) -> Input:
    Path("parts").symlink_to(base / "parts")
    shutil.copytree(base / "run" / "checkpoint", "trained")
    said = mutate.damage(Path("trained").resolve(), rng)
    judge = same_files("predicted", base, "predictions/*")
    return Input(", ".join(said), (*PREDICT, "checkpoint_dir=trained"), judge, ("trained",))


def sites(rng: Random, base: Path) -> Input:
    """Folders of two sites, with odd arrays or damaged files."""
    shutil.copytree(base / "sites", "sites")
    arguments = (*TRAIN, "dataset_name=parts", "dataset_file=sites", "num_partitions=2")
    judge = same_files("sites-run", base, "checkpoint/*.safetensors")
    if rng.random() < 0.5:
        return Input(", ".join(mutate.damage(Path("sites").resolve(), rng)), arguments, judge, ("sites", "site"))
    path = Path("sites", rng.choice("ab"), "part.npz")
    arrays = dict(np.load(path))
    said = mutate.edit_arrays(arrays, rng)
    said = f"{said} of {path.parent.name} {mutate.save_npz(path, arrays, rng)}"
    return Input(said, arguments, lambda: None if is_site(arrays, base) else "no part of a graph", ("sites", "site"))


def is_site(arrays: mutate.Arrays, base: Path) -> bool:
    """As is_graph, of a site: its edges end in its own nodes, and begin where their owners say."""
    owned = [set(np.load(base / "sites" / name / "part.npz")["node_id"].tolist()) for name in "ab"]
    own = set(arrays["node_id"].tolist()) if "node_id" in arrays else set()
    rank = int(len(own & owned[1]) > len(own & owned[0]))
    owned[rank] = own
    nodes = {name: array for name, array in arrays.items() if name not in ("src", "dst", "src_owner")}
    empty = np.empty(0, np.int64)
    with contextlib.suppress(KeyError, TypeError):
        pairs = zip(arrays["src"].tolist(), arrays["src_owner"].tolist(), strict=False)
        right = len(arrays["src"]) == len(arrays["dst"]) == len(arrays["src_owner"])
        right &= set(arrays["dst"].tolist()) <= own and all(src in owned[owner] for src, owner in pairs)
        right &= not owned[0] & owned[1]
        return right and ("label" not in nodes or mutate.is_graph({**nodes, "src": empty, "dst": empty}))
    return False


def resume(rng: Random, base: Path) -> Input:
    """A run that was killed: damaged, or with odd JSON under a right checksum."""
    Path("parts").symlink_to(base / "parts")
    shutil.copytree(base / "interrupted", "out")
    place = Path("out", "state").resolve()
    if rng.random() < 0.4:
        path = rng.choice(sorted(place.rglob("*.state")))
        content = path.read_bytes()[:-32]
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        inner = json.loads(header["__metadata__"]["content"])
        container, key = rng.choice([spot for spot in mutate.spots(inner) if spot[1] != "identity"])
        container[key] = mutate.like(container[key], rng)
        said = f"{path.relative_to(place)}: {key!r} is {container[key]!r}"
        header["__metadata__"]["content"] = json.dumps(inner)
        text = json.dumps(header).encode()
        sealed = len(text).to_bytes(8, "little") + text + content[8 + length :]
        path.write_bytes(sealed + hashlib.sha256(sealed).digest())
    else:
        said = ", ".join(mutate.damage(place, rng))
    judge = same_files("run", base, "checkpoint/*.safetensors")
    return Input(said, (*OURS, "resume=auto"), judge, ("state", "resume"), keeps=False)


def nodes(rng: Random, base: Path) -> Input:
    """Two nodes, one of which has other data, of another seed or with all checksums made anew."""
    Path("parts").symlink_to(base / "parts")
    shutil.copytree(base / rng.choice(["parts", "other"]), "others")
    place = Path("others", NAME).resolve()
    said = edit_part(place, rng)[0]
    with contextlib.suppress(KeyError):
        seal(place)
        meta = json.loads((place / "meta.json").read_text())
        before = json.dumps(meta["parts"])
        for number, part in enumerate(meta["parts"]):
            graph = dgl.load_graphs(str(place / f"part{number}" / "graph.dgl"))[0][0]
            held = dgl.data.utils.load_tensors(str(place / f"part{number}" / "node_feat.dgl"))
            tensors = {name.split("/")[-1]: tensor for name, tensor in held.items()}
            part["content"] = content_digest(graph.ndata["_ID"].long(), *graph.edges(order="eid"), tensors)
        (place / "meta.json").write_text(json.dumps(meta))
        if json.dumps(meta["parts"]) == before and not said.startswith("nothing"):
            said = f"nothing ({said})"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    both = [
        (*OURS, f"node_rank={rank}", f"distributed.master_port={port}", "parts_per_node=1",
         f"partition_dir={folder}", f"hydra.run.dir=out{rank}", "distributed.init_timeout=60")
        for rank, folder in enumerate(("parts", "others"))
    ]  # fmt: skip
    same = (place / "meta.json").read_bytes() == (base / "parts" / NAME / "meta.json").read_bytes()
    return Input(said, both, refused=not same and not said.startswith("nothing"))


# --- what was found before: items 1, 9 and 11 of the list of defects, by hand ------------------------------------------  # noqa: E501


def by_hand(number: int, base: Path) -> Input:
    for name in ("toy.npz", "parts", "theirs", "run", "sites"):
        shutil.copytree(base / name, name) if (base / name).is_dir() else shutil.copy(base / name, name)
    said, arguments, *prepare = HAND[number]
    for function in prepare:
        function()
    return Input(said, arguments, refused=not said.startswith("fine: "))


def with_arrays(**changed: Any) -> Callable[[], None]:
    def change() -> None:
        arrays = {**np.load("toy.npz"), **changed}
        np.savez("toy.npz", **{name: array for name, array in arrays.items() if array is not None})

    return change


def with_tensors(folder: str, **changed: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], None]:
    def change() -> None:
        path = Path(folder, NAME, "part0", "node_feat.dgl")
        tensors = dgl.data.utils.load_tensors(str(path))
        for name, function in changed.items():
            key = next(key for key in tensors if key.split("/")[-1] == name)
            tensors[key] = function(tensors[key])
        dgl.data.utils.save_tensors(str(path), tensors)
        if folder == "parts":
            seal(Path(folder, NAME))

    return change


def at(path: str, mutation: mutate.Mutation) -> Callable[[], None]:
    return lambda: mutation(Path(path), Random(0))


def wide() -> None:
    """Four parts of 100 nodes and 2,000 features, and a parent whose threads have computed."""
    dgl_directory(Path("wide", "toy-random-vol-4").absolute(), random_graph(400, 1600, 2000), thirds(400), np.arange(400) % 4)
    torch.set_num_threads(2)
    (torch.rand(1000, 1000) @ torch.rand(1000, 1000)).sum()


def two_columns() -> None:
    write_form(Path(), "csv", dict(np.load("toy.npz")))
    path = Path("toy-csv", "edges.csv")
    path.write_text("src,dst,dst\n" + "".join(f"{line},0\n" for line in path.read_text().splitlines()[1:]))


def nan_weights() -> None:
    from safetensors.torch import load_file, save_file

    folder = Path("run", "checkpoint")
    path = folder / "layer1.safetensors"
    save_file({name: tensor * float("nan") for name, tensor in load_file(path).items()}, path)
    content = json.loads((folder / "model.json").read_text())
    content["checksums"][path.name] = file_checksum(path)
    (folder / "model.json").write_text(json.dumps(content))


CUT = ("app=partition_data", *DATA, "dataset_file=toy.npz", "partition_dir=made", "hydra.run.dir=out")
THEIRS = (*OURS, "partition_dir=theirs")
FROM_RUN = (*PREDICT, "checkpoint_dir=run")
SITES = (*TRAIN, "dataset_name=parts", "dataset_file=sites", "num_partitions=2")
CSR = {"feat": None, "feat_data": np.ones(40), "feat_indices": np.zeros(40, int), "feat_indptr": np.arange(41)}
META, CONFIG = f"parts/{NAME}/meta.json", f"parts/{NAME}/{NAME}.json"
HAND: list[tuple[Any, ...]] = [
    ("fine: threads that computed before DGL's files are tried", (*THEIRS, "partition_dir=wide", "num_partitions=4"), wide),
    ("layers beyond a byte", (*OURS, "num_layers=255")),
    ("fine: a short list of rounds", (*OURS, "num_layers=3", "num_rounds=[1]")),
    ("duplicates in a CSR matrix that add up to inf", CUT,
     with_arrays(**CSR | {"feat_data": np.full(40, 3e38), "feat_indptr": np.r_[0, 2, np.arange(2, 40), 40], "feat_shape": np.array([40, 2])})),
    ("feat_shape beyond all memory", CUT, with_arrays(**CSR, feat_shape=np.array([40, 2**62]))),
    ("predictions with NaN weights", FROM_RUN, nan_weights),
    *((f"predictions with {what} orig_id", (*FROM_RUN, "partition_dir=theirs"), with_tensors("theirs", orig_id=function))
      for what, function in {"short": lambda ids: ids[:-1], "doubled": lambda ids: ids * 0, "negative": lambda ids: -ids - 1,
                             "float": lambda ids: ids + 0.5}.items()),
    *((f"orig_id sealed {what}", (*FROM_RUN,), with_tensors("parts", orig_id=function))
      for what, function in {"short": lambda ids: ids[:-1], "doubled": lambda ids: ids * 0}.items()),
    ("labels sealed, permuted", OURS, with_tensors("parts", label=lambda label: label.flip(0))),
    ("masks sealed, swapped", OURS, with_tensors("parts", train_mask=lambda mask: ~mask)),
    ("NaN in features sealed", OURS, with_tensors("parts", feat=lambda feat: feat * float("nan"))),
    ("NaN in features of DGL's", THEIRS, with_tensors("theirs", feat=lambda feat: feat * float("nan"))),
    ("num_rounds=[[1]]", (*OURS, "num_rounds=[[1]]")),
    ("plan.rounds", ("app=plan", *OURS[1:], "plan.rounds=[99999999999999999999]")),
    ("a path as dataset_name", (*OURS, "dataset_name=/etc/passwd")),
    ("an optimiser that takes matrices only", (*OURS, "optimizer._target_=torch.optim.Muon")),
    ("no optimiser", (*OURS, "optimizer._target_=os.system")),
    *((f"nested {path}", arguments, at(path, mutate.nested)) for path, arguments in {
        META: OURS, CONFIG: OURS, "run/checkpoint/model.json": FROM_RUN, "sites/a/site.json": SITES}.items()),
    *((f"{kind.__name__} {path}", arguments, at(path, kind)) for kind in mutate.KINDS[:5] for path, arguments in {
        META: OURS, "toy.npz": CUT, "run/checkpoint/model.json": FROM_RUN, "sites/a/site.json": SITES,
        "sites/b/part.npz": SITES, f"theirs/{NAME}/part0/graph.dgl": THEIRS, "run/checkpoint/layer0.safetensors": FROM_RUN,
     }.items() if (kind.__name__, path) != ("remove", META)),
    ("two dst columns", (*CUT, "dataset_file=toy-csv"), two_columns),
    *((f"NUL in {name}", (*given, override(name, "a\0b"))) for name, given in {
        "dataset_file": CUT, "partition_dir": OURS, "checkpoint_dir": FROM_RUN, "hydra.run.dir": OURS, "resume": OURS,
        "dataset_name": OURS, "split.dir": (*CUT, "split=files"), "partition_file": (*CUT, "partition_method=file")}.items()),
    ("more classes than memory", SITES, lambda: Path("sites/a/site.json").write_text(
        json.dumps(json.loads(Path("sites/a/site.json").read_text()) | {"num_classes": 10**9}))),
    ("a list of nodes as long as a phone book", OURS, lambda: os.environ.update(
        SLURM_NODELIST="a[1-99999999]", SLURM_JOB_NODELIST="a[1-99999999]", SLURM_PROCID="0", SLURM_NTASKS="2", SLURM_NNODES="2",
        SLURM_NODEID="0", SLURM_LOCALID="0", SLURM_STEP_ID="0", SLURM_JOB_ID="1", SLURM_STEP_NUM_TASKS="2", SLURM_STEP_NODELIST="a[1-99999999]")),
    ("an empty hydra.run.dir", (*OURS, "hydra.run.dir=''")),
    ("a run directory below a file", (*OURS, "hydra.run.dir=toy.npz/run")),
    ("a member twice", CUT, lambda: mutate.save_npz(Path("toy.npz"), dict(np.load("toy.npz")), mock.Mock(choice=lambda _: "twice"))),
    ("a run directory that is used", (*OURS, "hydra.run.dir=run")),
    ("resume from nothing", (*OURS, "resume=toy.npz")),
    ("resume from a FIFO", (*OURS, "resume=run"), lambda: (Path("run/state").mkdir(), os.mkfifo("run/state/run.json"))),
    ("a finished run with other settings", (*OURS, "hydra.run.dir=run", "resume=auto", "hidden_dim=5")),
]  # fmt: skip


# --- the runner --------------------------------------------------------------------------------------------------------  # noqa: E501

SHARES: dict[str, int] = {
    "settings": 500, "training": 100, "npz": 180, "csv": 90, "parquet": 70, "npy": 90, "bin": 60, "ours": 170, "theirs": 50,
    "checkpoint": 120, "sites": 120, "resume": 90, "nodes": 10,
}  # fmt: skip
"""Inputs of each kind among 1,650; those by hand come on top."""
GENERATORS: dict[str, Callable[[Random, Path], Input]] = {
    **{form: data(form) for form in ("npz", "csv", "parquet", "npy", "bin")}, "settings": settings, "training": training,
    "ours": ours, "theirs": theirs, "checkpoint": checkpoint, "sites": sites, "resume": resume, "nodes": nodes,
}  # fmt: skip


def main(arguments: tuple[str, ...]) -> int:
    """main.py in this process; what it raises instead of exiting is printed as Python does."""
    with mock.patch.object(sys, "argv", ["main.py", *arguments]), _hydra_alone():
        try:
            runpy.run_path(str(ROOT / "main.py"), run_name="__main__")
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            traceback.print_exc()
    return 1


def spawn_by_fork(_path: bytes, arguments: list[str], keep: tuple[int, ...]) -> int:
    """As multiprocessing.util.spawnv_passfds, of a process that has imported everything."""
    child = os.fork()
    if child:
        return child
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in keep:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    try:
        exec(arguments[-1], {})
    finally:
        os._exit(0)


def own_output(path: Path) -> None:
    """What this process prints goes to a file from now on, and it is the first of its group."""
    os.setsid()
    output = os.open(path, os.O_WRONLY | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    sys.stdout = open(1, "w", 1, closefd=False)
    sys.stderr = open(2, "w", 1, closefd=False, errors="backslashreplace")


def fork(work: Callable[..., int | None], *arguments: Any) -> int:
    """Do some work in a fork, whose process id is returned; exit status 99 where it raises."""
    child = os.fork()
    if child:
        return child
    status = 99
    try:
        status = work(*arguments) or 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def child(kind: str, number: int, options: argparse.Namespace, base: Path, place: Path) -> int:
    """One input from start to end, in a process of its own; its status."""
    own_output(place / "output")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    launch.warm_up()  # of a process that has not computed
    (place / "in").mkdir()
    os.chdir(place / "in")
    rng = Random(f"{options.seed} {kind} {number}")
    given = by_hand(number, base) if kind == "by hand" else GENERATORS[kind](rng, base)
    (place / "said").write_text(given.said, errors="backslashreplace")
    before = snapshot(Path())
    status = main(given.arguments) if isinstance(given.arguments, tuple) else max(at_once(given.arguments))
    sys.stdout.flush()
    said = (place / "output").read_text(errors="replace")
    (place / "wrong").write_text(" ".join(filter(None, judged(given, status, said, before))))
    return status


def at_once(commands: list[tuple[str, ...]]) -> Iterator[int]:
    """The statuses of commands that run in forks of this process."""
    forkserver._forkserver._forkserver_pid = None  # each has its own
    children = [fork(main, arguments) for arguments in commands]
    for one in children:
        yield os.waitstatus_to_exitcode(os.waitpid(one, 0)[1])


def judged(given: Input, status: int, said: str, before: dict[str, str]) -> Iterator[str | None]:
    if "Traceback (most recent call last)" in said:
        yield "traceback"
    if status not in (0, 1, 2):
        yield f"status {status}"
    if given.keeps and not before.items() <= snapshot(Path()).items():
        yield "a file was changed"
    if status == 0:
        try:
            yield "accepted" if given.refused else given.judge()
        except Exception as error:
            yield f"accepted, and {error!r}"
    error = said[said.rfind("error: ") :] if "error: " in said else ""
    if status == 2 and not error.removeprefix("error: ").strip():
        yield "no words"
    if status == 2 and given.names and not any(name in error for name in given.names):
        yield "names neither file nor setting"


def run(inputs: list[tuple[str, int]], options: argparse.Namespace, base: Path) -> Iterator[tuple[str, int, str, str, str]]:
    """Kind, number, status, what is wrong, and what was done, of each input as it ends."""
    running: dict[int, tuple[str, int, int, float, Path]] = {}
    waiting = inputs[::-1]
    while waiting or running:
        while waiting and len(running) < options.jobs:
            kind, number = waiting.pop()
            place = Path(tempfile.mkdtemp(dir=base.parent))
            one = fork(child, kind, number, options, base, place)
            running[os.pidfd_open(one)] = (kind, number, one, time.monotonic() + options.limit, place)
        connection.wait(list(running), min(end for *_, end, _ in running.values()) - time.monotonic())
        for descriptor, (kind, number, one, end, place) in list(running.items()):
            late = time.monotonic() > end
            if late or connection.wait([descriptor], 0):
                yield kind, number, *ended(one, late, place)
                if options.index is not None:
                    print((place / "output").read_text(errors="replace"))
                os.close(descriptor)
                del running[descriptor]
                shutil.rmtree(place)


def ended(one: int, late: bool, place: Path) -> tuple[str, str, str]:
    """Status, what is wrong, and what was done, of a child that has ended or is late."""
    if late:
        os.killpg(one, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(one, 0)[1])
    wrong = (place / "wrong").read_text() if (place / "wrong").exists() else "no end"
    deadline = time.monotonic() + 20
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(one, 0)
            time.sleep(0.05)
        os.killpg(one, signal.SIGKILL)
        wrong += " a process stayed"
    said = (place / "said").read_text() if (place / "said").exists() else (place / "output").read_text()[-1500:]
    name = "late" if late else signal.Signals(-status).name if status < 0 else str(status)
    return name, "late" if late else name if status < 0 else wrong.strip(), said


def table(results: list[tuple[str, int, str, str, str]]) -> str:
    statuses = sorted({status for _, _, status, _, _ in results})
    counts = Counter((kind, status) for kind, _, status, _, _ in results)
    rows = [[kind, *(counts[kind, status] for status in statuses)] for kind in dict.fromkeys(kind for kind, *_ in results)]
    rows.append(["all", *(sum(counts[kind, status] for kind, *_ in rows) for status in statuses)])
    head = ["inputs", *(f"status {status}" if status.isdigit() else status for status in statuses), "wrong", "all"]
    wrong = Counter(kind for kind, _, _, what, _ in results if what)
    for row in rows:
        row += [wrong[row[0]] if row[0] != "all" else wrong.total(), sum(row[1:])]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows))


def script() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"seed": 0, "count": 1650, "jobs": 2, "limit": 120}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=[*GENERATORS, "by hand"])
    parser.add_argument("--index", type=int)
    parser.add_argument("--base", type=Path, help="a folder for what is damaged, to be used again")
    options = parser.parse_args()
    inputs = [(kind, number) for kind, share in SHARES.items() for number in range(round(share * options.count / 1650))]
    step = max(1, round(1650 / options.count)) if options.only is None else 1
    inputs += [("by hand", number) for number in range(0, len(HAND), step)]
    if options.only is not None:
        numbers = [options.index] if options.index is not None else [n for kind, n in inputs if kind == options.only]
        inputs = [(options.only, number) for number in numbers]
    util.spawnv_passfds = spawn_by_fork
    start, results = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="retexo-hostile-") as folder:
        base = Path(folder, "base") if options.base is None else options.base.resolve()
        if not base.exists() and os.waitpid(fork(make_bases, base), 0)[1]:
            print(base.with_name("log").read_text())
            return 1
        for found in run(inputs, options, base):
            results.append(found)
            kind, number, status, wrong, said = found
            if wrong:
                print(f"{kind} {number}: {status}: {wrong}: {said}", flush=True)
    print(table(results))
    print(f"seed {options.seed}, {platform.machine()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, "
          f"{time.monotonic() - start:.0f} s")  # fmt: skip
    return int(any(wrong for *_, wrong, _ in results))


if __name__ == "__main__":
    DEFAULTS = defaults()
    sys.exit(script())
