"""Turn the files that a chain left into values by name: {"train.checkpoint.layer0.weight": ...}.

Arrays, tensors and columns become the sha256 of their content with type and shape; JSON files
become their single values. Names are paths of files and keys, joined by dots.
"""

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Values = dict[str, Any]

LEFT_OUT = {
    "seconds": "time",
    "peak_memory_bytes": "depends on the allocator and the load of the machine",
    "peak_private_bytes": "depends on the allocator and the load of the machine",
    "run_id": "drawn anew for each run",
    "versions": "the same environment runs both sides",
    "settings": "what was asked for, not what came of it",
    "partition_digest": "of meta.json, which is compared itself",
    "checksums": "of files that are compared themselves",
    "content": "of files that are compared themselves",
    "time": "in meta.json, of a change of the partitions",
    "resumed": "the round that a disturbed run had saved depends on when it was disturbed",
    "causes": "of restarts: text with the round in which a worker was killed",
}
"""Keys of JSON files that are not compared, and why."""

IGNORED_FILES = {
    "main.log": "times and texts",
    "config.json": "the settings; see LEFT_OUT",
    "model.pt2": "names and lines of source files; a chain compares what it computes",
    "model.onnx": "names and lines of source files; a chain compares what it computes",
}


def collect(folder: Path) -> Values:
    """Return the values of all files below a folder but its input/."""
    values: Values = {}
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        hidden = any(name.startswith(".") for name in place.parts)
        if not path.is_file() or hidden or place.parts[0] == "input" or path.name in IGNORED_FILES:
            continue
        prefix = ".".join([*place.parent.parts, place.stem])
        for name, value in _read_file(path):
            values[f"{prefix}.{name}" if name else prefix] = _without_path(value, folder)
    return values


def _without_path(value: Any, folder: Path) -> Any:
    return value.replace(str(folder), ".") if isinstance(value, str) else value


def _read_file(path: Path) -> Iterator[tuple[str, Any]]:
    kind = path.suffix
    if kind == ".npy":
        yield "", digest_array(np.load(path))
    elif kind == ".npz":
        with np.load(path) as arrays:
            yield from ((name, digest_array(arrays[name])) for name in arrays.files)
    elif kind == ".safetensors":
        yield from _read_safetensors(path)
    elif kind in (".parquet", ".csv"):
        yield from _read_table(path)
    elif path.name == "metrics.jsonl":
        yield from _read_rounds(path)
    elif path.name == "plan.json":
        yield from _read_plan(json.loads(path.read_text(encoding="utf-8")))
    elif kind == ".json":
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            content.pop("sha256", None)  # of the other fields, also of those that are left out
        yield from flatten(content)
    elif path.name == "graph.dgl":
        yield from _read_dgl_graph(path)
    else:
        yield "file", digest(path.read_bytes())


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def digest_array(array: np.ndarray) -> str:
    content = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
    return f"{array.dtype} {list(array.shape)} {digest(content)}"


def _read_safetensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Read the tensors without the library: a length, a header in JSON, and the bytes."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if name != "__metadata__":
            first, last = (8 + length + offset for offset in entry["data_offsets"])
            yield name, f"{entry['dtype']} {entry['shape']} {digest(content[first:last])}"


def _read_dgl_graph(path: Path) -> Iterator[tuple[str, Any]]:
    """Read it by DGL, which writes uninitialised memory between the arrays of this file."""
    import dgl

    graph = dgl.load_graphs(str(path))[0][0]
    for relation in graph.canonical_etypes:
        name = "__".join(relation)
        arrays = zip(("src", "dst"), graph.edges(order="eid", etype=relation), strict=True)
        for key, tensor in [*arrays, *graph.edges[relation].data.items()]:
            yield f"{name}.{key}", digest_array(tensor.numpy())
    for kind in graph.ntypes:
        for key, tensor in graph.nodes[kind].data.items():
            yield f"{kind}.{key}", digest_array(tensor.numpy())


def _read_table(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".csv":
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    else:
        table = pd.read_parquet(path)
    for column in table:
        yield str(column), digest_array(table[column].to_numpy())


def _read_rounds(path: Path) -> Iterator[tuple[str, Any]]:
    """Return each figure of the rounds of a layer as one value.

    A layer that a resumed run wrote twice counts once.
    """
    rounds = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    table = {(record["layer"], record["round"]): record for record in rounds}
    for layer in sorted({layer for layer, _ in table}):
        of_layer = [table[key] for key in sorted(table) if key[0] == layer]
        yield f"layer{layer}.rounds", len(of_layer)
        for name in of_layer[-1]:
            if name not in (*LEFT_OUT, "layer", "round"):
                column = [record.get(name) for record in of_layer]
                yield f"layer{layer}.{name}", f"{column[-1]} {digest(repr(column).encode())}"


def flatten(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the single values of a JSON object, without those that are left out."""
    if isinstance(content, dict) and "by_layer_and_kind" in content:
        yield from _flatten_bytes(content, prefix)
    elif isinstance(content, dict | list) and content:
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in items:
            if key not in LEFT_OUT:
                yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, content


def _flatten_bytes(counted: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield bytes.KIND.layerN and bytes.peers.SENDER-RECEIVER.

    All else are sums of these, which are checked here.
    """
    layers = counted["by_layer_and_kind"]
    for number, by_kind in enumerate(layers):
        place = "outside" if number == len(layers) - 1 else f"layer{number}"
        for kind, num_bytes in by_kind.items():
            yield f"{prefix}.{kind}.{place}", num_bytes
    for sender, row in enumerate(counted["by_peer"]):
        for receiver, num_bytes in enumerate(row):
            if num_bytes:
                yield f"{prefix}.peers.{sender}-{receiver}", num_bytes
    by_kind = {kind: sum(layer[kind] for layer in layers) for kind in layers[0]}
    sums = [sum(layer.values()) for layer in layers]
    yield (
        f"{prefix}.sums_agree",
        by_kind == counted["by_kind"]
        and sums == [*counted["by_layer"], counted["outside_layers"]]
        and sum(sums) == counted["total"] == sum(map(sum, counted["by_peer"])),
    )
    known = {"by_layer_and_kind", "by_peer", "by_kind", "by_layer", "outside_layers", "total"}
    yield from flatten({key: counted[key] for key in counted.keys() - known}, prefix)


def _read_plan(plan: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield bytes.KIND.LAYER.PHASE.SENDER-RECEIVER for each entry, and the rest of plan.json."""
    for entry in plan.pop("entries", []):
        words = [str(entry[key]) for key in ("kind", "layer", "phase")]
        name = ".".join(["bytes", *words, f"{entry['sender']}-{entry['receiver']}"])
        rest = {key: entry[key] for key in ("num_bytes", "exact", "if_smoothed") if key in entry}
        yield name, json.dumps(rest)
    yield from flatten(plan)


def hide_varying(values: dict[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    """Keep of the values that some pattern names only the type and shape of an array, or that there
    is a value. Entries of a list become one, since their number varies, too."""
    kept = {}
    for name, value in values.items():
        if any(matches(name, pattern) for pattern in patterns):
            name = re.sub(r"\.\d+(?=\.|$)", ".*", name)
            is_array = isinstance(value, str) and "[" in value
            value = value.rsplit(" ", 1)[0] if is_array else "varies"
        kept[name] = value
    return kept


def matches(name: str, pattern: str) -> bool:
    """Say whether a pattern with * and ? describes whole words of a name between its dots."""
    wild = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.search(rf"(^|\.){wild}(\.|$)", name) is not None
