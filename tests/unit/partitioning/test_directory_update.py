"""app=update: a changed directory is that of the changed graph from scratch, bit for bit.

Bad changes are named, and nothing is lost.
"""

import functools
import math
import multiprocessing
import os
import re
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from graph_files import write_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import random_graph, snapshot, thirds, with_arrays, write_partitions

from partitioning.directory import replace_directory, stored_graph, write_directory
from partitioning.directory.meta import Meta
from partitioning.directory.npy_files import node_folder
from partitioning.directory.replace_directory import writing
from partitioning.directory.write_directory import write_parts
from partitioning.errors import InputError
from partitioning.features.random_rows import random_rows
from partitioning.files import file_io
from partitioning.graph.graph_data import (
    MASKS,
    PLAIN_RELATION,
    PLAIN_TYPE,
    EdgeType,
    GraphData,
    NodeTable,
    Relation,
)
from partitioning.graph.node_names import Names, hash_names
from partitioning.partition_settings import UpdateSettings
from partitioning.update.graph_addition import encode_later_rows
from partitioning.update.place import rebalance
from partitioning.update.read_change import find_tables
from partitioning.update.update_directory import update_directory
from retexo import apps
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

CLASSES = 3
ONCE = [HealthCheck.function_scoped_fixture]
RELATIONS: list[EdgeType] = [("a", "cites", "a"), ("b", "makes", "a"), ("a", "likes", "b")]
NO_CHANGE: dict[str, Any] = dict.fromkeys(
    f"{kind}_{what}" for kind in ("new", "changed", "deleted") for what in ("nodes", "edges")
)

Tables = dict[tuple[str, Any], list[dict[str, Any]]]
"""Rows by setting, and by type or relation."""


@dataclass
class Model:
    """A graph as lists of rows in the order of its tables: what partitioning from scratch reads."""

    rng: np.random.Generator
    num_parts: int
    relations: list[EdgeType]
    widths: dict[str, int]
    named: bool = False
    weighted: bool = False
    edge_width: int = 0
    of_ids: bool = False
    nodes: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    """By type and id: feat, label and set of each node."""
    edges: dict[EdgeType, list[dict[str, Any]]] = field(default_factory=dict)
    next_id: int = 1000

    def fill(self) -> None:
        for name in self.widths:
            self.nodes[name] = {}
            for _ in range(int(self.rng.integers(1, 16))):
                self.add_node(name)
        for relation in self.relations:
            self.edges[relation] = []
            self.add_edges(relation, int(self.rng.integers(0, 40)))

    def add_node(self, name: str) -> dict[str, Any]:
        self.next_id += int(self.rng.integers(1, 5))
        row = self.values(name) | {"id": self.next_id}
        self.nodes[name][self.next_id] = row
        return row

    def values(self, name: str) -> dict[str, Any]:
        feat = self.rng.integers(-8, 8, self.widths[name]) / 4
        label = int(self.rng.integers(-1, CLASSES))
        split = self.rng.choice(["train", "val", "test", ""]) if label >= 0 else ""
        return {"feat": feat, "label": label, "split": str(split)}

    def add_edges(self, relation: EdgeType, count: int) -> list[dict[str, Any]]:
        sources, destinations = ([*self.nodes[relation[end]]] for end in (0, 2))
        new = []
        for _ in range(count if sources and destinations else 0):
            ends = int(self.rng.choice(sources)), int(self.rng.choice(destinations))
            new.append({"src": ends[0], "dst": ends[1], **self.edge_values()})
        self.edges[relation] += new
        return new

    def edge_values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if self.weighted:
            values["weight"] = int(self.rng.integers(0, 16)) / 8
        if self.edge_width:
            values["feat"] = self.rng.integers(-8, 8, self.edge_width) / 4
        return values

    def show(self, node: int) -> int | str:
        return f"n{node}" if self.named else node

    def graph(self) -> tuple[GraphData, dict[str, Any]]:
        """The graph, and its masks."""
        tables, position = {}, {}
        for name, rows in self.nodes.items():
            ids = np.array([*rows], np.int64)
            position[name] = {node: place for place, node in enumerate(rows)}
            feat = np.array([row["feat"] for row in rows.values()], np.float32)
            feat = feat.reshape(len(rows), self.widths[name])
            names = None
            if self.named:
                texts = np.array([f"n{node}" for node in rows], object)
                ids, names = hash_names(texts), Names.of(texts)
            tables[name] = NodeTable(random_rows(ids, 128) if self.of_ids else feat, ids, names)
        relations = {}
        for edge_type, edges in self.edges.items():
            src = np.array([position[edge_type[0]][edge["src"]] for edge in edges], np.int64)
            dst = np.array([position[edge_type[2]][edge["dst"]] for edge in edges], np.int64)
            weight = np.array([edge.get("weight") for edge in edges], np.float32)
            feat = np.array([edge.get("feat") for edge in edges], np.float32)
            relations[edge_type] = Relation(
                src,
                dst,
                weight if self.weighted else None,
                feat.reshape(len(edges), self.edge_width) if self.edge_width else None,
            )
        target = next(iter(self.widths))
        rows = self.nodes[target].values()
        labels = np.array([row["label"] for row in rows], np.int64)
        splits = np.array([row["split"] for row in rows])
        masks = {name: splits == name.removesuffix("_mask") for name in MASKS}
        of_ids = self.of_ids and not target
        graph = GraphData("toy", tables, relations, target, labels, CLASSES, features_of_ids=of_ids)
        return graph, masks

    def keys(self, name: str) -> list[int]:
        """Ids of the nodes of a type, in order, as a directory has them."""
        nodes = [*self.nodes[name]]
        return (
            hash_names(np.array([f"n{n}" for n in nodes], object)).tolist() if self.named else nodes
        )

    def write(self, path: Path, assignment: dict[str, np.ndarray]) -> Meta:
        graph, masks = self.graph()
        kind = "random" if self.of_ids else "given"
        request = {"features": [kind], "partition_method": "random"}
        made_by = {"request": request, "split": {}, "versions": {}}
        return write_parts(
            path,
            graph,
            masks,
            assignment,
            num_parts=self.num_parts,
            provenance=made_by,
            overwrite=True,
        )[0]

    def write_table(self, folder: Path, setting: str, name: Any, rows: list[dict[str, Any]]) -> str:
        """Write rows as the table of a setting; return the setting's value."""
        frame = pd.DataFrame(
            [
                {
                    column: self.show(value) if column in ("id", "src", "dst") else value
                    for column, value in row.items()
                    if column != "feat"
                }
                | {f"f{place}": value for place, value in enumerate(row.get("feat", ()))}
                for row in rows
            ]
        )
        target = next(iter(self.widths))
        if isinstance(name, str) and name != target:
            frame = frame.drop(columns=["label", "split"], errors="ignore")
        stem = name if isinstance(name, str) else "__".join(name)
        base = folder / setting if target else folder
        base.mkdir(parents=True, exist_ok=True)
        path = base / f"{stem if target else setting}.csv"
        frame.to_csv(path, index=False)
        return str(base if target else path)

    def write_tables(self, folder: Path, change: Tables) -> UpdateSettings:
        tables: dict[str, str] = {}
        for (setting, name), rows in change.items():
            if rows:
                tables[setting] = self.write_table(folder, setting, name, rows)
        return UpdateSettings(**(NO_CHANGE | tables))

    def mutate(self) -> Tables:
        """Change the graph at random, and return the change."""
        tables: Tables = {}
        target = next(iter(self.widths))
        for name, rows in self.nodes.items():
            training = [node for node, row in rows.items() if row["split"] == "train"][:1]
            stay = training if name == target else []
            free = self.rng.permutation([node for node in rows if node not in stay]).tolist()
            count = int(self.rng.integers(0, 4)) if len(rows) > 4 or name != target else 0
            tables["deleted_nodes", name] = [{"id": int(node)} for node in free[:count]]
            for node in free[:count]:
                del rows[node]
            has_values = self.widths[name] or name == target
            changed = free[count : count + self.rng.integers(3)] if has_values else []
            for node in changed:
                rows[node] |= self.values(name)
            tables["changed_nodes", name] = [rows[node] for node in changed]
            new = [self.add_node(name) for _ in range(self.rng.integers(0, 4))]
            tables["new_nodes", name] = new
        for relation, edges in self.edges.items():
            sources, destinations = self.nodes[relation[0]], self.nodes[relation[2]]
            edges[:] = [e for e in edges if e["src"] in sources and e["dst"] in destinations]
            pairs = Counter((edge["src"], edge["dst"]) for edge in edges)
            proper = [pair for pair in pairs if pair[0] != pair[1]]
            old = [pair for pair in proper if self.rng.random() < 0.2]
            tables["deleted_edges", relation] = [{"src": src, "dst": dst} for src, dst in old]
            edges[:] = [edge for edge in edges if (edge["src"], edge["dst"]) not in old]
            single = {pair for pair in proper if pairs[pair] == 1 and self.rng.random() < 0.2}
            changed_edges = [edge for edge in edges if (edge["src"], edge["dst"]) in single]
            if self.weighted or self.edge_width:
                for edge in changed_edges:
                    edge |= self.edge_values()
                tables["changed_edges", relation] = changed_edges
            num_new = int(self.rng.integers(0, 12))
            tables["new_edges", relation] = self.add_edges(relation, num_new)
        return tables


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time of a small update."""
    monkeypatch.setattr("partitioning.files.file_io._sync", lambda path: None)


def assignment_of(path: Path, model: Model) -> dict[str, np.ndarray]:
    """The partition of each node of the model, as a directory has it."""
    parts_by_type = {}
    for name in model.widths:
        part_of = {
            int(node): part
            for part in range(model.num_parts)
            for node in np.load(node_folder(path / f"part{part}", name) / "orig_id.npy")
        }
        parts_by_type[name] = np.array([part_of[node] for node in model.keys(name)], np.int64)
    return parts_by_type


def contents(path: Path) -> dict[str, bytes]:
    return {
        file.relative_to(path).as_posix(): file.read_bytes() for file in sorted(path.rglob("*.npy"))
    }


def make(seed: int, kind: str, num_parts: int) -> Model:
    rng = np.random.default_rng(seed)
    hetero = kind == "hetero"
    model = Model(
        rng,
        num_parts,
        RELATIONS if hetero else [PLAIN_RELATION],
        {"a": 2, "b": 1} if hetero else {"": 128 if kind == "of_ids" else 3},
        named=kind == "named",
        weighted=kind == "edge_data",
        edge_width=2 if kind == "edge_data" else 0,
        of_ids=kind == "of_ids",
    )
    model.fill()
    return model


@settings(deadline=None, max_examples=30, suppress_health_check=ONCE)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["plain", "named", "edge_data", "hetero"]),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_updates_equal_partitioning_from_scratch(
    tmp_path: Path, seed: int, kind: str, num_parts: int, steps: int
) -> None:
    model = make(seed, kind, num_parts)
    path, scratch = tmp_path / "graph", tmp_path / "scratch"
    for folder in (path, scratch, tmp_path / "tables"):
        shutil.rmtree(folder, ignore_errors=True)
    model.write(
        path,
        {name: model.rng.integers(num_parts, size=len(rows)) for name, rows in model.nodes.items()},
    )
    for step in range(steps):
        change = model.write_tables(tmp_path / "tables" / str(step), model.mutate())
        if change == UpdateSettings(**NO_CHANGE):
            continue
        updated = update_directory(path, change, "test")[0]
        from_scratch = model.write(scratch, assignment_of(path, model))
        assert contents(path) == contents(scratch)
        for name in ("num_nodes", "cut_edges", "checksums", "types", "relations"):
            assert getattr(updated, name, None) == getattr(from_scratch, name, None), name
        assert stored_graph.read_meta(path).first_damaged(path) is None


@pytest.mark.parametrize("kind", ["edge_data", "of_ids", "hetero"])
def test_rebalancing_moves_few_nodes_and_keeps_the_graph(tmp_path: Path, kind: str) -> None:
    model = make(5, kind, 3)
    target = next(iter(model.widths))
    while len(model.nodes[target]) < 60:
        model.add_node(target)
    groups = np.array_split([*model.nodes[target]], 3)
    for relation in model.relations[:1]:  # three groups that hardly know each other
        for group in groups:
            ends = model.rng.choice(group, (120, 2)).tolist()
            model.edges[relation] += [
                {"src": src, "dst": dst, **model.edge_values()} for src, dst in ends if src != dst
            ]
    for relation in model.relations:
        model.edges[relation] = [
            edge for edge in model.edges[relation] if edge["src"] != edge["dst"]
        ]
    parts = {name: model.rng.integers(3, size=len(rows)) for name, rows in model.nodes.items()}
    parts[target] = np.repeat([0, 1, 2], [len(group) for group in groups])
    parts[target][[0, 25, 26, 50, 51, 52]] = [1, 0, 0, 0, 0, 0]  # six strayed; part 0 is too large
    path = tmp_path / "graph"
    loop = {"src": int(groups[0][0]), "dst": int(groups[0][0]), **model.edge_values()}
    model.edges[model.relations[0]].append(loop)
    before = model.write(path, parts)
    for name, rows in model.nodes.items():  # in the order of the directory
        ordered = np.array([*rows])[np.argsort(parts[name], kind="stable")]
        model.nodes[name] = {int(node): rows[int(node)] for node in ordered}
    overrides = [f"partition.from={path}"]
    updated = apps.run(compose(["app=partition_data", *overrides]), tmp_path)
    moved = updated.history[-1]["moved"]
    assert 0 < moved <= 12
    assert updated.cut_edges < before.cut_edges / 2
    assert updated.num_edges == before.num_edges  # with the self loop
    assert max(part.nodes for part in updated.parts) <= max(part.nodes for part in before.parts)
    model.write(tmp_path / "scratch", assignment_of(path, model))
    assert contents(path) == contents(tmp_path / "scratch")


def test_a_move_may_make_another_one_worth_while(tmp_path: Path) -> None:
    """Node 0 has three neighbours in part 1, and node 1 has two edges to node 0, one to node 2."""
    src, dst = [40, 41, 42, 0, 1, 2], [0, 0, 0, 1, 0, 1]
    graph = with_arrays(random_graph(80), src=np.array(src), dst=np.array(dst))
    directory = write_partitions(tmp_path, graph, thirds(80), np.repeat([0, 1], 40), 2)
    stored = stored_graph.read_graph(directory.path, directory.meta)
    (parts,) = rebalance(stored).values()
    assert np.flatnonzero(parts != np.repeat([0, 1], 40)).tolist() == [0, 1]


NODES: dict[str, list[Any]] = {
    "id": ["ann", "bob", "cid", "dan", "eve", "fay"],
    "age": [31.0, 25.5, 40.0, 22.0, 35.0, 50.0],
}
NODES |= {
    "town": ["x", "y", "x", "z", "y", "x"],
    "label": ["red", "blue", "red", "blue", "red", "blue"],
    "split": ["train", "train", "train", "train", "val", "test"],
}
EDGES = [("ann", "bob", 1.0), ("bob", "cid", 0.5), ("cid", "dan", 2.0), ("eve", "fay", 1.5)]
MADE = ["dataset_name=file", "symmetrize=true", "app=partition_data", "split=given"]


def write_folder(folder: Path, nodes: pd.DataFrame, edges: list[tuple[Any, ...]]) -> str:
    links = pd.DataFrame(edges, columns=["src", "dst", "weight"])
    return f"dataset_file={write_files(folder, {'nodes.csv': nodes, 'edges.csv': links})}"


def make_directory(
    folder: Path, nodes: pd.DataFrame, edges: list[tuple[Any, ...]], *overrides: str
) -> Path:
    """Partition the tables; return the directory."""
    data = [write_folder(folder / "people", nodes, edges), f"partition_dir={folder / 'parts'}"]
    apps.run(compose([*MADE, *data, *overrides]), folder)
    return next((folder / "parts").glob("people-*"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory of two parts made from tables with names, categories and classes."""
    return make_directory(tmp_path, pd.DataFrame(NODES), EDGES, "num_partitions=2")


@functools.cache
def update_settings(path: Path) -> Settings:
    """Without changes, once for each directory: Hydra takes a third of a second."""
    return compose(["app=update", f"partition_dir={path}"])


def update(path: Path, **fields: Path | str | bool) -> Any:
    settings = update_settings(path)
    changes = {name: str(of) if isinstance(of, Path) else of for name, of in fields.items()}
    settings = replace(settings, update=replace(settings.update, **changes))
    return apps.run(settings, path.parent)


def write_csv(path: Path, text: str) -> Path:
    path.write_text(text.replace(" ", "\n") + "\n", encoding="utf-8")
    return path


def test_tables_are_read_as_those_of_the_graph(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = pd.DataFrame(NODES)
    new_edges = "src,dst,weight gus,ann,3.0 hal,gus,4.0 eve,gus,0.25"
    update(
        path,
        new_nodes=write_csv(tmp_path / "a.csv", "town,id,age,label x,gus,28.5,blue q,hal,,"),
        changed_nodes=write_csv(tmp_path / "b.csv", "id,age,town,label eve,36.5,z,blue"),
        deleted_nodes=write_csv(tmp_path / "c.csv", "id fay"),
        new_edges=write_csv(tmp_path / "d.csv", new_edges),
        changed_edges=write_csv(tmp_path / "e.csv", "dst,src,weight bob,ann,9.0"),
        deleted_edges=write_csv(tmp_path / "f.csv", "src,dst dan,cid"),
    )
    printed = capsys.readouterr().out
    assert "2 new nodes, 1 changed nodes, 1 deleted nodes" in printed
    assert "are in no set of the split" in printed
    now = nodes[nodes.id != "fay"].set_index("id")
    now.loc["eve", ["age", "town", "label"]] = [36.5, "z", "blue"]
    now.loc["gus"], now.loc["hal"] = [28.5, "x", "blue", None], [None, "q", None, None]
    edges = [("ann", "bob", 9.0), *EDGES[1:2]]
    edges += [("gus", "ann", 3.0), ("hal", "gus", 4.0), ("eve", "gus", 0.25)]
    dataset_file = write_folder(tmp_path / "again", now.reset_index(), edges)
    part_of = {
        name: part
        for part in range(2)
        for name in Names.read(path / f"part{part}").tolist()  # type: ignore[union-attr]
    }
    np.save(tmp_path / "of.npy", [part_of[name] for name in now.index])
    scratch = ["partition_method=file", f"partition_file={tmp_path / 'of.npy'}", "num_partitions=2"]
    apps.run(
        compose([*MADE, dataset_file, f"partition_dir={tmp_path / 'scratch'}", *scratch]), tmp_path
    )
    assert contents(path) == contents(tmp_path / "scratch" / "again-file-vol-2")


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "no change": ({}, "nothing to change"),
    "no file": ({"new_nodes": "-"}, "no such file"),
    "unknown end": ({"new_edges": "src,dst ann,bob ann,zoe"}, "row 1 is zoe"),
    "deleted end": (
        {"new_edges": "src,dst,weight ann,fay,1", "deleted_nodes": "id fay"},
        "fay for instance",
    ),
    "no such edge": ({"deleted_edges": "src,dst ann,fay"}, "is not in the graph; leave it out"),
    "no weight": ({"changed_edges": "src,dst ann,bob"}, "neither weights nor features"),
    "new edge without weight": (
        {"new_edges": "src,dst ann,fay"},
        "new_edges.csv: no column `weight`, and the edges of the graph have weights; add it",
    ),
    "new edge with a blank weight": (
        {"new_edges": "src,dst,weight ann,fay,2 ann,cid,"},
        "column `weight`, row 1 is blank",
    ),
    "edge twice": ({"deleted_edges": "src,dst ann,bob ann,bob"}, "is there twice"),
    "in two tables": (
        {"deleted_edges": "src,dst ann,bob", "changed_edges": "src,dst,weight ann,bob,2"},
        "is in update.deleted_edges, too",
    ),
    "new id known": ({"new_nodes": "id,age,town ann,3,x"}, "row 0 is ann; in the graph already"),
    "id twice": ({"new_nodes": "id,age,town kim,3,x kim,4,x"}, "rows 0 and 1 are both kim"),
    "unknown changed": ({"changed_nodes": "id,age,town kim,3,x"}, "goes into update.new_nodes"),
    "unknown deleted": ({"deleted_nodes": "id kim"}, "row 0 is kim"),
    "changed and deleted": (
        {"deleted_nodes": "id ann", "changed_nodes": "id,age,town ann,3,x"},
        "row 0 is ann; deleted by",
    ),
    "no columns": ({"new_nodes": "id kim"}, "no column `age`"),
    "missing column": ({"new_nodes": "id,age kim,3"}, "no column `town`"),
    "odd column": ({"new_nodes": "id,age,town kim,old,x"}, "age"),
    "no ids": ({"new_nodes": "age,town 3,x"}, "no column of ids"),
    "new class": ({"new_nodes": "id,age,town,label kim,3,x,green"}, "row 0 is green"),
    "split without label": ({"new_nodes": "id,age,town,split kim,3,x,train"}, "have no label"),
    "huge new": (
        {"new_nodes": "id,age,town kim,3,x lee,1e308,x"},
        "new_nodes.csv: column `age`, row 1 is 1e+308",
    ),
    "huge changed": (
        {"changed_nodes": "id,age,town ann,-1e300,x"},
        "column `age`, row 0 is -1e+300",
    ),
    "beyond float32": ({"changed_nodes": "id,age,town ann,1e42,x"}, "`age`, row 0 is 1e+42"),
    "huge weight": ({"new_edges": "src,dst,weight ann,cid,1e308"}, "`weight`: row 0 is 1e+308"),
    "all training nodes deleted": ({"deleted_nodes": "id ann bob cid dan"}, "no training node"),
    "all deleted": ({"deleted_nodes": "id ann bob cid dan eve fay"}, "no node would be left"),
}


@pytest.mark.parametrize("kind", ["random", "[given,degree]"])
def test_features_that_are_not_of_a_table_alone_are_refused(tmp_path: Path, kind: str) -> None:
    path = make_directory(tmp_path, pd.DataFrame(NODES), EDGES, f"features={kind}")
    deleted = write_csv(tmp_path / "deleted.csv", "id ann")
    assert_refused(path, "not of a table alone", deleted_nodes=deleted)


def test_words_of_boolean_labels_are_their_classes(tmp_path: Path) -> None:
    nodes = pd.DataFrame(NODES).assign(label=[True, False] * (len(NODES["id"]) // 2))
    path = make_directory(tmp_path, nodes, EDGES, "num_partitions=1")
    text = "id,age,town,label gus,3,x,True hal,3,x,False"
    update(path, new_nodes=write_csv(tmp_path / "new.csv", text))
    part = node_folder(path / "part0", PLAIN_TYPE)
    names = Names.read(part)
    labels = dict(zip(names.tolist(), np.load(part / "label.npy").tolist(), strict=True))
    assert (labels["gus"], labels["hal"]) == (1, 0)


def test_new_nodes_have_all_columns_of_labels(tmp_path: Path) -> None:
    nodes = pd.DataFrame(NODES).drop(columns="label").assign(is_a=[0, 1] * 3, is_b=[0, 1, 1] * 2)
    path = make_directory(tmp_path, nodes, EDGES, "num_partitions=1", "columns.label=[is_*]")
    change = write_csv(tmp_path / "new.csv", "id,age,town,is_a gus,3,x,1")
    assert_refused(
        path, r"`is_a` has shape \(1,\), .* expected 2 columns of labels", new_nodes=change
    )


def test_edges_of_new_nodes_are_told_apart(tmp_path: Path) -> None:
    nodes = pd.DataFrame(NODES).assign(id=range(len(NODES["id"])))
    edges = [(0, 1, 2.0), (2, 3, 1.0)]
    path = make_directory(tmp_path, nodes, edges, "num_partitions=1", "duplicates=merge")
    count = len(nodes)
    new_edges = f"src,dst,weight 3,{count + 1},1 4,0,1 4,1,1"
    update(
        path,
        new_nodes=write_csv(tmp_path / "a.csv", f"id,age,town {count},3,x {count + 1},3,x"),
        new_edges=write_csv(tmp_path / "b.csv", new_edges),
    )
    updated = Meta.read(path)
    assert updated.num_edges > len(edges)
    again = update(  # an edge that the same change deletes may be there
        path,
        deleted_edges=write_csv(tmp_path / "c.csv", "src,dst 0,1"),
        new_edges=write_csv(tmp_path / "d.csv", "src,dst,weight 0,1,5"),
    )
    assert again.num_edges == updated.num_edges
    with pytest.raises(InputError, match="between 0 and 4 is in the graph already"):
        update(path, new_edges=write_csv(tmp_path / "e.csv", "src,dst,weight 0,4,5"))
    with pytest.raises(InputError, match="its ids are names; those of the directory are integers"):
        update(path, new_nodes=write_csv(tmp_path / "f.csv", "id,age,town NaN,3,x 90,3,x"))


def test_the_table_of_a_type_is_not_of_a_type_with_a_shorter_name(tmp_path: Path) -> None:
    write_csv(tmp_path / "user.vip.csv", "id 1")
    table = write_csv(tmp_path / "user.csv.gz", "id 1")
    (tmp_path / ".DS_Store").touch()
    meta: Any = SimpleNamespace(node_counts=["user", "user.vip"], edge_types=[])
    settings_given = UpdateSettings(**(NO_CHANGE | {"new_nodes": str(tmp_path)}))
    assert find_tables(settings_given, meta)["new_nodes", "user"] == table
    table.unlink()
    assert ("new_nodes", "user") not in find_tables(settings_given, meta)


@pytest.mark.parametrize("name", ["edges.npy", "edges.npz", "edges.xlsx"])
def test_a_change_in_another_format_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    meta: Any = SimpleNamespace(node_counts=[PLAIN_TYPE], edge_types=[PLAIN_RELATION])
    settings_given = UpdateSettings(**(NO_CHANGE | {"new_edges": str(tmp_path / name)}))
    with pytest.raises(InputError, match=rf"new_edges=.*{name}: expected a \.csv, .*\.parquet"):
        find_tables(settings_given, meta)


def write_change(folder: Path, change: dict[str, str]) -> dict[str, Any]:
    return {
        name: write_csv(folder / f"{name}.csv", text) if text != "-" else folder / "none.csv"
        for name, text in change.items()
    }


def assert_refused(path: Path, message: str, **change: Any) -> None:
    """The change is refused, and nothing is lost or left over."""
    before = snapshot(path.parent)
    with pytest.raises(InputError, match=message):
        update(path, **change)
    assert snapshot(path.parent) == before
    assert not [*path.parent.glob(".*")]


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for changes that are refused."""
    folder = tmp_path_factory.mktemp("unchanged")
    return make_directory(folder, pd.DataFrame(NODES), EDGES, "num_partitions=2")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_changes_are_named_and_lose_nothing(
    unchanged: Path, tmp_path: Path, name: str
) -> None:
    change, message = WRONG[name]
    assert_refused(unchanged, re.escape(message), **write_change(tmp_path, change))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (
            [[1, 2], [math.nan, math.nan]],
            "new edges: row 1 is blank; the model was trained without",
        ),
        ([[1], [2]], "new edges: 1 numbers in a row; the model was trained with 2"),
        (None, "new edges: no features; the model was trained with 2"),
    ],
)
def test_later_rows_of_a_matrix_have_all_its_numbers(matrix: Any, message: str) -> None:
    rows = None if matrix is None else np.array(matrix, np.float32)
    with pytest.raises(InputError, match=message):
        encode_later_rows(rows, None, 2, 2, None, "new edges")


def test_a_change_is_applied_once_by_one_process(path: Path, tmp_path: Path) -> None:
    before = Meta.read(path)
    change = write_change(tmp_path, {"new_edges": "src,dst,weight ann,eve,1 bob,bob,1"})
    with writing(path), pytest.raises(InputError, match="in use by process"):
        update(path, **change)
    updated = update(path, **change)
    assert updated.num_edges == before.num_edges + 3
    with pytest.raises(InputError, match="this change was applied at"):
        update(path, **change)
    other = {"new_edges": "src,dst,weight bob,bob,1 ann,eve,1"}
    again = update(path, **write_change(tmp_path, other))
    assert len(again.history) == 2
    assert again.num_edges == updated.num_edges + 3  # self loops are counted, and not stored


def write_half_a_file(path: Path, array: np.ndarray) -> None:
    path.write_bytes(array.tobytes()[:-1])
    os._exit(9)


def exchange_and_die(new: Path, old: Path) -> None:
    file_io.exchange_durably(new, old)
    os._exit(9)


@pytest.mark.parametrize(
    ("place", "name", "die", "is_new"),
    [
        (stored_graph, "write_parts", lambda *args, **more: os._exit(9), False),
        (np, "save", write_half_a_file, False),
        (write_directory, "write_meta", lambda *args: os._exit(9), False),
        (replace_directory, "exchange_durably", lambda *args: os._exit(9), False),
        (replace_directory, "exchange_durably", exchange_and_die, True),
    ],
    ids=["read", "file", "description", "written", "exchanged"],
)
def test_a_killed_update_leaves_the_old_directory_or_the_new_one(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: Any,
    name: str,
    die: Any,
    is_new: bool,
) -> None:
    before = contents(path)
    change = write_change(tmp_path, {"new_edges": "src,dst,weight ann,eve,1"})
    with monkeypatch.context() as patched:
        patched.setattr(place, name, die)
        process = multiprocessing.get_context("fork").Process(
            target=update, args=(path,), kwargs=change
        )
        process.start()
        process.join()
        assert process.exitcode == 9
    assert stored_graph.read_meta(path).first_damaged(path) is None
    assert (contents(path) != before) == is_new
    update(path, **write_change(tmp_path, {"new_edges": "src,dst,weight ann,eve,2"}))
    assert not [*path.parent.glob(".*")]


def test_files_that_stay_are_links_and_a_change_needs_all_parts(path: Path, tmp_path: Path) -> None:
    numbers = {file: (path / file).stat().st_ino for file in contents(path)}
    update(path, **write_change(tmp_path, {"new_edges": "src,dst,weight ann,eve,1"}))
    unchanged_files = {
        file for file, number in numbers.items() if (path / file).stat().st_ino == number
    }
    assert {"part0/feat.npy", "part1/label.npy", "part0/name_text.npy"} <= unchanged_files
    assert not {"part0/src.npy", "part1/src.npy"} <= unchanged_files
    shutil.rmtree(path / "part1")
    change = write_change(tmp_path, {"deleted_edges": "src,dst ann,eve"})
    assert_refused(path, "part1 is not on this machine, and a change needs all", **change)


@pytest.mark.parametrize("name", ["src", "feat", "label", "val_mask", "edge_weight", "name_text"])
def test_a_damaged_directory_is_not_updated(path: Path, tmp_path: Path, name: str) -> None:
    """Also where the file would only be linked into the new directory."""
    damaged = path / "part0" / f"{name}.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    change = write_change(tmp_path, {"new_edges": "src,dst,weight ann,eve,1"})
    assert_refused(path, rf"part0/{name}\.npy: its checksum is not the one", **change)


def test_a_table_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    """A parquet file stores equal cells once."""
    path = write_partitions(tmp_path, random_graph(), thirds(40), np.arange(40) % 2, 2).path
    table = tmp_path / "deleted.parquet"
    pd.DataFrame({"id": np.zeros(500_000, np.int8)}).to_parquet(table)
    assert table.stat().st_size < 10_000
    overrides = ["app=update", f"partition_dir={path}", f"update.deleted_nodes={table}"]
    before = snapshot(tmp_path)
    with pytest.raises(InputError, match=r"deleted\.parquet: grows by 0\.0037"):
        apps.run(compose([*overrides, "dataset_max_gib=0.001"]), tmp_path / "out")
    assert snapshot(tmp_path) == before
