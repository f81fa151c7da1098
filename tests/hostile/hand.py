"""Single inputs that were found to fail before, written by hand."""

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import mutations as mutate
import numpy as np
import torch
from inputs import CUT, NAME, OURS, PREDICT, TRAIN, Input, override, seal, write_form
from support import dgl, dgl_directory, random_graph, thirds

from partitioning.file_io import file_checksum


def by_hand(number: int, base: Path) -> Input:
    for name in ("toy.npz", "parts", "theirs", "run", "sites"):
        shutil.copytree(base / name, name) if (base / name).is_dir() else shutil.copy(
            base / name, name
        )
    said, arguments, *prepare = HAND[number]
    for function in prepare:
        function()
    return Input(said, arguments, refused=not said.startswith("fine: "))


def with_arrays(**changed: Any) -> Callable[[], None]:
    def change() -> None:
        arrays = {**np.load("toy.npz"), **changed}
        np.savez("toy.npz", **{name: array for name, array in arrays.items() if array is not None})

    return change


def with_tensors(
    folder: str, **changed: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[], None]:
    def change() -> None:
        if folder == "parts":
            for name, function in changed.items():
                path = Path(folder, NAME, "part0", f"{name}.npy")
                np.save(path, function(torch.from_numpy(np.load(path))).numpy())
            seal(Path(folder, NAME))
            return
        path = Path(folder, NAME, "part0", "node_feat.dgl")
        tensors = dgl.data.utils.load_tensors(str(path))
        for name, function in changed.items():
            key = next(key for key in tensors if key.split("/")[-1] == name)
            tensors[key] = function(tensors[key])
        dgl.data.utils.save_tensors(str(path), tensors)

    return change


def at(path: str, mutation: mutate.Mutation) -> Callable[[], None]:
    return lambda: mutation(Path(path), Random(0))


def wide() -> None:
    """Four parts of 100 nodes and 2,000 features, and a parent whose threads have computed."""
    dgl_directory(
        Path("wide", "toy-random-vol-4").absolute(),
        random_graph(400, 1600, 2000),
        thirds(400),
        np.arange(400) % 4,
    )
    torch.set_num_threads(2)
    (torch.rand(1000, 1000) @ torch.rand(1000, 1000)).sum()


def two_columns() -> None:
    write_form(Path(), "csv", dict(np.load("toy.npz")))
    path = Path("toy-csv", "edges.csv")
    path.write_text(
        "src,dst,dst\n"
        + "".join(f"{line},0\n" for line in path.read_text(encoding="utf-8").splitlines()[1:]),
        encoding="utf-8",
    )


def nan_weights() -> None:
    from safetensors.torch import load_file, save_file

    folder = Path("run", "checkpoint")
    path = folder / "layer1.safetensors"
    save_file({name: tensor * float("nan") for name, tensor in load_file(path).items()}, path)
    content = json.loads((folder / "model.json").read_text())
    content["checksums"][path.name] = file_checksum(path)
    (folder / "model.json").write_text(json.dumps(content))


def fifo_at(path: str) -> Callable[[], None]:
    def change() -> None:
        Path(path).unlink(missing_ok=True)
        os.mkfifo(path)

    return change


def write(path: str, text: str) -> Callable[[], None]:
    def change() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")

    return change


def table(name: str, text: str) -> tuple[Callable[[], None], ...]:
    """The graph as csv tables in toy-csv/, with another text in one of them."""
    return (
        lambda: write_form(Path(), "csv", dict(np.load("toy.npz"))),
        write(f"toy-csv/{name}.csv", text),
    )


def zeros_that_unpack_to_gibibytes() -> None:
    with (
        zipfile.ZipFile("toy.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("feat.npy", "w", force_zip64=True) as member,
    ):
        for _ in range(5 * 1024):
            member.write(bytes(1 << 20))


ALIASES = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
CALLBACK = """hydra:
  callbacks:
    it:
      _target_: numpy.load
      file: toy.npz
"""
HANDLER = """hydra:
  job_logging:
    handlers:
      it: {class: logging.FileHandler, filename: written}
"""
OWN_FILES = (*OURS, "--config-dir=own", "--config-name=own")
THEIRS = (*OURS, "partition_dir=theirs")
FROM_RUN = (*PREDICT, "checkpoint_dir=run")
SITES = (*TRAIN, "dataset_name=parts", "dataset_file=sites", "num_partitions=2")
CSR = {
    "feat": None,
    "feat_data": np.ones(40),
    "feat_indices": np.zeros(40, int),
    "feat_indptr": np.arange(41),
}
META, CONFIG = f"parts/{NAME}/meta.json", f"theirs/{NAME}/toy.json"
HAND: list[tuple[Any, ...]] = [
    (
        "fine: threads that computed before DGL's files are tried",
        (*THEIRS, "partition_dir=wide", "num_partitions=4"),
        wide,
    ),
    ("layers beyond a byte", (*OURS, "num_layers=255")),
    ("fine: a short list of rounds", (*OURS, "num_layers=3", "num_rounds=[1]")),
    (
        "duplicates in a CSR matrix that add up to inf",
        CUT,
        with_arrays(
            **CSR
            | {
                "feat_data": np.full(40, 3e38),
                "feat_indptr": np.r_[0, 2, np.arange(2, 40), 40],
                "feat_shape": np.array([40, 2]),
            }
        ),
    ),
    ("feat_shape beyond all memory", CUT, with_arrays(**CSR, feat_shape=np.array([40, 2**62]))),
    ("predictions with NaN weights", FROM_RUN, nan_weights),
    *(
        (
            f"predictions with {what} orig_id",
            (*FROM_RUN, "partition_dir=theirs"),
            with_tensors("theirs", orig_id=function),
        )
        for what, function in {
            "short": lambda ids: ids[:-1],
            "doubled": lambda ids: ids * 0,
            "float": lambda ids: ids + 0.5,
        }.items()
    ),
    (
        "fine: predictions with negative orig_id",
        (*FROM_RUN, "partition_dir=theirs"),
        with_tensors("theirs", orig_id=lambda ids: -ids - 1),
    ),
    *(
        (f"orig_id sealed {what}", (*FROM_RUN,), with_tensors("parts", orig_id=function))
        for what, function in {
            "short": lambda ids: ids[:-1],
            "doubled": lambda ids: ids * 0,
        }.items()
    ),
    ("labels sealed, permuted", OURS, with_tensors("parts", label=lambda label: label.flip(0))),
    ("masks sealed, swapped", OURS, with_tensors("parts", train_mask=lambda mask: ~mask)),
    ("NaN in features sealed", OURS, with_tensors("parts", feat=lambda feat: feat * float("nan"))),
    (
        "NaN in features of DGL's",
        THEIRS,
        with_tensors("theirs", feat=lambda feat: feat * float("nan")),
    ),
    ("num_rounds=[[1]]", (*OURS, "num_rounds=[[1]]")),
    ("plan.rounds", ("app=plan", *OURS[1:], "plan.rounds=[99999999999999999999]")),
    ("a path as dataset_name", (*OURS, "dataset_name=/etc/passwd")),
    ("an optimiser that takes matrices only", (*OURS, "optimizer._target_=torch.optim.Muon")),
    ("no optimiser", (*OURS, "optimizer._target_=os.system")),
    *(
        (f"nested {path}", arguments, at(path, mutate.nested))
        for path, arguments in {
            META: OURS,
            CONFIG: THEIRS,
            "run/checkpoint/model.json": FROM_RUN,
            "sites/a/site.json": SITES,
        }.items()
    ),
    *(
        (f"{kind.__name__} {path}", arguments, at(path, kind))
        for kind in mutate.KINDS[:5]
        for path, arguments in {
            META: OURS,
            "toy.npz": CUT,
            "run/checkpoint/model.json": FROM_RUN,
            "sites/a/site.json": SITES,
            "sites/b/part.npz": SITES,
            f"theirs/{NAME}/part0/graph.dgl": THEIRS,
            "run/checkpoint/layer0.safetensors": FROM_RUN,
        }.items()
        if (kind.__name__, path) != ("remove", META)
    ),
    ("two dst columns", (*CUT, "dataset_file=toy-csv"), two_columns),
    *(
        (f"NUL in {name}", (*given, override(name, "a\0b")))
        for name, given in {
            "dataset_file": CUT,
            "partition_dir": OURS,
            "checkpoint_dir": FROM_RUN,
            "hydra.run.dir": OURS,
            "resume": OURS,
            "dataset_name": OURS,
            "split.dir": (*CUT, "split=files"),
            "partition_file": (*CUT, "partition_method=file"),
        }.items()
    ),
    (
        "more classes than memory",
        SITES,
        lambda: Path("sites/a/site.json").write_text(
            json.dumps(
                json.loads(Path("sites/a/site.json").read_text(encoding="utf-8"))
                | {"num_classes": 10**9}
            ),
            encoding="utf-8",
        ),
    ),
    (
        "a list of nodes as long as a phone book",
        OURS,
        lambda: os.environ.update(
            SLURM_NODELIST="a[1-99999999]",
            SLURM_JOB_NODELIST="a[1-99999999]",
            SLURM_PROCID="0",
            SLURM_NTASKS="2",
            SLURM_NNODES="2",
            SLURM_NODEID="0",
            SLURM_LOCALID="0",
            SLURM_STEP_ID="0",
            SLURM_JOB_ID="1",
            SLURM_STEP_NUM_TASKS="2",
            SLURM_STEP_NODELIST="a[1-99999999]",
        ),
    ),
    ("an empty hydra.run.dir", (*OURS, "hydra.run.dir=''")),
    ("a run directory below a file", (*OURS, "hydra.run.dir=toy.npz/run")),
    (
        "a member twice",
        CUT,
        lambda: mutate.save_npz(
            Path("toy.npz"),
            dict(np.load("toy.npz")),
            mock.Mock(choice=lambda among: "twice" if "twice" in among else among[0]),
        ),
    ),
    ("a run directory that is used", (*OURS, "hydra.run.dir=run")),
    ("resume from nothing", (*OURS, "resume=toy.npz")),
    (
        "resume from a FIFO",
        (*OURS, "resume=run"),
        lambda: (Path("run/state").mkdir(), os.mkfifo("run/state/run.json")),
    ),
    (
        "a finished run with other settings",
        (*OURS, "hydra.run.dir=run", "resume=auto", "hidden_dim=5"),
    ),
    *(
        (f"a FIFO in place of {path}", arguments, fifo_at(path))
        for path, arguments in {
            "toy.npz": CUT,
            META: OURS,
            f"parts/{NAME}/part0/feat.npy": OURS,
            "run/checkpoint/model.json": FROM_RUN,
            "sites/a/site.json": SITES,
            "sites/b/part.npz": SITES,
        }.items()
    ),
    ("a file that unpacks to 5 GiB", CUT, zeros_that_unpack_to_gibibytes),
    ("aliases that grow to a billion values", OWN_FILES, write("own/own.yaml", ALIASES)),
    ("a callback of a configuration file", OWN_FILES, write("own/own.yaml", CALLBACK)),
    ("a log handler of a configuration file", OWN_FILES, write("own/own.yaml", HANDLER)),
    ("a list of 20,000", (*OURS, f"num_rounds=[{','.join(['1'] * 20_000)}]")),
    ("a number of 400 digits", (*OURS, f"seed=1{'0' * 400}")),
    ("a number as a key", (*CUT, "features={1:degree}")),
    *(
        (f"tables: {what}", (*CUT, "dataset_file=toy-csv"), *table(name, text))
        for what, (name, text) in {
            "an edge to nowhere": ("edges", "src,dst\n0,99999\n"),
            "400 digits": ("edges", f"src,dst\n0,1{'0' * 400}\n"),
            "a class without end": ("labels", "id,label\n0,inf\n1,0\n"),
        }.items()
    ),
    ("an IPv6 address", (*OURS, "distributed.master_addr=::1", "parts_per_node=1", "node_rank=0")),
]
