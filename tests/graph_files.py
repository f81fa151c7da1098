"""Write files of a small graph, change files, compare graphs with what is expected."""

import json
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from support import dataset_settings, dgl

from partitioning.datasets import load_graph
from partitioning.graph.graph_data import GraphData
from partitioning.graph.node_names import Names


def write_files(folder: Path, files: Mapping[str, Any]) -> Path:
    """Write each file as its content says; return the folder.

    Texts, bytes, data frames (parquet where the name says so, else csv), sparse matrices, dicts of
    arrays (npz) and arrays (npy). None leaves a file out.
    """
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, pd.DataFrame) and path.suffix == ".parquet":
            content.to_parquet(path)
        elif isinstance(content, pd.DataFrame):
            content.to_csv(path, index=False)
        elif sp.issparse(content):
            sp.save_npz(path, content)
        elif isinstance(content, dict):
            np.savez(path, **content)
        elif content is not None:
            np.save(path, content)
    return folder


def load(path: Path | str, **fields: Any) -> Any:
    """The graph of dataset_name=file, with other settings of data sets."""
    return load_graph(dataset_settings("file", str(path), **fields))


def change_json(path: Path, change: Callable[[Any], Any]) -> None:
    """Call the function with the content, which it changes in place; checksums stay as they are."""
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Call the function with the tensors of a file of DGL's, which it changes in place."""
    tensors = dgl.data.utils.load_tensors(str(path))
    change(tensors)
    dgl.data.utils.save_tensors(str(path), tensors)


def flip_bit(path: Path, share: float = 0.5) -> None:
    """Change one bit, by the share of the file's bytes that come before it."""
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 4
    path.write_bytes(content)


def change_site(folder: Path, described: Any = None, **arrays: Any) -> None:
    """Replace fields of site.json and arrays; None takes one away."""
    before = json.loads((folder / "site.json").read_text())
    after = {
        key: value for key, value in {**before, **(described or {})}.items() if value is not None
    }
    (folder / "site.json").write_text(json.dumps(after))
    with np.load(folder / "part.npz") as file:
        changed = {**file, **arrays}
    np.savez(
        folder / "part.npz", **{name: array for name, array in changed.items() if array is not None}
    )


def assert_graph(graph: Any, **expected: Any) -> None:
    """Compare attributes: numbers up to rounding in float32, everything else exactly.

    Of a plain graph also those of its nodes and edges.
    """
    is_plain = isinstance(graph, GraphData) and graph.is_plain
    places = [graph, graph.target_nodes, graph.edges] if is_plain else [graph]
    for name, value in expected.items():
        place = next(place for place in places if hasattr(place, name.split(".")[0]))
        actual = attrgetter(name)(place)
        actual = actual(np.arange(place.num_nodes)) if name == "shown_ids" else actual
        actual = actual.toarray() if hasattr(actual, "toarray") else actual
        actual = actual.tolist() if isinstance(actual, Names) else actual
        if np.asarray(value).dtype.kind == "f":
            np.testing.assert_allclose(actual, value, rtol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(actual, value, err_msg=name)


def assert_same(actual: Any, expected: Any, *names: str) -> None:
    """Assert that the named attributes are equal, tensors with their dtypes."""
    for name in names:
        one, other = attrgetter(name)(actual), attrgetter(name)(expected)
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, msg=name)
        else:
            assert one == other, name
