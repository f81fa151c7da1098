"""Loads ACM and DBLP of the Heterogeneous Graph Benchmark (Lv et al., KDD 2021, arXiv 2112.14936).

The test nodes are the benchmark's. It has no validation nodes: as in its own code, a fifth of its
training nodes validate, drawn here with split.seed. Tests compare with torch_geometric's reader.
"""

from pathlib import Path
from typing import Any

import numpy as np

from partitioning.datasets.given_split import masks_of
from partitioning.files.download import FETCH_AGAIN, Archive, open_published
from partitioning.files.file_io import parse_json
from partitioning.graph.array_checks import (
    Array,
    check_classes,
    check_dense,
    check_edge_weight,
    check_endpoints,
    check_unique,
    expect,
    refuse,
)
from partitioning.graph.graph_data import EdgeType, GraphData, NodeTable, Relation
from partitioning.partition_settings import DatasetSettings
from partitioning.read.raw import narrow_ends

URL = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
FILES = {
    "hgb-acm": ("ACM", "1xbJ4QE9pcDJOcALv7dYhHDCPITX2Iddz"),
    "hgb-dblp": ("DBLP", "1fLLoy559V7jJaQ_9mQEsC06VKd6Qd3SC"),
}
"""Name -> name of zip and folder, and the file's id on Google Drive."""
_NEEDED = ("info.dat", "node.dat", "link.dat", "label.dat", "label.dat.test")
VALIDATION = 0.2


def archive(name: str, folder: str) -> Archive:
    """Describe the zip, `dataset_dir`/HGB/ACM.zip; its folder is `dataset_dir`/HGB/ACM."""
    title, number = FILES[name]
    root = Path(folder) / "HGB"
    return Archive(f"{URL}{number}", root / f"{title}.zip", root / title, _NEEDED)


def load(settings: DatasetSettings, folder: Path) -> GraphData:
    """Load a data set; weights of a relation that are all 1 are left out.

    A fifth of the training nodes, drawn with split.seed, validate.
    """
    types, edge_types, num_classes = _read_info(folder / "info.dat")
    tables, node_type, position = _read_nodes(folder / "node.dat", types)
    relations = _read_relations(folder / "link.dat", edge_types, types, node_type, position)
    files = {"train": folder / "label.dat", "test": folder / "label.dat.test"}
    rows = {part: _read_labels(file, node_type, position) for part, file in files.items()}
    target = types[rows["train"][0]]
    labels = np.full(tables[target].num_nodes, -1, np.int64)
    for part, (_, nodes, classes) in rows.items():
        labels[nodes] = check_classes(classes, num_classes, str(files[part]))
    train = np.random.default_rng(settings.split.seed).permutation(rows["train"][1])
    num_val = int(len(train) * VALIDATION)
    lists = {
        "train_mask": (train[num_val:], str(files["train"])),
        "val_mask": (train[:num_val], str(files["train"])),
        "test_mask": (rows["test"][1], str(files["test"])),
    }
    masks: dict[str, Any] = dict(masks_of(lists, len(labels)))
    return GraphData(settings.dataset_name, tables, relations, target, labels, num_classes, **masks)


def _read_info(path: Path) -> tuple[dict[int, str], dict[int, EdgeType], int]:
    """Return node types and edge types by number, and the number of classes.

    A relation is called as in torch_geometric: the middle of a meaning such as paper-cite-paper,
    or `to` where that is the destination, as in paper-author. InputError for a damaged file, and
    where two relations have one name.
    """
    with open_published(path) as file:
        info = parse_json(file.read())
        types = {int(key): str(name) for key, name in info["node.dat"]["node type"].items()}
        edge_types: dict[int, EdgeType] = {}
        for key, link in info["link.dat"]["link type"].items():
            start, end, meaning = link.values()
            src, dst = types[int(start)], types[int(end)]
            name = str(meaning).split("-")[1]
            edge_types[int(key)] = (src, "to" if dst in (name, name[1:]) else name, dst)
        if len(set(edge_types.values())) < len(edge_types):
            raise ValueError("two relations have the same name")
        return types, edge_types, len(info["label.dat"]["node type"]["0"])


def _read_lines(path: Path) -> list[list[str]]:
    """Return the columns of each line, which tabs separate."""
    with open_published(path) as file:
        return [line.decode().rstrip("\r\n").split("\t") for line in file]


def _read_nodes(path: Path, types: dict[int, str]) -> tuple[dict[str, NodeTable], Array, Array]:
    """Read lines of id, name, type and, for some types, features; ids count from 0.

    InputError for a wrong line.

    Returns:
        The nodes by type; the number of each node's type [N]; each node's position in it [N].
    """
    lines = _read_lines(path)
    ids, numbers = (np.array([line[at] for line in lines]).astype(np.int64) for at in (0, 2))
    check_endpoints(ids, len(ids), str(path))
    check_unique(ids, str(path))
    refuse(numbers, ~np.isin(numbers, list(types)), str(path), f"expected a type; {FETCH_AGAIN}")
    node_type, position = np.empty((2, len(ids)), np.int64)
    node_type[ids] = numbers
    tables: dict[str, NodeTable] = {}
    for number, name in types.items():
        rows = np.flatnonzero(numbers == number)
        position[ids[rows]] = np.arange(len(rows))
        texts = [lines[row][3].split(",") for row in rows if len(lines[row]) > 3]
        features = np.zeros((len(rows), 0), np.float32)
        if texts:
            features = check_dense(np.array(texts, np.float32), len(rows), str(path))
        tables[name] = NodeTable(features, np.arange(len(rows)))
    return tables, node_type, position


def _read_relations(
    path: Path,
    edge_types: dict[int, EdgeType],
    types: dict[int, str],
    node_type: Array,
    position: Array,
) -> dict[EdgeType, Relation]:
    """Read lines of source, destination, relation and weight.

    An edge type without lines has no edges. InputError for an unknown edge type, an end that is no
    node of its type, or a wrong weight.
    """
    columns = np.array([line[:4] for line in _read_lines(path)], np.float64).reshape(-1, 4)
    ends = columns[:, :2].astype(np.int64).T
    for end_nodes in ends:
        check_endpoints(end_nodes, len(node_type), str(path))
    is_known = np.isin(columns[:, 2], list(edge_types))
    refuse(columns[:, 2], ~is_known, str(path), f"expected a relation; {FETCH_AGAIN}")
    relations: dict[EdgeType, Relation] = {}
    for number, edge_type in edge_types.items():
        rows = np.flatnonzero(columns[:, 2] == number)
        src, dst = (narrow_ends(position[end[rows]]) for end in ends)
        weight = check_edge_weight(columns[rows, 3], len(rows), f"{path}: relation {number}")
        for end, nodes_of_end in zip((edge_type[0], edge_type[2]), ends, strict=True):
            is_end = np.isin(node_type[nodes_of_end], [at for at in types if types[at] == end])
            wrong = (columns[:, 2] == number) & ~is_end
            expected = f"expected a node of type {end}; {FETCH_AGAIN}"
            refuse(nodes_of_end, wrong, str(path), expected)
        relations[edge_type] = Relation(src, dst, weight)
    return relations


def _read_labels(path: Path, node_type: Array, position: Array) -> tuple[int, Array, Array]:
    """Read lines of node, name, type and class; InputError for none or wrong ones.

    Returns:
        The number of the nodes' one type, their positions in it [K], and their classes [K].
    """
    rows = np.array([(line[0], line[2], line[3]) for line in _read_lines(path)]).astype(np.int64)
    expect(len(rows) > 0, rows, str(path), f"a line per labelled node; {FETCH_AGAIN}")
    nodes, types, classes = rows.T
    check_endpoints(nodes, len(node_type), str(path))
    check_unique(nodes, str(path))
    wrong = (types != types[:1]) | (types != node_type[nodes])
    refuse(nodes, wrong, str(path), f"expected nodes of one type; {FETCH_AGAIN}")
    return int(types[0]), position[nodes], classes
