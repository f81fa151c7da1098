"""Inputs by kind, each made from a random generator, in an empty folder, of `make_bases`."""

import contextlib
import functools
import hashlib
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import hydra
import mutations as mutate
import numpy as np
import torch
from omegaconf import OmegaConf
from processes import at_once, main, own_output
from support import dgl, dgl_directory, random_graph, save_npz, thirds

from partitioning.directory.npy_files import content_of
from partitioning.directory.read_directory import find_partition_directory
from partitioning.file_io import file_checksum
from partitioning.site_folders import write_sites
from retexo.apps import plan
from retexo.launch import fork_server, start_workers
from retexo.launch.heartbeat import Progress
from retexo.settings.schema import CONFIG_DIR

NAME = "toy-random-vol-2"
DATA = ("dataset_name=file", "num_partitions=2")
TRAIN = (
    "app=train",
    "hidden_dim=4",
    "num_rounds=[3]",
    "stopping=none",
    "device=cpu",
    "cluster.threads=1",
    "checkpoint.every=1",
    "distributed.max_restarts=0",
    "hydra.run.dir=out",
)
OURS = (*TRAIN, *DATA, "dataset_file=toy.npz", "partition_dir=parts")
PREDICT = ("app=predict", "predict.format=npy", *OURS[1:])
CUT = (
    "app=partition_data",
    *DATA,
    "dataset_file=toy.npz",
    "partition_dir=made",
    "hydra.run.dir=out",
)
Judge = Callable[[], str | None]
"""What is wrong with what was accepted; None where nothing is."""


@dataclass
class Input:
    """A command line, run in a folder where its files are."""

    said: str
    arguments: tuple[str, ...] | Callable[[], int]
    """Or what else is done, and gives a status."""
    judge: Judge = lambda: None
    names: tuple[str, ...] = ()
    """A refusal has to say one of these."""
    keeps: bool = True
    """Whether every file has to stay as it is."""
    refused: bool = False
    """Whether nothing else than a refusal will do."""


# --- what is damaged: made once ----------


def make_bases(base: Path) -> None:
    base.mkdir()
    os.chdir(base)
    own_output(base.with_name("log"))
    fork_server.warm_up()
    save_npz(base / "toy.npz", random_graph(), thirds(40))
    arrays = dict(np.load("toy.npz"))
    for form in ("csv", "npy", "parquet", "bin"):
        write_form(base, form, arrays)
    for folder, seed in (("parts", 42), ("other", 7)):
        main(
            (
                "app=partition_data",
                *DATA,
                "dataset_file=toy.npz",
                f"partition_dir={folder}",
                f"partition.seed={seed}",
            )
        )
    dgl_directory(base / "theirs" / NAME, random_graph(), thirds(40), np.arange(40) % 2)
    write_sites(base / "sites", random_graph(), thirds(40), np.arange(40) % 2, ["a", "b"])
    trained = [main((*OURS, "hydra.run.dir=run"))]
    trained.append(main((*OURS, "partition_dir=theirs", "hydra.run.dir=theirs-run")))
    trained.append(
        main(
            (
                *TRAIN,
                "dataset_name=parts",
                "dataset_file=sites",
                "num_partitions=2",
                "hydra.run.dir=sites-run",
            )
        )
    )
    trained.append(main((*PREDICT, "checkpoint_dir=run", "hydra.run.dir=predicted")))
    at = Progress.set_round

    def dies(self: Progress, layer: int, number: int = -1) -> None:
        at(self, layer, number)
        if (layer, number) == (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)

    fork_server.kill()
    with mock.patch.object(Progress, "set_round", dies):
        fork_server.warm_up()
        options = ("distributed.max_restarts=0", "hydra.run.dir=interrupted")
        trained.append(main((*OURS, *options)) - 1)
    assert not any(trained), trained


def write_form(folder: Path, form: str, arrays: mutate.Arrays, rng: Random | None = None) -> str:
    """The arrays as folder/toy.npz, folder/toy.bin, or tables below folder/toy-FORM.

    Says what else was done.
    """
    if form == "npz":
        return mutate.save_npz(folder / "toy.npz", arrays, rng)
    if form == "bin":
        if {arrays["src"].dtype.kind, arrays["dst"].dtype.kind} != {"i"}:
            raise TypeError("DGL would make integers of them")
        graph = dgl.graph((arrays.pop("src"), arrays.pop("dst")), num_nodes=len(arrays["label"]))
        for name, array in arrays.items():
            graph.ndata[name] = torch.from_numpy(array)
        dgl.save_graphs(str(folder / "toy.bin"), [graph])
        return ""
    place = folder / f"toy-{form}"
    place.mkdir()
    tables = {
        "features": arrays["feat"],
        "labels": arrays["label"],
        "edges": np.stack([arrays["src"], arrays["dst"]], 1),
    }
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
            (
                frame.to_csv(place / f"{name}.csv", index=False)
                if form == "csv"
                else frame.to_parquet(place / f"{name}.parquet")
            )
    return ""


# --- kinds of inputs ----------


def leaves(config: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and defaults of all settings, groups among them."""
    for key, entry in config.items():
        yield f"{prefix}{key}", entry
        if isinstance(entry, dict):
            yield from leaves(entry, f"{prefix}{key}.")


@functools.cache
def defaults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(CONFIG_DIR.glob("*.yaml")):
        with hydra.initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            found |= dict(leaves(OmegaConf.to_container(hydra.compose(path.stem))))  # type: ignore[arg-type]
    return found | dict.fromkeys(
        ("model.head_merge", "optimizer.momentum", "optimizer.lr", "no_such_setting", "split.sed")
    )


def override(name: str, value: Any) -> str:
    """As Hydra reads it: quoted."""
    return f"{name}={mutate.quoted(value)}"


def settings(rng: Random, base: Path) -> Input:
    """Any value of any setting, up to the moment before workers are started."""
    for name in ("toy.npz", "parts", "run"):
        Path(name).symlink_to(base / name)
    chosen = rng.sample(sorted(defaults()), rng.choice([1, 1, 2, 3]))
    given = []
    for name in chosen:
        found = mutate.like(defaults()[name], rng)
        raw = isinstance(found, str) and rng.random() < 0.3
        prefix = rng.choice([""] * 8 + ["+", "++", "~"])
        given.append(prefix + (f"{name}={found}" if raw else override(name, found)))
    app = rng.choice(
        ["train", "train", "train", "partition_data", "plan", "evaluate", "predict", "report"]
    )
    fixed = {
        "train": OURS,
        "plan": OURS,
        "evaluate": (*PREDICT, "checkpoint_dir=run"),
        "predict": (*PREDICT, "checkpoint_dir=run"),
        "report": ("report.runs=run", "hydra.run.dir=out"),
    }
    own = fixed.get(app, (*DATA, "dataset_file=toy.npz", "partition_dir=made", "hydra.run.dir=out"))
    words = {word for name in chosen for word in (name.split(".")[0], name.split(".")[-1])}

    def stop(*_: Any, **__: Any) -> None:
        raise SystemExit(0)

    start_workers.connect_nodes = plan._dry_run = stop  # type: ignore[assignment]
    return Input(" ".join(given), (*own, f"app={app}", *given), names=tuple(words))


def training(rng: Random, base: Path) -> Input:
    """Values that a run can have, through to its end: none may fail in a worker."""
    Path("parts").symlink_to(base / "parts")
    choices: dict[str, list[Any]] = {
        "num_layers": [1, 2, 3, 6],
        "hidden_dim": [1, 2, 8, 64],
        "heads": [1, 2, 8],
        "dropout": [0, 0.5, 0.999],
        "model": ["gcn", "sage", "gat", "gin"],
        "num_rounds": [[0], [1], [2, 0], [3, 1, 1]],
        "local_epochs": [1, 3],
        "learning_rate": [[0], [1e30], [0.1, 1e-30], [1]],
        "weight_decay": [0, 1, 1e30],
        "batch_size": [None, 1, 3, 10**6],
        "trainer": ["lazy", "full_graph", "bns", "local", "sign", "fedgcn"],
        "gradient": ["sync", "local"],
        "gradient.precision": ["bf16"],
        "gradient.compression": ["powersgd"],
        "gradient.rank": [1, 4, 1000],
        "exchange.precision": ["bf16", "int8", "[int8,int4]"],
        "exchange": ["plain", "exact"],
        "compute.precision": ["bf16"],
        "optimizer._target_": [
            f"torch.optim.{name}"
            for name in (
                "SGD",
                "LBFGS",
                "AdamW",
                "Rprop",
                "SparseAdam",
                "Muon",
                "Adafactor",
                "ASGD",
                "NAdam",
                "RMSprop",
                "Optimizer",
            )
        ],
        "stopping.patience": [1, None],
        "stopping.min_delta": [0, 1e300],
        "best_val_model": [False],
        "log_every": [1],
        "checkpoint.every": [None, 1, 100],
        "seed": [0, 2**32 - 1],
        "cluster.threads": [1, 2],
        "logger": ["tensorboard"],
        "measure_dv": [True],
        "distributed.timeout": [1, 1e6],
    }
    given = [
        override(name, rng.choice(choices[name]))
        for name in rng.sample(sorted(choices), rng.choice([2, 3, 4]))
    ]
    return Input(" ".join(given), (*OURS, *given))


def data(form: str) -> Callable[[Random, Path], Input]:
    """A file of dataset_name=file: bytes of it are damaged, or it is written with an odd array."""

    def kind(rng: Random, base: Path) -> Input:
        name = {"npz": "toy.npz", "bin": "toy.bin"}.get(form, f"toy-{form}")
        arguments = (
            "app=partition_data",
            *DATA,
            f"dataset_file={name}",
            "partition_dir=parts",
            "hydra.run.dir=out",
        )
        arrays = dict(np.load(base / "toy.npz"))
        edited = ""
        if form in ("csv", "npy", "parquet"):
            del arrays["node_id"]
        if rng.random() < 0.6:
            with contextlib.suppress(Exception):  # what cannot be written so
                edited = mutate.edit_arrays(arrays, rng)
                edited = f"{edited} {write_form(Path(), form, dict(arrays), rng)}"
                return Input(
                    edited,
                    arguments,
                    lambda: None if mutate.is_graph(arrays) else "no graph",
                    ("toy", "split"),
                )
            shutil.rmtree(name, ignore_errors=True)
        if (base / name).is_dir():
            shutil.copytree(base / name, name)
        else:
            Path("data").mkdir()
            shutil.copy(base / name, "data")
            arguments = (*arguments, f"dataset_file=data/{name}")
        said = mutate.damage(Path(name if (base / name).is_dir() else "data").resolve(), rng)
        return Input(
            ", ".join(said),
            arguments,
            same_parts(base) if form == "npz" else readable,
            ("toy", "part", "split"),
        )

    return kind


def same_parts(base: Path) -> Judge:
    def judge() -> str | None:
        contents = [
            [
                part["content"]
                for part in json.loads((folder / "parts" / NAME / "meta.json").read_text())["parts"]
            ]
            for folder in (base, Path())
        ]
        return None if contents[0] == contents[1] else "other data was read"

    return judge


def readable() -> str | None:
    """What was written is right in itself, say the checks of whoever reads it."""
    found = find_partition_directory([*Path("parts").iterdir()], 2)
    found.verify(range(2))
    return None if [found.read(part) for part in range(2)] else "nothing"


def same_files(made: str, base: Path, pattern: str) -> Judge:
    """The files of a pattern below `out` are those of a run on what was not damaged."""

    def judge() -> str | None:
        pairs = [
            (path, Path("out") / path.relative_to(base / made))
            for path in sorted((base / made).glob(pattern))
        ]
        assert pairs
        differ = [
            one.name
            for one, other in pairs
            if not other.is_file() or one.read_bytes() != other.read_bytes()
        ]
        return f"other results: {', '.join(differ)}" if differ else None

    return judge


def ours(rng: Random, base: Path) -> Input:
    """A partition directory with checksums, damaged: training uses only what was written."""
    shutil.copytree(base / "parts", "parts")
    place = Path("parts", NAME).resolve()
    if rng.random() < 0.25:
        said = "sealed: " + edit_part(place, rng)[0]
        seal(place)
    else:
        said = ", ".join(mutate.damage(place, rng, base / "other" / NAME))
    judge = (
        same_files("run", base, "checkpoint/*.safetensors")
        if (place / "meta.json").is_file()
        else lambda: None
    )
    return Input(said, OURS, judge, ("parts",))


def edit_part(place: Path, rng: Random) -> tuple[str, mutate.Arrays]:
    """An odd array among those of the nodes of a part."""
    folder = place / f"part{rng.randrange(2)}"
    path, own = folder / "node_feat.dgl", sorted(folder.glob("*.npy"))
    tensors = {} if own else dgl.data.utils.load_tensors(str(path))
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()} | {
        file.stem: np.load(file) for file in own
    }
    before = dict(arrays)
    said = mutate.edit_arrays(arrays, rng)
    with contextlib.suppress(TypeError, ValueError):
        for name in before if own else ():
            (folder / f"{name}.npy").unlink()
            if name in arrays:
                np.save(folder / f"{name}.npy", arrays[name])
        if own:
            return f"{said} of {folder.name}", arrays
        changed = {
            name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()
        }
        dgl.data.utils.save_tensors(str(path), changed)
        return f"{said} of {path.parent.name}", arrays
    return f"nothing ({said} cannot be written)", before


def seal(place: Path) -> None:
    """The files' checksums in meta.json are made anew."""
    meta = json.loads((place / "meta.json").read_text())
    there = [name for name in meta["checksums"] if (place / name).is_file()]
    meta["checksums"] = {name: file_checksum(place / name) for name in there}
    (place / "meta.json").write_text(json.dumps(meta))


def theirs(rng: Random, base: Path) -> Input:
    """A directory of DGL's own, which has no checksums, and whose reader crashes at some files."""
    shutil.copytree(base / "theirs", "parts")
    place = Path("parts", NAME).resolve()
    if rng.random() < 0.4:
        said, arrays = edit_part(place, rng)
        arrays = {name.split("/")[-1]: array for name, array in arrays.items()}
        arrays |= {"src": np.empty(0, np.int64), "dst": np.empty(0, np.int64)}
        return Input(
            said, OURS, lambda: None if mutate.is_graph(arrays) else "no part of a graph", ("part",)
        )
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
        return Input(
            ", ".join(mutate.damage(Path("sites").resolve(), rng)),
            arguments,
            judge,
            ("sites", "site"),
        )
    path = Path("sites", rng.choice("ab"), "part.npz")
    arrays = dict(np.load(path))
    said = mutate.edit_arrays(arrays, rng)
    said = f"{said} of {path.parent.name} {mutate.save_npz(path, arrays, rng)}"
    return Input(
        said,
        arguments,
        lambda: None if is_site(arrays, base) else "no part of a graph",
        ("sites", "site"),
    )


def is_site(arrays: mutate.Arrays, base: Path) -> bool:
    """As is_graph, of a site: its edges end in its own nodes, and begin where their owners say."""
    owned = [set(np.load(base / "sites" / name / "part.npz")["node_id"].tolist()) for name in "ab"]
    own = set(arrays["node_id"].tolist()) if "node_id" in arrays else set()
    rank = int(len(own & owned[1]) > len(own & owned[0]))
    owned[rank] = own
    nodes = {
        name: array for name, array in arrays.items() if name not in ("src", "dst", "src_owner")
    }
    empty = np.empty(0, np.int64)
    with contextlib.suppress(KeyError, TypeError):
        pairs = zip(arrays["src"].tolist(), arrays["src_owner"].tolist(), strict=False)
        right = len(arrays["src"]) == len(arrays["dst"]) == len(arrays["src_owner"])
        right &= set(arrays["dst"].tolist()) <= own and all(
            src in owned[owner] for src, owner in pairs
        )
        right &= not owned[0] & owned[1]
        return right and (
            "label" not in nodes or mutate.is_graph({**nodes, "src": empty, "dst": empty})
        )
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
        return Input(said, (*OURS, "resume=auto"), names=("state", "resume"), keeps=False)
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
            part["content"] = content_of(meta["checksums"], number)
        (place / "meta.json").write_text(json.dumps(meta))
        if json.dumps(meta["parts"]) == before and not said.startswith("nothing"):
            said = f"nothing ({said})"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    both = [
        (
            *OURS,
            f"node_rank={rank}",
            f"distributed.master_port={port}",
            "parts_per_node=1",
            f"partition_dir={folder}",
            f"hydra.run.dir=out{rank}",
            "distributed.init_timeout=60",
            "distributed.interface=lo",
        )
        for rank, folder in enumerate(("parts", "others"))
    ]
    same = (place / "meta.json").read_bytes() == (base / "parts" / NAME / "meta.json").read_bytes()
    return Input(
        said, lambda: max(at_once(both)), refused=not same and not said.startswith("nothing")
    )
