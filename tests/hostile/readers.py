"""The doors: readers of tables, npz, model.json, meta.json, settings, change tables, requests and
sites.

Each has a valid input and mutations of it.
"""

import contextlib
import csv
import functools
import gzip
import io
import json
import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
from hetero_support import (
    random_hetero,
    write_hetero,
    write_hetero_sites,
)
from hostile import mutations as mutate
from hostile.doors import Change, Content, Door
from support import (
    random_graph,
    thirds,
    with_arrays,
    write_partitions,
)

import retexo
from examples.make_sites import write_sites
from partitioning.datasets import read_graph
from partitioning.directory.read_directory import PartitionDirectory, find_partition_directory
from partitioning.errors import InputError
from partitioning.features.build import encode_tables
from partitioning.features.encoder import EncodedFeatures
from partitioning.graph.graph_data import GraphData
from partitioning.sites.site_folders import find_sites
from retexo.apps import update
from retexo.models.network import Architecture, Schema
from retexo.settings.compose import compose
from retexo.settings.flatten import flatten
from retexo.settings.schema import DEFAULTS

NODES = 24
ODD_CELLS = (
    *("", " ", "null", "NaN", "nan", "inf", "-inf", "1e308", "1e39", "-0", "0x10", "1_000", "1,5"),
    *("1.234,5", "\u0663", "\u00e9", "a\nb", 'a"b', "a,b", "a;b", "\ufeff", "\0", "a" * 100_000),
    *("9007199254740993", "9223372036854775808", "1e-50", "true", "False", "2020-01-01", "=1+1"),
    *("\u202e", "-1", "007", "+5", " 5", "5 ", "5.0", "\U0001f642", "train", "1e400", "1e-400"),
    *("\x1b[31m", "'", "''", '"', "-", "c01", "2020-13-45", "12:00", "[1, 2]", "{}", "9" * 400),
)
ODD_NAMES = (
    *("", " ", "id", "ID", "label", "split", "train_mask", "weight", "age", "0", "a" * 10_000),
    *("\u00e9", "a\nb", "\ufeffid", "time", "node_id", "features", "nan", "__x__", "a,b", "'"),
)

Rows = list[list[str]]
"""A table as text; the first row is its header."""


def one_of(*mutations: Callable[[Path, Random], Change]) -> Callable[[Path, Random], Change]:
    return lambda place, rng: rng.choice(mutations)(place, rng)


def damage(place: Path, rng: Random) -> Change:
    """Bytes or the kind of a file: anything may be read, or nothing."""
    return Change("; ".join(mutate.damage(place.resolve(), rng)) or "nothing", None)


def damage_bytes(pattern: str) -> Callable[[Path, Random], Change]:
    """Bytes of a file that has a checksum: what is read is what was written."""

    def change(place: Path, rng: Random) -> Change:
        path, mutation = rng.choice(sorted(place.glob(pattern))), rng.choice(mutate.BYTES)
        mutation(path, rng)
        return Change(f"{mutation.__name__} {path.name}")

    return change


def edit_json(name: str, touched: frozenset[str] | None) -> Callable[[Path, Random], Change]:
    def change(place: Path, rng: Random) -> Change:
        mutate.edit_json(place / name, rng)
        return Change(name, touched)

    return change


def damage_folder(name: str) -> Callable[[Path, Random], Change]:
    """Files of a folder whose files have checksums."""
    return lambda place, rng: Change("; ".join(mutate.damage((place / name).resolve(), rng)))


@functools.cache
def dataset_of(*overrides: str) -> Any:
    return compose(["dataset_name=file", "dataset_max_gib=0.1", *overrides])


def read_tables(path: Path) -> Content:
    """Read a data set; its features must also be encodable, but are compared before."""
    settings = replace(dataset_of(), dataset_file=str(path))
    graph = read_graph(settings)
    encoded, _ = encode_tables(graph, settings.features, None)
    for table in encoded.nodes.values():
        if isinstance(table.features, EncodedFeatures):
            table.features.toarray()
    return content_of(graph)


def content_of(graph: GraphData) -> Content:
    """The graph by its ids, so that the order of nodes and edges, and of columns, is no content."""
    content: Content = {}
    ids = {}
    for name, table in graph.nodes.items():
        names = table.node_names
        ids[name] = table.node_ids.tolist() if names is None else names.tolist()
        ids[name] = [str(node_id) for node_id in ids[name]]
        content[f"{name}ids"] = sorted(ids[name])
        schema = table.schema
        rows: Any = table.features
        rows = rows if isinstance(rows, np.ndarray) else rows.toarray()
        for column in () if schema is None else schema.columns:
            cells = rows[:, column.columns].astype(np.float64)
            texts: Any = (cells + column.offset).tolist()
            if column.role == "categorical":
                places = cells[:, 0].tolist()
                texts = [
                    None if place != place else column.categories[int(place)] for place in places
                ]
            content[f"{name}{column.name}"] = by_id(ids[name], texts)
    target = ids[graph.target]
    labels: Any = graph.labels.tolist()
    if graph.class_names is not None and graph.labels.ndim == 1:
        labels = [None if place < 0 else str(graph.class_names[place]) for place in labels]
    content["label"] = by_id(target, labels)
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    content["split"] = [None if mask is None else by_id(target, mask.tolist()) for mask in masks]
    for (source, relation, destination), edges in graph.relations.items():
        ends = [[ids[source][row] for row in edges.src.tolist()]]
        ends.append([ids[destination][row] for row in edges.dst.tolist()])
        content[f"{relation}edges"] = sorted(zip(*ends, strict=True))
        data = {"weight": edges.edge_weight, "edge": edges.edge_feat}
        for name, array in data.items():
            if array is not None:
                rows = rounded(array.tolist())
                content[f"{relation}{name}"] = sorted(map(repr, zip(*ends, rows, strict=True)))
    return content


def by_id(ids: list[str], values: Any) -> list[Any]:
    return sorted(zip(ids, map(repr, rounded(values)), strict=True))


def rounded(value: Any) -> Any:
    """A JSON value with four digits of its numbers, and None for NaN."""
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.4g}")
    return value


# --- tables ----------


def node_rows(prefix: str = "c") -> Rows:
    rng = Random(1)
    rows = [["id", "label", "split", "age", "city"]]
    for row in range(NODES):
        split = ("train", "val", "test")[row % 3]
        age, city = f"{rng.gauss(40, 10):.2f}", rng.choice(["Bern", "Rome", "Oslo"])
        rows.append([f"{prefix}{row:02}", "good" if row % 2 else "bad", split, age, city])
    return rows


def edge_rows(prefix: str = "c") -> Rows:
    rng = Random(2)
    ends = [[f"{prefix}{rng.randrange(NODES):02}" for _ in "sd"] for _ in range(2 * NODES)]
    return [["src", "dst", "weight"], *([*pair, f"{rng.uniform(1, 2):.3f}"] for pair in ends)]


CELL_EDITS = ("cell",) * 8
TABLE_EDITS = (
    *("new column", "new column", "no column", "renamed", "twice", "row twice", "no row", "order"),
    *("no rows", "short row", "long row", "wide", "no header", "cells"),
)


def edit_rows(rows: Rows, rng: Random) -> Change:
    """Change a table in place."""
    place = rng.randrange(len(rows[0]))
    name = rows[0][place]
    row = rng.randrange(1, len(rows)) if len(rows) > 1 else 0
    kind = rng.choice((*CELL_EDITS, *TABLE_EDITS))
    touched: frozenset[str] | None = None
    if kind == "cell":
        cell = rng.choice(ODD_CELLS)
        rows[row][place] = cell
        kind = f"cell {name} {row} {cell[:20]!a}"
        touched = None if name in ("id", "src", "dst") else frozenset([name])
    elif kind == "cells":
        cell = rng.choice(ODD_CELLS)[:1000]
        for line in rows[1:]:
            line[place] = cell
    elif kind in ("new column", "wide"):
        new = rng.choice(ODD_NAMES)
        cells = [rng.choice(ODD_CELLS)[:1000] for _ in range(3)]
        for number in range(1 if kind == "new column" else rng.choice([50, 1000])):
            for at, line in enumerate(rows):
                line.append(cells[at % 3])
            rows[0][-1] = f"{new[:20]}{number}" if kind == "wide" else new
        kind += f" {new[:20]!a}"
    elif kind == "no column":
        for line in rows:
            del line[place]
        touched = None if name in ("id", "src", "dst", "label") else frozenset([name])
    elif kind == "renamed":
        rows[0][place] = rng.choice(ODD_NAMES)
    elif kind == "twice":
        for line in rows:
            line.append(line[place])
    elif kind == "row twice":
        rows.insert(row, list(rows[row]))
    elif kind == "no row":
        del rows[row]
    elif kind == "no rows":
        del rows[1:]
    elif kind == "order":
        rows[1:] = rng.sample(rows[1:], len(rows) - 1)
        touched = frozenset()
    elif kind == "short row":
        rows[row].pop()
    elif kind == "long row":
        rows[row].append("1")
    elif kind == "no header":
        del rows[0]
    return Change(kind, touched)


def write_rows(path: Path, rows: Rows, rng: Random | None = None) -> Change:
    """Write a csv; with `rng` in one of the layouts that mean the same."""
    text = io.StringIO()
    choose = (lambda choices: choices[0]) if rng is None else rng.choice
    separator, quoting = choose([",", ",", ";", "\t"]), choose([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    end = choose(["\n", "\r\n"])
    writer = csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=end)
    writer.writerows(rows)
    content = text.getvalue() + choose(["", "", end])
    encoding = choose(["utf-8", "utf-8", "utf-8-sig", "utf-16"])
    packed = choose([False, False, True])
    data = content.encode(encoding, errors="surrogatepass")
    if packed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(data, mtime=0))
    else:
        path.write_bytes(data)
    return Change(f"{path.name}: {separator!r} {quoting} {encoding} {packed}")


def read_rows(path: Path) -> Rows:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    mark = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    text = data.decode("utf-16" if mark else "utf-8-sig")
    first = text.partition("\n")[0]
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count)))


def make_csv(place: Path) -> None:
    write_rows(place / "nodes.csv", node_rows())
    write_rows(place / "edges.csv", edge_rows())


def edit_table(place: Path, rng: Random) -> Change:
    """A csv with something else in it, in another layout or, of a type, with another name."""
    paths = [path for path in mutate.files(place.resolve()) if ".csv" in path.suffixes]
    path = rng.choice(paths)
    is_typed = path.parent.name in ("nodes", "edges")
    if is_typed and rng.random() < 0.15:
        name = rng.choice(["a__b", "a__b__c", "film__x__film", "..", "\u00e9", "a" * 150, "film"])
        path.rename(path.with_name(f"{name}.csv"))
        return Change(f"{path.name} renamed to {name[:20]!a}", None)
    rows = read_rows(path)
    change = Change("nothing") if rng.random() < 0.2 else edit_rows(rows, rng)
    path.unlink()
    path = path.with_name(path.name.removesuffix(".gz"))
    written = write_rows(path, rows, rng if rng.random() < 0.4 else None)
    touched = change.touched
    if touched and is_typed:  # content of types begins with their names
        prefixes = ("acts", "rev_acts") if "acts" in path.name else (path.stem,)
        of_target = {"label", "split"} & touched if path.stem == "film" else set()
        touched = frozenset(
            {f"{prefix}{name}" for prefix in prefixes for name in touched} | of_target
        )
    return Change(f"{path.name}: {change.description} {written.description}", touched)


# --- parquet ----------


def frame_of_rows(rows: Rows, number: str) -> pd.DataFrame:
    header, *cells = rows
    return pd.DataFrame(cells, columns=header).astype({number: float})


def frames() -> dict[str, pd.DataFrame]:
    nodes, edges = frame_of_rows(node_rows(), "age"), frame_of_rows(edge_rows(), "weight")
    return {"nodes": nodes, "edges": edges}


def make_parquet(place: Path) -> None:
    for name, frame in frames().items():
        frame.to_parquet(place / f"{name}.parquet", index=False)


def edit_parquet(place: Path, rng: Random) -> Change:
    """Columns of other types, and files of other layouts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = rng.choice(["nodes", "nodes", "edges"])
    path = place / f"{name}.parquet"
    table = pa.Table.from_pandas(frames()[name], preserve_index=False)
    column = rng.choice(table.schema.names)
    at, count = table.schema.get_field_index(column), len(table)
    cells = table[column].to_pylist()
    other_types: dict[str, Callable[[], Any]] = {
        "integers": lambda: pa.array(range(count)),
        "int8": lambda: pa.array([number % 100 for number in range(count)], pa.int8()),
        "large": lambda: pa.array([2**63 + number for number in range(count)], pa.uint64()),
        "half": lambda: pa.array(np.arange(count, dtype=np.float16)),
        "booleans": lambda: pa.array([number % 2 == 0 for number in range(count)]),
        "null": lambda: pa.nulls(count),
        "date": lambda: pa.array([number * 10**6 for number in range(count)], pa.timestamp("us")),
        "far": lambda: pa.array([2**53] * count, pa.timestamp("s")),
        "duration": lambda: pa.array(range(count), pa.duration("s")),
        "decimal": lambda: pa.array(range(count), pa.int64()).cast(pa.decimal128(38, 10)),
        "bytes": lambda: pa.array([b"\xff\xfe" * number for number in range(count)]),
        "no text": lambda: pa.Array.from_buffers(
            pa.string(), 2, pa.array([b"\xff", b"\xfe"]).buffers()
        ).take(pa.array([number % 2 for number in range(count)])),
        "lists": lambda: pa.array([[1.0] * (number % 3) for number in range(count)]),
        "vectors": lambda: pa.array([[1.0, 2.0] for _ in range(count)]),
        "wide": lambda: pa.array([[1.0] * 10_000 for _ in range(count)]),
        "structs": lambda: pa.array([{"a": number} for number in range(count)]),
        "maps": lambda: pa.array([[("a", 1)]] * count, pa.map_(pa.string(), pa.int64())),
        "deep": lambda: pa.array([[[1]]] * count),
        "NaN": lambda: pa.array([math.nan] * count),
        "inf": lambda: pa.array([math.inf] * count),
        "odd": lambda: pa.array([rng.choice(ODD_CELLS), *map(str, cells[1:])]),
        "large text": lambda: pa.array(["a" * 10**6, *map(str, cells[1:])]),
    }
    same_values: dict[str, Callable[[], Any]] = {
        "category": lambda: table[column].combine_chunks().dictionary_encode(),
        "long strings": lambda: pa.array(
            cells, pa.large_string() if isinstance(cells[0], str) else None
        ),
    }
    options: dict[str, Any] = {}
    kind = rng.choice(
        [*other_types, *same_values, "row groups", "codec", "parts", "index", "order", "column"]
    )
    touched: frozenset[str] | None = frozenset()
    if kind in other_types:
        table = table.set_column(at, column, other_types[kind]())
        touched = None if column in ("id", "src", "dst") else frozenset([column])
    elif kind in same_values:
        table = table.set_column(at, column, same_values[kind]())
    elif kind == "column":
        table, touched = table.append_column(rng.choice(ODD_NAMES), pa.nulls(count)), None
    elif kind == "order":
        table = table.take(pa.array(rng.sample(range(count), count)))
    elif kind == "index":
        table = pa.Table.from_pandas(table.to_pandas().set_index(column))
    options = {"row_group_size": 5} if kind == "row groups" else {}
    options |= {"compression": rng.choice(["none", "gzip", "zstd"])} if kind == "codec" else {}
    if kind == "parts":
        path.unlink()
        path.mkdir()
        pq.write_table(table.slice(0, 7), path / "part-0.parquet")
        pq.write_table(table.slice(7), path / "part-1.parquet")
        (path / "_SUCCESS").touch()
    else:
        pq.write_table(table, path, **options)
    return Change(f"{kind} in {column} of {name}", touched)


# --- types ----------


def make_types(place: Path) -> None:
    for folder in ("nodes", "edges"):
        (place / folder).mkdir()
    write_rows(place / "nodes" / "film.csv", node_rows())
    write_rows(place / "nodes" / "person.csv", [row[:1] + row[3:] for row in node_rows("p")])
    acts = [[f"p{left[1:]}", right, *rest] for left, right, *rest in edge_rows()[1:]]
    write_rows(place / "edges" / "person__acts__film.csv", [["src", "dst", "weight"], *acts])


# --- arrays ----------


def arrays_of_graph() -> mutate.Arrays:
    graph = random_graph(NODES, 3 * NODES)
    arrays = {
        "src": graph.edges.src,
        "dst": graph.edges.dst,
        "feat": graph.features,
        "label": graph.labels,
    }
    return {**arrays, "node_id": graph.node_ids, **thirds(NODES)}


def make_arrays(place: Path) -> None:
    np.savez(place / "toy.npz", **arrays_of_graph())  # type: ignore[arg-type]


def edit_arrays(place: Path, rng: Random) -> Change:
    arrays = arrays_of_graph()
    description = mutate.edit_arrays(arrays, rng)
    name = description.rpartition(" in ")[2]
    description += f" {mutate.save_npz(place / 'toy.npz', arrays, rng)}"
    touched = frozenset([name]) if name in ("feat", "label") else None
    is_judged = name not in mutate.MASKS
    return Change(description, touched, refused=is_judged and not mutate.is_graph(arrays))


def add_array(place: Path, rng: Random) -> Change:
    """An array that no reader knows is none of the graph."""
    name = rng.choice(["more", "x" * 1000, "\u00e9", "edge_index", "../../x", "edge_weight"])
    arrays = {**arrays_of_graph(), name: np.zeros(rng.choice([0, 3, 2_000_000]))}
    description = f"another array {name[:20]!a} {mutate.save_npz(place / 'toy.npz', arrays, rng)}"
    return Change(description, None if name == "edge_weight" else frozenset())


def read_arrays(place: Path) -> Content:
    return read_tables(place / "toy.npz")


# --- models ----------


def make_model(place: Path) -> None:
    from test_predictor import checkpoint_of, model_of

    shape = Architecture(model_of("gcn"), Schema.of_plain_graph(6), 3)
    described: Any = {"class_names": ["a", "b", "c"], "graph": {"symmetrize": True}}
    checkpoint_of(place, shape, **described)


@functools.cache
def graph_to_predict() -> Any:
    graph = random_graph(NODES, 3 * NODES)
    nodes = pd.DataFrame(graph.features).rename(columns="f{}".format).assign(id=graph.node_ids)
    ids = graph.node_ids
    return nodes, pd.DataFrame({"src": ids[graph.edges.src], "dst": ids[graph.edges.dst]})


def read_model(place: Path) -> Content:
    """Load a model and predict with it: what is accepted has to give numbers."""
    predictor = retexo.load(place, output="arrays")
    predictions = predictor.predict(graph_to_predict())
    values = predictions.values if predictions.values.shape[1] else predictions.probabilities
    assert np.isfinite(values).all()
    return {"ids": predictions.ids.tolist(), "values": values.tolist()}


# --- partition directories ----------


def make_parts(place: Path) -> None:
    write_partitions(
        place, random_graph(NODES, 3 * NODES), thirds(NODES), np.arange(NODES) % 2, 2, "parts"
    )


def make_parts_of_types(place: Path) -> None:
    sizes = {"film": (12, 3), "person": (8, 2)}
    relations = {("person", "acts", "film"): 20, ("film", "rev_acts", "person"): 20}
    write_hetero(place, random_hetero(sizes, relations), 2).path.rename(place / "parts")


def read_parts(place: Path) -> Content:
    """Read both partitions, after their checksums; nodes are apart, and edges have their ends."""
    return contents_of(find_partition_directory([place / "parts"], 2))


def contents_of(directory: PartitionDirectory) -> Content:
    """The tensors of all partitions, after their checksums, once they make sense."""
    content: Content = {}
    directory.verify(range(directory.num_parts))
    for part in range(directory.num_parts):
        partition = directory.read_part(part)
        for nodes in partition.nodes.values():
            assert len(nodes.node_ids.unique()) == len(nodes.features)
            assert nodes.features.isfinite().all()
            assert ((nodes.halo_owner >= 0) & (nodes.halo_owner != part)).all()
            assert (nodes.halo_owner < directory.num_parts).all()
        for (source, _, to), edges in partition.relations.items():
            sources = partition.nodes[source]
            assert (edges.src < len(sources.features) + len(sources.halo_index)).all()
            assert ((edges.dst >= 0) & (edges.dst < len(partition.nodes[to].features))).all()
        content |= {f"{part}/{name}": value for name, value in tensors_of(partition)}
    return content


def tensors_of(part: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    """The tensors of a partition, by their dotted names."""
    if hasattr(part, "tolist"):
        yield name, part.tolist()
    elif isinstance(part, dict):
        for key, value in part.items():
            yield from tensors_of(value, f"{name}.{key}")
    elif hasattr(part, "__dict__"):
        for key, value in vars(part).items():
            yield from tensors_of(value, f"{name}.{key}")


# --- settings ----------


DERIVED = {"seed": {"partition.seed", "split.seed", "synthetic.seed"}}
"""Settings that follow another one."""


def edit_settings(place: Path, rng: Random) -> Change:
    """Any value of any setting."""
    name = rng.choice(sorted(DEFAULTS))
    value = mutate.like(DEFAULTS[name], rng)
    (place / "settings.json").write_text(json.dumps({name: value}))
    return Change(f"{name}={value!a}", frozenset([name]))


def read_settings(place: Path) -> Content:
    settings = json.loads((place / "settings.json").read_text())
    overrides = [f"{name}={mutate.quoted(value)}" for name, value in settings.items()]
    return stored_settings(compose(overrides))


def stored_settings(settings: Any) -> Content:
    json.dumps(settings.stored, ensure_ascii=False).encode()  # as summary.json has them
    return {name: repr(value) for name, value in flatten(settings.stored).items()}


def judge_settings(valid: Content, content: Content, change: Change) -> str:
    """A setting changes itself, those that default to it, and the group that it chooses."""
    (name,) = change.touched or frozenset()
    allowed = {name, *DERIVED.get(name, ())}
    names = [
        setting for setting in {**valid, **content} if valid.get(setting) != content.get(setting)
    ]
    unexpected = [
        setting
        for setting in names
        if setting not in allowed and not setting.startswith(f"{name}.")
    ]
    return f"changes {', '.join(unexpected[:5])}" if unexpected else ""


# --- changes of a partition directory ----------

CHANGES: dict[str, Rows] = {
    "new_nodes": [
        ["id", "f0", "f1", "label", "split"],
        ["2000", "1", "2", "1", "train"],
        ["2001", "0", "1", "", ""],
    ],
    "changed_nodes": [["id", "label"], ["1003", "2"], ["1004", "0"]],
    "deleted_nodes": [["id"], ["1005"]],
    "new_edges": [["src", "dst"], ["2000", "1001"], ["1002", "2001"]],
    "deleted_edges": [["src", "dst"], ["1000", "1001"]],
}


def make_change(place: Path) -> None:
    graph = random_graph(NODES, 3 * NODES, width=2)
    graph = with_arrays(graph, src=np.append(graph.edges.src, 0), dst=np.append(graph.edges.dst, 1))
    write_partitions(place, graph, thirds(NODES), np.arange(NODES) % 2, 2, "parts")
    for name, rows in CHANGES.items():
        write_rows(place / f"{name}.csv", rows)


@functools.cache
def settings_of_update() -> Any:
    return compose(["app=update", "dataset_max_gib=0.1"])


def read_change(place: Path) -> Content:
    """Update a directory; what is written has to be readable, and other nodes stay."""
    settings = settings_of_update()
    tables: Any = {name: str(place / f"{name}.csv") for name in CHANGES}
    settings = replace(
        settings,
        partition_dir=str(place / "parts"),
        update=replace(settings.update, **tables),
    )
    with contextlib.redirect_stdout(io.StringIO()):
        update.run(settings, place)
    try:
        read_parts(place)
    except InputError as error:
        raise AssertionError("an update that nobody can read") from error
    rows: Content = {}
    directory = find_partition_directory([place / "parts"], 2)
    for part in range(2):
        partition = directory.read_part(part)
        ids, features = partition.node_ids.tolist(), partition.features.tolist()
        rows |= {str(number): row for number, row in zip(ids, features, strict=True)}
    return rows


def judge_change(valid: Content, content: Content, change: Change) -> str:
    """Features of nodes that no table of valid changes names are what they were."""
    named = {row[0] for rows in CHANGES.values() for row in rows}
    changed = [name for name, row in content.items() if name in valid and row != valid[name]]
    changed = [name for name in changed if name not in named]
    return f"changes node {changed[0]}" if changed else ""


# --- requests to the service ----------

REQUESTS: dict[str, Any] = {
    "/predict": {
        "nodes": [
            {"customer": "n1", "age": 3.5, "city": "Bern"},
            {"customer": "n2", "age": 1, "city": "Rome"},
        ],
        "edges": [{"src": "n1", "dst": "c01"}, {"src": "c02", "dst": "n2"}],
    },
    "/embed": {"ids": ["c01", "c02"]},
    "/score": {"pairs": [["c01", "c02"]]},
    "/top": {"ids": ["c01"], "k": 3},
}


def make_request(place: Path) -> None:
    service()  # which is made once, not while a request is read
    (place / "path").write_text("/predict")
    (place / "body").write_text(json.dumps(REQUESTS["/predict"]))


def edit_request(place: Path, rng: Random) -> Change:
    path = rng.choice(["/predict", "/predict", "/predict", "/embed", "/embed", "/score", "/top"])
    content = json.loads(json.dumps(REQUESTS[path]))
    (place / "path").write_text(path)
    (place / "body").write_text(json.dumps(content))
    if rng.random() < 0.2:
        mutation = rng.choice([*mutate.BYTES, mutate.nested])
        mutation(place / "body", rng)
        return Change(f"{path} {mutation.__name__}", None)
    container, key = rng.choice(list(mutate.spots(content)))
    if rng.random() < 0.15:
        del container[key]
    elif rng.random() < 0.15 and isinstance(container, dict):
        container[rng.choice(ODD_NAMES)] = container[key]
    elif rng.random() < 0.1 and isinstance(container, list):
        container += container * rng.choice([1, 60])
    else:
        container[key] = rng.choice([mutate.like(container[key], rng), rng.choice(ODD_CELLS)])
    (place / "body").write_text(json.dumps(content))
    return Change(f"{path} {key}", None)


@functools.cache
def service() -> Any:
    """A client of the service of a model of tables, and the folder of the model."""
    from starlette.testclient import TestClient
    from test_service import run_of_tables, tables

    from retexo.predict.service import ModelStore, make_service

    folder = tempfile.TemporaryDirectory()
    run = run_of_tables(Path(folder.name) / "run")

    def load_model() -> Any:
        return retexo.load(run, output="arrays").attach(tables())

    app = make_service(ModelStore(run / "checkpoint", load_model, 0), 20.0)
    return TestClient(app, headers={"content-type": "application/json"}), folder


def read_request(place: Path) -> Content:
    """The answer; afterwards the service answers as before."""
    client, _ = service()
    answer = client.post((place / "path").read_text(), content=(place / "body").read_bytes())
    assert answer.status_code < 500, answer.text
    again = client.post("/embed", json=REQUESTS["/embed"])
    assert again.status_code == 200, again.text
    if answer.status_code >= 400:
        raise InputError(answer.json()["error"])
    return {"status": answer.status_code, "afterwards": again.content}


# --- sites ----------


def make_sites(place: Path) -> None:
    write_sites(
        place / "sites",
        random_graph(NODES, 3 * NODES),
        thirds(NODES),
        np.arange(NODES) % 2,
        ["a", "b"],
    )


def make_sites_of_types(place: Path) -> None:
    sizes = {"film": (12, 3), "person": (8, 2)}
    graph = random_hetero(sizes, {("person", "acts", "film"): 20})
    assignment = {name: np.arange(count) % 2 for name, (count, _) in sizes.items()}
    write_hetero_sites(place / "sites", graph, thirds(12), assignment, ["a", "b"])


def edit_site(place: Path, rng: Random) -> Change:
    site = place / "sites" / rng.choice("ab")
    if rng.random() < 0.5:
        mutate.edit_json(site / "site.json", rng)
        return Change(f"{site.name}/site.json", None)
    arrays = dict(np.load(site / "part.npz"))
    description = mutate.edit_arrays(arrays, rng)
    if rng.random() < 0.1:
        name = rng.choice([*arrays, "more", "film/more", "../x/y", "x/y/z"])
        arrays[name] = np.zeros(3)
        description = f"another array {name}"
    description += f" {mutate.save_npz(site / 'part.npz', arrays, rng)}"
    return Change(f"{site.name}: {description}", None)


def read_sites(place: Path) -> Content:
    return contents_of(find_sites(place / "sites", 2, 0.1))


# --- all ----------

TABLES = one_of(edit_table, edit_table, edit_table, damage)
# A changed meta.json is refused, by its own checksum.
EDIT_META = edit_json("parts/meta.json", frozenset())
PARTS = one_of(EDIT_META, damage_folder("parts"))
EDIT_MODEL = edit_json("checkpoint/model.json", None)
DOORS: dict[str, Door] = {
    "csv": Door(make_csv, TABLES, read_tables),
    "parquet": Door(
        make_parquet, one_of(edit_parquet, edit_parquet, edit_parquet, damage), read_tables
    ),
    "types": Door(make_types, TABLES, read_tables),
    "arrays": Door(
        make_arrays,
        one_of(edit_arrays, edit_arrays, edit_arrays, add_array, damage_bytes("toy.npz")),
        read_arrays,
    ),
    "model.json": Door(
        make_model,
        one_of(EDIT_MODEL, EDIT_MODEL, EDIT_MODEL, damage_bytes("checkpoint/*.safetensors")),
        read_model,
    ),
    "parts": Door(make_parts, PARTS, read_parts),
    "parts of types": Door(make_parts_of_types, PARTS, read_parts),
    "settings": Door(
        lambda place: (place / "settings.json").write_text("{}") and None,
        edit_settings,
        read_settings,
        judge=judge_settings,
    ),
    "changes": Door(make_change, TABLES, read_change, ("parts",), judge_change),
    "requests": Door(make_request, edit_request, read_request),
    "sites": Door(make_sites, one_of(edit_site, edit_site, damage), read_sites),
    "sites of types": Door(make_sites_of_types, one_of(edit_site, edit_site, damage), read_sites),
}
