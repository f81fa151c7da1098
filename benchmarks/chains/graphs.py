"""Small graphs for same_results.py, drawn by numpy with fixed seeds and written into input/."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

INPUT = Path("input")


def draw_blocks(
    nodes: int = 400, classes: int = 4, width: int = 12, degree: int = 4, seed: int = 0
) -> dict[str, Any]:
    """Draw a stochastic block model whose features hint at the class, as arrays of an npz file.

    Edges have both directions. Two nodes are isolated, one edge occurs twice, and ids are not
    sorted. Half of the nodes train, a quarter each validate and test, but for some in no split.
    """
    rng = np.random.default_rng(seed)
    label = rng.integers(classes, size=nodes)
    order = np.argsort(label, kind="stable")
    starts = np.searchsorted(label[order], np.arange(classes + 1))
    src = rng.integers(nodes, size=nodes * degree)
    inside = order[rng.integers(starts[label[src]], starts[label[src] + 1])]
    dst = np.where(rng.random(len(src)) < 0.75, inside, rng.integers(nodes, size=len(src)))
    ends = np.unique(np.sort(np.stack([src, dst], axis=1), axis=1), axis=0)
    ends = ends[(ends[:, 0] != ends[:, 1]) & (ends[:, 0] > 1)]
    ends = np.concatenate([ends, ends[:1]])
    feat = rng.standard_normal((nodes, width)) + 1.2 * np.eye(classes, width)[label]
    feat[rng.random((nodes, width)) < 0.4] = 0
    place = rng.permutation(nodes)
    return {
        "src": np.concatenate([ends[:, 0], ends[:, 1]]),
        "dst": np.concatenate([ends[:, 1], ends[:, 0]]),
        "feat": feat.astype(np.float32),
        "label": label,
        "node_id": rng.permutation(10 * nodes)[:nodes],
        "train_mask": place < nodes // 2,
        "val_mask": (place >= nodes // 2) & (place < nodes * 3 // 4),
        "test_mask": (place >= nodes * 3 // 4) & (place < nodes - 20),
    }


def _both_ways(values: np.ndarray) -> np.ndarray:
    return np.concatenate([values, values])


def save(graph: dict[str, Any], name: str = "graph.npz") -> None:
    np.savez(INPUT / name, **graph)


def plain() -> None:
    save(draw_blocks())


def weighted() -> None:
    graph = draw_blocks(seed=1)
    rng = np.random.default_rng(11)
    weight = rng.integers(1, 5, len(graph["src"]) // 2) / 2
    save(graph | {"edge_weight": _both_ways(weight)})


def with_edge_features() -> None:
    graph = draw_blocks(seed=2)
    rng = np.random.default_rng(12)
    rows = rng.standard_normal((len(graph["src"]) // 2, 3)).astype(np.float32)
    save(graph | {"edge_feat": _both_ways(rows)})


def several_labels() -> None:
    graph = draw_blocks(classes=5, seed=3)
    rng = np.random.default_rng(13)
    label = (np.eye(5)[graph["label"]] + (rng.random((400, 5)) < 0.2)).clip(max=1)
    save(graph | {"label": label.astype(np.float32)})


def rare_class() -> None:
    graph = draw_blocks(seed=4, classes=8)
    save(graph | {"label": (graph["label"] == 0).astype(np.int64)})


def regression() -> None:
    graph = draw_blocks(seed=5)
    rng = np.random.default_rng(15)
    target = 3.0 * graph["label"] + graph["feat"][:, 0] + 0.1 * rng.standard_normal(400)
    second = 100 - graph["label"] + graph["feat"][:, 5]
    save(graph | {"label": np.stack([target, second], axis=1)})


def without_features() -> None:
    graph = draw_blocks(seed=6)
    del graph["feat"]
    save(graph)


def new_graph() -> None:
    """The plain graph, and one of the same kind to predict."""
    plain()
    graph = draw_blocks(nodes=250, seed=7)
    unknown = ("label", "train_mask", "val_mask", "test_mask")
    save({name: array for name, array in graph.items() if name not in unknown}, "new.npz")


def assigned() -> None:
    """The plain graph, and a file with the partition of each node; one partition trains nothing."""
    graph = draw_blocks()
    save(graph)
    parts = np.random.default_rng(16).integers(3, size=len(graph["label"]))
    parts[~graph["train_mask"] & (parts == 2)] = 3
    np.save(INPUT / "assignment.npy", parts)


# --- tables ----------


def make_tables(nodes: int = 400, seed: int = 20) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Nodes with ids with leading zeros, named classes, some blank, columns of all kinds.

    Edges in one direction with weights.
    """
    graph = draw_blocks(nodes, seed=seed)
    rng = np.random.default_rng(seed + 100)
    label, feat = graph["label"], graph["feat"].astype(np.float64)
    names = np.array([f"{number:06}" for number in graph["node_id"]])
    unknown = rng.random(nodes) < 0.05
    towns = np.array(["Bonn", "Oslo", "Rome", "Zürich"])
    subjects = np.array(["art", "law", "None", "music"])
    table = pd.DataFrame(
        {
            "nodeId": names,
            "subject": np.where(unknown, "", subjects[label]),
            "age": (20 + 10 * label + rng.integers(8, size=nodes)).astype(str),
            "income": np.round(np.exp(8 + feat[:, 0]), 2),
            "height": np.where(
                rng.random(nodes) < 0.1, "", (150 + rng.integers(50, size=nodes)).astype(str)
            ),
            "town": np.where(rng.random(nodes) < 0.6, towns[label], rng.choice(towns, nodes)),
            "member": rng.choice(["true", "false"], nodes),
            "joined": [f"20{10 + one % 10}-0{1 + one % 9}-1{one % 10}" for one in range(nodes)],
            "split": np.select(
                [graph[f"{name}_mask"] & ~unknown for name in ("train", "val", "test")],
                ["train", "valid", "test"],
                "",
            ),
        }
    )
    half = len(graph["src"]) // 2
    edges = pd.DataFrame(
        {
            "source": names[graph["src"][:half]],
            "target": names[graph["dst"][:half]],
            "weight": rng.integers(1, 5, half) / 2,
        }
    )
    return table, edges


def as_numbers(nodes: pd.DataFrame) -> pd.DataFrame:
    """The same table with numbers in place of their texts, and NaN for blank ones."""
    return nodes.assign(age=nodes["age"].astype(int), height=pd.to_numeric(nodes["height"]))


def tables() -> None:
    """A folder of csv tables, and a second one of the same columns without classes to predict."""
    nodes, edges = make_tables()
    write_folder("tables", nodes, edges)
    later, later_edges = make_tables(200, seed=21)
    write_folder("later", later.drop(columns=["subject", "split"]), later_edges)


def write_folder(name: str, nodes: pd.DataFrame, edges: pd.DataFrame) -> Path:
    folder = INPUT / name
    folder.mkdir()
    nodes.to_csv(folder / "nodes.csv", index=False)
    edges.to_csv(folder / "edges.csv", index=False)
    return folder


def tables_of_many_kinds() -> None:
    """Write the same tables in other formats.

    They are parquet, gz, UTF-16 with semicolons and decimal commas, SNAP's edges, several label
    columns, an index that leaks, and nodes in part files.
    """
    nodes, edges = make_tables()
    numbers = as_numbers(nodes)
    known = numbers[numbers["subject"] != ""]
    folder = INPUT / "parquet"
    folder.mkdir()
    typed = numbers.assign(joined=pd.to_datetime(numbers["joined"]))
    typed = typed.assign(vector=typed["age"].map(lambda a: [float(a), float(a % 3)]))
    typed.set_index("nodeId").to_parquet(folder / "nodes.parquet")
    edges.to_parquet(folder / "edges.parquet")
    folder = INPUT / "gz"
    folder.mkdir()
    text = nodes.to_csv()  # with its nameless index
    (folder / "nodes.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    edges.assign(kind=["a", "b", "c", "a"] * (len(edges) // 4) + ["a"] * (len(edges) % 4)).to_csv(
        folder / "edges.csv", index=False
    )
    folder = INPUT / "excel"
    folder.mkdir()
    text = nodes.to_csv(index=False, sep=";", decimal=",")
    (folder / "nodes.csv").write_text(text, encoding="utf-16")
    edges.to_csv(folder / "edges.csv", index=False, sep=";", decimal=",")
    folder = INPUT / "snap"
    folder.mkdir()
    numbered = {name: row for row, name in enumerate(nodes["nodeId"])}
    lines = [
        f"{numbered[a]}\t{numbered[b]}"
        for a, b in zip(edges["source"], edges["target"], strict=True)
    ]
    (folder / "edges.txt").write_text("# FromNodeId\tToNodeId\n" + "\n".join(lines) + "\n")
    labels = pd.DataFrame({"label": [len(one) for one in nodes["subject"]]})
    labels.to_csv(folder / "labels.csv", index=False)
    np.save(folder / "features.npy", draw_blocks(seed=20)["feat"])
    folder = INPUT / "spark"
    (folder / "nodes.parquet").mkdir(parents=True)
    for part, rows in enumerate(np.array_split(np.arange(len(known)), 3)):
        file = folder / "nodes.parquet" / f"part-0000{part}.snappy.parquet"
        known.iloc[rows].to_parquet(file, index=False)
    (folder / "nodes.parquet" / "_SUCCESS").touch()
    edges.to_csv(folder / "edges.csv", index=False)
    folder = INPUT / "labels"
    columns = {
        f"t{one}": (nodes["age"].astype(int) % (one + 2) == 0).astype(int) for one in range(3)
    }
    write_folder("labels", nodes.drop(columns=["subject"]).assign(**columns), edges)


def changes() -> None:
    """Tables, and changes of them for app=update."""
    nodes, edges = make_tables()
    write_folder("tables", nodes, edges)
    new = nodes.iloc[:5].assign(nodeId=[f"new{one}" for one in range(5)])
    new.to_csv(INPUT / "new_nodes.csv", index=False)
    nodes.iloc[20:24].assign(age="99").to_csv(INPUT / "changed_nodes.csv", index=False)
    nodes.iloc[30:33][["nodeId"]].to_csv(INPUT / "deleted_nodes.csv", index=False)
    joined = {"source": [*new["nodeId"], "new0"], "target": [*nodes["nodeId"][5:10], "new1"]}
    pd.DataFrame(joined | {"weight": 1.5}).to_csv(INPUT / "new_edges.csv", index=False)
    gone = edges[~edges["source"].isin(nodes["nodeId"][30:33])]
    gone = gone[~gone["target"].isin(nodes["nodeId"][30:33])]
    once = gone.drop_duplicates(["source", "target"], keep=False)
    once.iloc[:7][["source", "target"]].to_csv(INPUT / "deleted_edges.csv", index=False)
    once.iloc[10:14].assign(weight=3.5).to_csv(INPUT / "changed_edges.csv", index=False)


def two_tables() -> None:
    """The tables, and their rows in two halves, for app=describe of each half."""
    nodes, edges = make_tables()
    write_folder("tables", nodes, edges)
    for name, rows in (("north", nodes.iloc[::2]), ("south", nodes.iloc[1::2])):
        ids = set(rows["nodeId"])
        own = edges[edges["source"].isin(ids) & edges["target"].isin(ids)]
        write_folder(name, rows, own)


def typed() -> None:
    """Papers with classes, authors without features, venues with some.

    One relation has weights and another column.
    """
    graph = draw_blocks(classes=3, seed=30)
    rng = np.random.default_rng(31)
    label = graph["label"]
    folder = INPUT / "typed"
    for name in ("nodes", "edges"):
        (folder / name).mkdir(parents=True)
    columns = {f"x{one}": graph["feat"][:, one].astype(np.float64) for one in range(5)}
    ids = np.array([f"p{one}" for one in range(400)])
    papers = pd.DataFrame({"id": ids, "label": label, **columns})
    places = [graph[f"{name}_mask"] for name in ("train", "val", "test")]
    papers["split"] = np.select(places, ["train", "val", "test"], "")
    papers.to_csv(folder / "nodes/paper.csv", index=False)
    pd.DataFrame({"id": [f"a{one}" for one in range(150)]}).to_csv(
        folder / "nodes/author.csv", index=False
    )
    np.save(folder / "nodes/venue.npy", rng.random((9, 4)).astype(np.float32))
    half = len(graph["src"]) // 2
    cites = pd.DataFrame({"src": ids[graph["src"][:half]], "dst": ids[graph["dst"][:half]]})
    cites.to_csv(folder / "edges/paper__cites__paper.csv", index=False)
    paper = np.repeat(np.arange(400), 2)
    author = (label[paper] * 50 + rng.integers(50, size=800)) % 150
    writes = pd.DataFrame({"src": [f"a{one}" for one in author], "dst": ids[paper]})
    writes["weight"] = rng.integers(1, 4, 800) / 2
    writes["order"] = rng.integers(1, 9, 800)
    writes.to_csv(folder / "edges/author__writes__paper.csv", index=False)
    venue = label * 3 + rng.integers(3, size=400)
    prints = pd.DataFrame({"src": venue, "dst": ids})
    prints.to_csv(folder / "edges/venue__prints__paper.csv", index=False)


def links_with_times() -> None:
    graph = draw_blocks(seed=8)
    half = len(graph["src"]) // 2
    save(graph | {"edge_time": _both_ways(np.random.default_rng(18).integers(9999, size=half))})
    pairs = np.stack([graph["node_id"][5:25], graph["node_id"][105:125]], axis=1)
    pd.DataFrame(pairs, columns=["src", "dst"]).to_csv(INPUT / "pairs.csv", index=False)
    pd.DataFrame({"id": graph["node_id"][5:9]}).to_csv(INPUT / "some.csv", index=False)


SITES = ("north", "east", "south")


def sites() -> None:
    """The plain graph in the folders of three owners."""
    graph = draw_blocks()
    rank = np.random.default_rng(40).integers(3, size=400)
    for site, name in enumerate(SITES):
        folder = INPUT / name
        folder.mkdir()
        own, incoming = rank == site, rank[graph["dst"]] == site
        description = {"version": 1, "site": name, "sites": list(SITES), "num_classes": 4}
        (folder / "site.json").write_text(json.dumps(description))
        rows = ("feat", "label", "node_id", "train_mask", "val_mask", "test_mask")
        src, dst = graph["src"][incoming], graph["dst"][incoming]
        np.savez(
            folder / "part.npz",
            src=graph["node_id"][src],
            dst=graph["node_id"][dst],
            src_owner=rank[src],
            **{key: graph[key][own] for key in rows},
        )
