"""Site folders: read as the partition directory of the same assignment; mistakes are named."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from graph_files import assert_graph, assert_same, change_site, write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from support import MASKS, make_graph, random_graph, thirds, with_arrays, write_partitions

from examples.make_sites import write_sites
from partitioning.directory.partition import Partition
from partitioning.errors import InputError
from partitioning.graph.graph_data import PLAIN_TYPE, GraphData
from partitioning.sites.site_folders import find_sites
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.rounds.graph_info import GraphInfo, agree_on_graph_info
from retexo.sites.resolve_halo import resolve_halo

NAMES = ["north", "east", "south", "west"]
SAME = (
    "edges.src",
    "edges.dst",
    "features",
    "labels",
    "train_mask",
    "val_mask",
    "test_mask",
    "node_ids",
    "edges.halo_owner",
    "edges.halo_index",
    "num_inner",
    "edges.num_halo",
    "self_loops",
    "num_parts",
    "rank",
)


def parts_of(base: Path, num_parts: int) -> list[Partition]:
    """Every part, once the owners were asked; by threads."""
    folders = find_sites(base, num_parts)
    read = [folders.read_part(rank) for rank in range(num_parts)]
    sizes = tuple(partition.num_inner for partition in read)

    def worker(comm: Communicator) -> Partition:
        part = read[comm.rank]
        return replace(part, nodes={PLAIN_TYPE: resolve_halo(part.target_nodes, sizes, comm)})

    return run_threads(num_parts, worker)


def compare(graph: GraphData, assignment: np.ndarray, num_parts: int) -> None:
    masks = thirds(graph.num_nodes)
    with tempfile.TemporaryDirectory() as folder:
        directory = write_partitions(Path(folder), graph, masks, assignment, num_parts)
        write_sites(Path(folder) / "sites", graph, masks, assignment, NAMES[:num_parts])
        for rank, site_part in enumerate(parts_of(Path(folder) / "sites", num_parts)):
            # a site without nodes need not know the width
            names = SAME if len(site_part.features) else set(SAME) - {"features"}
            assert_same(site_part, directory.read_part(rank), *names)


@st.composite
def cut_graphs(draw: st.DrawFn) -> tuple[GraphData, np.ndarray, int]:
    """Graphs with ascending ids of a wide range, double edges and self loops, and an assignment."""
    ids = sorted(draw(st.sets(st.integers(0, 2**62), min_size=1, max_size=12)))
    node = st.integers(0, len(ids) - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=30))
    num_parts = draw(st.integers(1, 4))
    parts = draw(st.lists(st.integers(0, num_parts - 1), min_size=len(ids), max_size=len(ids)))
    graph = make_graph(edges, np.arange(2.0 * len(ids)).reshape(-1, 2), [0, *range(len(ids) - 1)])
    return (
        with_arrays(graph, node_ids=np.array(ids, dtype=np.int64)),
        np.array(parts, dtype=np.int64),
        num_parts,
    )


@given(cut_graphs())
@settings(max_examples=25, deadline=None)
def test_a_part_is_that_of_the_partition_directory(case: tuple[GraphData, np.ndarray, int]) -> None:
    compare(*case)


def test_multilabel_parts() -> None:
    compare(random_graph(multi=True), np.arange(40) % 3, 3)


def test_sparse_features() -> None:
    graph = random_graph()
    dense = graph.features * (np.random.default_rng(0).random(graph.features.shape) < 0.2)
    compare(
        with_arrays(graph, features=sp.csr_array(dense.astype(np.float32))), np.arange(40) % 4, 4
    )


# --- one site ----------

IDS = [70, 2**62, 5]
ARRAYS: dict[str, Any] = {
    "node_id": np.array(IDS),
    "src": np.array([5, 9, 8, 9]),
    "dst": np.array([70, 5, 5, 5]),
    "src_owner": np.array([0, 1, 1, 1]),
    "feat": np.array([[70.0, 0], [62, 0], [5, 0]]),
    "label": np.array([1, -1, 0]),
    "train_mask": np.array([True, False, False]),
    "val_mask": np.array([False, False, True]),
    "test_mask": np.array([False, False, False]),
}
DESCRIBED: dict[str, Any] = {"version": 1, "site": "north", "sites": ["north", "east"]}


def write_site(folder: Path, described: Any = None, **arrays: Any) -> Path:
    """A site folder with some fields or arrays other than those above; None leaves an array out."""
    (folder / "site.json").write_text(json.dumps({**DESCRIBED, **(described or {})}))
    np.savez(
        folder / "part.npz", **{k: v for k, v in {**ARRAYS, **arrays}.items() if v is not None}
    )
    return folder


def read_site(folder: Path, num_parts: int = 2) -> Partition:
    return find_sites(folder, num_parts).read_part(0)


def test_a_part_that_would_fill_the_memory(tmp_path: Path) -> None:
    write_site(tmp_path)
    np.savez_compressed(tmp_path / "part.npz", feat=np.zeros((1 << 20, 2)))
    with pytest.raises(InputError, match=r"part\.npz: grows by .*set dataset_max_gib=1, which is"):
        find_sites(tmp_path, 2, max_gib=0.01)


def test_rows_are_sorted_by_id(tmp_path: Path) -> None:
    part = read_site(write_site(tmp_path))
    assert_graph(part, node_ids=[5, 70, 2**62], labels=[0, 1, -1], train_mask=[0, 1, 0])
    assert_graph(part, val_mask=[1, 0, 0], features=[[5, 0], [70, 0], [62, 0]])
    # 9 -> 5 is there twice
    assert_graph(part.edges, halo_owner=[1, 1], src=[3, 4, 4, 0], dst=[0, 0, 0, 1])
    assert part.target_nodes.unresolved_halo.ids.tolist() == [8, 9]
    assert part.edges.sum_at(part.edges.dst, 3).tolist() == [3, 1, 0]


@pytest.mark.parametrize("described", [{}, {"task": "multilabel", "num_classes": 4}])
def test_a_site_without_labels(tmp_path: Path, described: Any) -> None:
    part = read_site(write_site(tmp_path, described, **dict.fromkeys(("label", *MASKS))))
    assert part.labels.isnan().all() if described else bool((part.labels == -1).all())
    assert part.labels.shape == ((3, 4) if described else (3,))
    assert not (part.train_mask | part.val_mask | part.test_mask).any()


def test_a_folder_of_folders_opens_only_the_part_that_is_asked_for(tmp_path: Path) -> None:
    graph = random_graph()
    folders = write_sites(tmp_path, graph, thirds(40), np.arange(40) % 2, ["north", "east"])
    (folders[1] / "part.npz").unlink()
    assert find_sites(tmp_path, 2).read_part(0).num_inner == 20
    with pytest.raises(InputError, match=r"east/part.npz: not a readable npz file"):
        find_sites(tmp_path, 2).read_part(1)


def test_the_digest_is_of_what_is_agreed(tmp_path: Path) -> None:
    digests = []
    for place, described in enumerate(
        ({}, {"site": "east"}, {"sites": ["north", "west"]}, {"num_classes": 2})
    ):
        folder = tmp_path / str(place)
        folder.mkdir()
        digests.append(find_sites(write_site(folder, described), 2).digest())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


# --- mistakes ----------

MISTAKES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "version": ({"version": 2}, {}, "site.json: version is 2; this program reads version 1"),
    "key": ({"classes": 2}, {}, "site.json: `classes` has no meaning here"),
    "sites-kind": ({"sites": "north"}, {}, "site.json: sites is 'north', not a list; write it as"),
    "sites-twice": ({"sites": ["north", "east", "east"]}, {}, "sites names east twice"),
    "sites-empty": ({"sites": ["north", ""]}, {}, r"sites is \['north', ''\]; expected a name for"),
    "site": ({"site": "west"}, {}, "site is 'west'; expected one of its `sites`: north, east"),
    "site-kind": ({"site": ["north"]}, {}, r"site is \['north'\]; write it as"),
    "sites-number": (
        {"sites": ["north", "east", "west"]},
        {},
        "names 3 sites, num_partitions=2; set num_partitions=3",
    ),
    "rank": (
        {"site": "east"},
        {},
        r"no folder of site north \(rank 0\), only of east \(rank 1\); set node_rank",
    ),
    "task": ({"task": "ranking"}, {}, "task=ranking: choose one of"),
    "classes": ({"num_classes": 0}, {}, r"num_classes is 0; expected an integer in \[1"),
    "many-classes": (
        {"num_classes": 10**9},
        {},
        r"num_classes is 1000000000; expected an integer in \[1, 1,000,000\]",
    ),
    "multilabel": (
        {"task": "multilabel"},
        {},
        r"num_classes is None; expected .*multilabel needs it",
    ),
    "array": (None, {"lable": [1]}, "part.npz: array `lable` has no meaning here"),
    "no-ids": (None, {"node_id": None}, "part.npz: there is no array `node_id`; found feat"),
    "no-edges": (
        None,
        dict.fromkeys(("src", "dst", "src_owner")),
        "part.npz: there is no array `src`",
    ),
    "id-twice": (
        None,
        {"node_id": np.array([70, 5, 5])},
        "`node_id`: rows 1 and 2 are both 5",
    ),
    "id-negative": (
        None,
        {"node_id": np.array([70, -3, 5])},
        "`node_id`: row 1 is -3; expected ids from 0 on",
    ),
    "id-large": (
        None,
        {"node_id": np.array([70, 2**63, 5], np.uint64)},
        r"expected integers below 2\*\*63",
    ),
    "id-text": (
        None,
        {"node_id": np.array(["a", "b", "c"])},
        "`node_id` has .*dtype <U1; expected integers",
    ),
    "objects": (
        None,
        {"node_id": np.array([1, None, 2])},
        "holds Python objects, which are never loaded",
    ),
    "lengths": (None, {"dst": np.array([70, 5, 5])}, "`dst` has 3 rows, `src` has 4"),
    "dst": (
        None,
        {"dst": np.array([70, 5, 8, 5])},
        "`dst`: row 2 is 8; expected a node of this site",
    ),
    "owner": (
        None,
        {"src_owner": np.array([0, 1, 2, 1])},
        r"`src_owner`: row 2 is 2; expected a rank in \[0, 2\)",
    ),
    "own-src": (
        None,
        {"src_owner": np.array([0, 1, 0, 1])},
        "`src`: row 2 is 8; `src_owner` says that north holds it",
    ),
    "foreign-src": (
        None,
        {"src_owner": np.array([1, 1, 1, 1])},
        "`src`: row 0 is 5; it is in `node_id`, and",
    ),
    "two-owners": (
        {"sites": ["north", "east", "west"]},
        {"src_owner": np.array([0, 1, 1, 2])},
        "names two sites for it",
    ),
    "no-features": (
        None,
        {"feat": None},
        "there is no array `feat`; expected `feat`, or all of feat_data",
    ),
    "half-csr": (None, {"feat": None, "feat_data": np.ones(1)}, "there is no array `feat_indices`"),
    "features": (
        None,
        {"feat": np.ones((2, 2))},
        r"`feat` has shape \(2, 2\); `node_id` has 3 rows",
    ),
    "features-flat": (
        None,
        {"feat": np.ones(3)},
        r"`feat` has shape \(3,\), .*; expected numbers \[nodes, features\]",
    ),
    "features-nan": (
        None,
        {"feat": np.array([[1.0], [np.nan], [0]])},
        "row 1, column 0 is nan; expected a finite",
    ),
    "features-kind": (
        None,
        {"feat": np.array([["a"], ["b"], ["c"]])},
        "`feat` has .*dtype <U1; expected numbers",
    ),
    "label-shape": (
        None,
        {"label": np.zeros((3, 2))},
        r"`label` has shape \(3, 2\), .* in one dimension",
    ),
    "label-columns": (
        {"task": "multilabel", "num_classes": 3},
        {"label": np.zeros((3, 2))},
        r"shape \(3, 2\), .* expected 3 columns of labels",
    ),
    "label-value": (
        {"num_classes": 2},
        {"label": np.array([2, -1, 0])},
        r"row 0 is 2; .*\(below 2\)",
    ),
    "label-float": (None, {"label": np.array([0.5, 0, 1])}, "row 0 is 0.5; expected integers"),
    "no-masks": (None, dict.fromkeys(MASKS), "has `label` and no train_mask, val_mask, test_mask"),
    "one-mask": (
        None,
        {"test_mask": None},
        "`test_mask` is missing, train_mask, val_mask is there",
    ),
    "mask-values": (
        None,
        {"val_mask": np.array([0, 2, 0])},
        "`val_mask`: row 1 is 2; expected a mask",
    ),
    "masks-overlap": (
        None,
        {"test_mask": np.array([1, 0, 0])},
        "both train_mask and test_mask, .* node 70",
    ),
    "mask-unlabelled": (
        None,
        {"val_mask": np.array([0, 1, 0])},
        "val_mask and have no label, .* node 46116860",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(tmp_path: Path, name: str) -> None:
    described, arrays, message = MISTAKES[name]
    write_site(tmp_path, described, **arrays)
    num_parts = len((described or {}).get("sites", [])) if name == "two-owners" else 2
    with pytest.raises(InputError, match=message) as error:
        read_site(tmp_path, num_parts)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("site.json", None, "there is no .*site.json, nor one in a folder below"),
        ("site.json", "{", "site.json: not a readable JSON file"),
        ("site.json", "[]", r"site.json: not a readable JSON file .holds a JSON list"),
        ("site.json", '{"version": 1, "site": 1, "site": 2}', "the key 'site' occurs twice"),
        ("site.json", "[" * 200_000, "site.json: not a readable JSON"),
        ("part.npz", None, "part.npz: not a readable npz file"),
        ("part.npz", b"PK no", "part.npz: not a readable npz"),
    ],
)
def test_a_spoilt_file_is_named(tmp_path: Path, name: str, content: Any, message: str) -> None:
    (write_site(tmp_path) / name).unlink()
    write_files(tmp_path, {name: content})
    with pytest.raises(InputError, match=message):
        read_site(tmp_path)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"site": "north"}, "holds several folders of one site"),
        ({"sites": ["east", "north"]}, "its sites, task, num_classes or types differ"),
    ],
)
def test_folders_that_do_not_belong_together(tmp_path: Path, described: Any, message: str) -> None:
    parts = np.arange(40) % 2
    folders = write_sites(tmp_path, random_graph(), thirds(40), parts, ["north", "east"])
    change_site(folders[1], described)
    with pytest.raises(InputError, match=message):
        find_sites(tmp_path, 2)


# --- what sites find out together ----------


def agree(base: Path) -> GraphInfo:
    """What three sites agree on; each read its own folder."""
    folders = [find_sites(base / name, 3) for name in NAMES[:3]]
    read = [folder.read_part(rank) for rank, folder in enumerate(folders)]
    return run_threads(
        3, lambda comm: agree_on_graph_info(comm, read[comm.rank], folders[comm.rank])
    )[0]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    write_sites(
        tmp_path, random_graph(), thirds(40), np.arange(40) % 2 * 2, NAMES[:3]
    )  # east has no node
    return tmp_path


def test_stated_classes_may_be_more_than_occur(three: Path) -> None:
    for name in NAMES[:3]:
        change_site(three / name, {"num_classes": 5})
    assert agree(three).num_classes == 5


def test_unequal_widths_are_named(three: Path) -> None:
    change_site(three / "south", feat=np.ones((20, 5)))
    with pytest.raises(
        InputError, match=r"rank\(s\) 2 differ from rank 0: features of another width .*6, 0, 5"
    ):
        agree(three)
