"""Inputs of heterogeneous graphs: their tables, their partition directories, and those of DGL's."""

import shutil
from pathlib import Path
from random import Random

import mutations as mutate
import numpy as np
import torch
from hetero_support import (
    RELATIONS,
    SIZES,
    random_assignment,
    random_hetero,
    reassembled,
    write_hetero,
    write_hetero_sites,
)
from inputs import TRAIN, Input, same_files, seal
from processes import main
from support import dgl, thirds

from partitioning.directory.read_directory import find_partition_directory

CUT = (
    "app=partition_data",
    "dataset_name=file",
    "dataset_file=films",
    "num_partitions=2",
    "partition_dir=parts",
    "split=fraction",
    "split.train=0.5",
    "split.val=0.2",
    "split.test=0.3",
    "hydra.run.dir=out",
)
OF_SITES = (*TRAIN, "dataset_name=parts", "dataset_file=typed", "num_partitions=2", "model=rgcn")
NAMES = ("films", "parts", "split", "relation", "type")


def make_hetero(base: Path) -> None:
    """films: a table of every form; types: its parts; dgls: DGL's own."""
    import pandas as pd

    graph = random_hetero()
    for name in ("nodes", "edges"):
        (base / "films" / name).mkdir(parents=True)
    nodes, edges = base / "films" / "nodes", base / "films" / "edges"
    frame = pd.DataFrame(graph.nodes["movie"].features).rename(columns=str)
    frame.assign(id=graph.nodes["movie"].node_ids, label=graph.labels).to_parquet(
        nodes / "movie.parquet"
    )
    person = graph.nodes["person"]
    np.savez(
        nodes / "person.npz",
        feat=person.features,
        node_id=[f"p{number}" for number in person.node_ids],
    )
    pd.DataFrame({"id": graph.nodes["studio"].node_ids}).to_csv(nodes / "studio.csv", index=False)
    for number, (each, relation) in enumerate(graph.relations.items()):
        ends = {
            end: [
                f"p{id}" if each[place] == "person" else id
                for id in graph.nodes[each[place]].node_ids[positions]
            ]
            for end, place, positions in (("src", 0, relation.src), ("dst", 2, relation.dst))
        }
        file, table = edges / "__".join(each), pd.DataFrame(ends)
        if number % 2:
            table.to_parquet(file.with_name(f"{file.name}.parquet"))
        else:
            table.to_csv(file.with_name(f"{file.name}.csv"), index=False)
    write_hetero(base / "types", graph, 2)
    write_hetero_sites(
        base / "typed", graph, thirds(len(graph.labels)), random_assignment(graph, 2), ["a", "b"]
    )
    main((*OF_SITES, "hydra.run.dir=typed-run"))
    ends = {
        each: tuple(map(torch.from_numpy, (edges.src, edges.dst)))
        for each, edges in graph.relations.items()
    }
    g = dgl.heterograph(ends, {name: count for name, (count, _) in SIZES.items()})
    for name in ("movie", "person"):
        g.nodes[name].data["feat"] = torch.from_numpy(graph.nodes[name].features)
    of_target = {"label": graph.labels, **thirds(len(graph.labels))}
    g.nodes["movie"].data.update(
        {name: torch.from_numpy(array) for name, array in of_target.items()}
    )
    dgl.seed(1)  # else now and then a part has no studio, which DGL does not partition
    dgl.distributed.partition_graph(g, "toy", 2, str(base / "dgls" / "toy"), part_method="random")


def readable() -> str | None:
    """What is there is right in itself, say the checks of whoever reads it."""
    found = find_partition_directory([*Path("parts").iterdir()], 2)
    if not found.is_hetero:
        return "read as a plain graph"
    found.verify(range(2))
    whole = reassembled([found.read_hetero(part) for part in range(2)])
    return None if len(whole["rows"]) else "nothing"


def tables(rng: Random, base: Path) -> Input:
    """A folder of nodes/ and edges/ with a damaged file."""
    shutil.copytree(base / "films", "films")
    said = mutate.damage(Path("films").resolve(), rng)
    return Input(", ".join(said), CUT, readable, NAMES)


def typed_sites(rng: Random, base: Path) -> Input:
    """Folders of two sites of a heterogeneous graph, with odd arrays or damaged files."""
    shutil.copytree(base / "typed", "typed")
    judge, names = same_files("typed-run", base, "checkpoint/*.safetensors"), ("typed", "site")
    if rng.random() < 0.5:
        return Input(", ".join(mutate.damage(Path("typed").resolve(), rng)), OF_SITES, judge, names)
    path = Path("typed", rng.choice("ab"), "part.npz")
    arrays = dict(np.load(path))
    said = (
        f"{mutate.edit_arrays(arrays, rng)} of {path.parent.name}"
        f" {mutate.save_npz(path, arrays, rng)}"
    )
    return Input(said, OF_SITES, lambda: None if are_sites() else "no parts of a graph", names)


def are_sites() -> bool:
    """Nobody has another's node, and edges end in own nodes and begin where their owners say."""
    held = [dict(np.load(Path("typed", name, "part.npz"))) for name in "ab"]
    ids = [
        {name: arrays[f"{name}/node_id"].tolist() for name in SIZES if f"{name}/node_id" in arrays}
        for arrays in held
    ]
    for name in SIZES:
        of_type = [number for own in ids for number in own.get(name, ())]
        if len(set(of_type)) < len(of_type):
            return False
    for own, arrays in zip(ids, held, strict=True):
        for source, relation, to in RELATIONS:
            src, dst, owner = (
                arrays.get(f"{source}__{relation}__{to}/{end}", np.empty(0)).tolist()
                for end in ("src", "dst", "src_owner")
            )
            pairs = zip(src, dst, owner, strict=True)
            if not all(
                end in own[to] and begin in ids[int(at)][source] for begin, end, at in pairs
            ):
                return False
    return True


def types(rng: Random, base: Path) -> Input:
    """Its partition directory, ours or DGL's, which is checked."""
    kind = rng.choice(["types", "types", "dgls"])
    shutil.copytree(base / kind, "parts")
    place = next(path for path in Path("parts").resolve().iterdir() if path.is_dir())
    if kind == "types" and rng.random() < 0.5:
        folder = place / f"part{rng.randrange(2)}"
        folder = rng.choice(
            [folder, *sorted(folder.glob("nodes/*")), *sorted(folder.glob("edges/*"))]
        )
        arrays = {file.stem: np.load(file) for file in sorted(folder.glob("*.npy"))}
        before = set(arrays)
        said = f"sealed: {mutate.edit_arrays(arrays, rng)} of {folder.name}"
        for name in before:
            (folder / f"{name}.npy").unlink()
            if name in arrays and arrays[name].dtype.kind != "O":
                np.save(folder / f"{name}.npy", arrays[name])
        seal(place)
    else:
        said = ", ".join(mutate.damage(place, rng))
    arguments = ("app=partition_data", "verify=true", f"partition_dir={place}", "hydra.run.dir=out")
    return Input(f"{kind}: {said}", arguments, readable, ("part", "meta.json", str(place)))
