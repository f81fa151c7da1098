"""An assignment of the user's of a heterogeneous graph: a folder with a file for each type, or a
refusal by name.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hetero_support import SIZES, random_assignment, random_hetero

from partitioning.directory.meta import HeteroMeta
from partitioning.directory.read_directory import find
from partitioning.errors import InputError
from partitioning.graph_data import SEPARATOR
from retexo.apps import partition_data
from retexo.settings.compose import compose

GRAPH = random_hetero()
PARTS = random_assignment(GRAPH, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """films, tables of the graph; by, its assignment."""
    for name in ("films/nodes", "films/edges", "by"):
        (tmp_path / name).mkdir(parents=True)
    for name, table in GRAPH.nodes.items():
        arrays = {"label": GRAPH.labels} if name == GRAPH.target else {}
        arrays |= {"feat": table.features} if table.features.shape[1] else {}
        np.savez(tmp_path / "films/nodes" / f"{name}.npz", node_id=table.node_ids, **arrays)
    for each, edges in GRAPH.relations.items():
        ids = (
            GRAPH.nodes[each[end]].node_ids[ends] for end, ends in ((0, edges.src), (2, edges.dst))
        )
        np.savez(
            tmp_path / "films/edges" / f"{SEPARATOR.join(each)}.npz", src=next(ids), dst=next(ids)
        )
    np.save(tmp_path / "by/movie.npy", PARTS["movie"])
    np.save(tmp_path / "by/studio.npy", PARTS["studio"].astype(np.uint8))
    np.savetxt(tmp_path / "by/person.csv", PARTS["person"], fmt="%d")
    return tmp_path


def made(folder: Path, by: str = "by", *more: str) -> HeteroMeta:
    given = [
        "app=partition_data",
        "dataset_name=file",
        f"dataset_file={folder}/films",
        f"partition_dir={folder}/parts",
        "split=fraction",
        "split.train=0.5",
        "split.val=0.2",
        "split.test=0.3",
        "num_partitions=3",
        "features=degree",
        "partition_method=file",
        f"partition_file={folder}/{by}",
    ]
    meta = partition_data.run(compose([*given, *more]).partition)
    assert isinstance(meta, HeteroMeta)
    return meta


def test_nodes_go_where_their_files_say(folder: Path) -> None:
    directory = find([folder / "parts" / made(folder).name], 3)
    assert directory.is_hetero
    for part in map(directory.read_hetero, range(3)):
        for name, nodes in part.nodes.items():
            assert (
                nodes.node_ids.tolist()
                == GRAPH.nodes[name].node_ids[PARTS[name] == part.rank].tolist()
            )


def saved(name: str, values: np.ndarray) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, values)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda folder: (folder / "by/studio.npy").unlink(),
            r": has no studio\.npy or studio\.csv",
        ),
        (
            saved("by/studio.npy", np.zeros(4, int)),
            r"/studio\.npy: has shape \[4\], .* each of its 5 nodes",
        ),
        (
            saved("by/movie.npy", np.full(SIZES["movie"][0], 3)),
            r"/movie\.npy: row 0 is 3, outside \[0, 3\)",
        ),
        (saved("by/person.npy", PARTS["person"]), r": has person\.csv and person\.npy; remove one"),
        (
            saved("by/actor.npy", np.zeros(3, int)),
            r": actor\.npy belongs to no node type .* movie, person, studio",
        ),
    ],
    ids=["missing", "short", "large", "twice", "unknown"],
)
def test_a_wrong_file_is_named(folder: Path, change: Callable[[Path], None], said: str) -> None:
    change(folder)
    with pytest.raises(InputError, match=f"partition_file={folder}/by{said}"):
        made(folder)
    assert not (folder / "parts").exists()


@pytest.mark.parametrize("by", ["by/movie.npy", "nowhere"])
def test_a_folder_is_asked_for(folder: Path, by: str) -> None:
    with pytest.raises(
        InputError, match=r"no such folder; expected one with TYPE\.npy or TYPE\.csv"
    ):
        made(folder, by)
