"""Graphs of the user's own: `dataset_name=file dataset_file=PATH`, in one of three forms.

N nodes, E directed edges, F features, C classes. Nodes are 0 ... N-1. Each direction of an undirected edge is a row of
its own (or set `symmetrize=true`). Labels: an integer class from 0, -1 where there is none; or, multi-label, [N, C] of
0 and 1. Nothing is ever unpickled.

(a) PATH.npz, written by numpy.savez or savez_compressed:

    src, dst                            int64 [E]
    feat                                float [N, F]; or the CSR matrix
    feat_data, feat_indices, feat_indptr, feat_shape
    label                               int64 [N] or 0/1 [N, C]
    train_mask, val_mask, test_mask     bool [N], all three or none
    node_id                             int64 [N], optional: your own ids

(b) a folder:

    edges.csv | edges.parquet | edges.npy               columns src, dst; a csv may lack the header, an npy is [E, 2]
    features.npy | features.csv | features.parquet      [N, F]
    labels.npy | labels.csv | labels.parquet            [N] or [N, C]
    train, val (or valid), test  .npy | .csv            optional: node positions (0 ... N-1), or an npy mask

    A column `id` or `node_id` in the features or labels table gives the nodes' own integer ids. Edges then use these
    ids, and labels are put into the order of the features.

(c) PATH.bin | PATH.dgl, one homogeneous graph saved by dgl.save_graphs with ndata `feat`, `label` and, optionally,
    `train_mask`, `val_mask`, `test_mask`, `node_id`. DGL has no checksums: a damaged file is found only where its
    values make no sense.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from partitioning.checks import CSR, Array, features_among
from partitioning.datasets.raw import RawGraph, build
from partitioning.datasets.tables import read_folder
from partitioning.dgl_import import import_dgl
from partitioning.dgl_probe import check_readable
from partitioning.errors import InputError
from partitioning.files import check_path, reading
from partitioning.graph_data import MASKS, GraphData
from partitioning.settings import DatasetSettings

log = logging.getLogger(__name__)

KNOWN = ("src", "dst", "feat", *CSR, "label", *MASKS, "node_id")
FORMS = "an .npz, a folder with edges, features and labels, or a DGL graph file (.bin, .dgl)"
OF_PYG = "numpy.savez('graph.npz', src=edge_index[0], dst=edge_index[1], feat=x, label=y) writes such an .npz"
DGL_MAGIC = bytes.fromhex("3fa1b446f04f2edd")
"""How every file of dgl.save_graphs begins."""


def load(settings: DatasetSettings) -> GraphData:
    """Read and check the graph at `dataset_file`; it is named after the file's stem."""
    if settings.file is None:
        raise InputError(f"dataset_name=file needs dataset_file=PATH: {FORMS}")
    path = check_path("dataset_file", settings.file)
    if not path.exists():
        raise InputError(f"dataset_file={path}: there is no such file or folder; expected {FORMS}")
    if path.is_dir():
        raw = read_folder(path)
    elif path.suffix == ".npz":
        raw = read_npz(path)
    elif path.suffix in (".bin", ".dgl"):
        raw = read_dgl(path)
    else:
        pickled = "; a .pt is a pickle, which is not loaded: in PyG, " + OF_PYG if path.suffix == ".pt" else ""
        raise InputError(f"dataset_file={path}: a file of unknown form; expected {FORMS}{pickled}")
    return build(replace(raw, name=path.resolve().stem))


def read_npz(path: Path) -> RawGraph:
    """Read form (a); InputError if the file is damaged, holds Python objects or lacks an array."""
    arrays = read_arrays(path)
    where = {name: f"{path}: array `{name}`" for name in KNOWN}
    unknown = sorted(set(arrays) - set(KNOWN))
    if unknown:
        log.warning("%s: arrays that have no meaning here are left out: %s", path, ", ".join(unknown))
    return _raw_graph(path, arrays, where)


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an npz file by name; InputError if it is damaged or holds Python objects."""
    with reading(path, "npz file", "write it anew with numpy.savez"):
        archive = np.load(path, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise InputError(f"{path}: this is a single npy array; expected an npz of several")
    with archive:
        twice = [name for name, times in Counter(archive.files).items() if times > 1]
        if twice:
            raise InputError(f"{path}: holds `{twice[0]}` more than once; write it anew with numpy.savez")
        return {name: _read_array(archive, name, path) for name in archive.files}


def _read_array(archive: Mapping[str, Array], name: str, path: Path) -> Array:
    with reading(path, "array", where=f"{path}: array `{name}`"):
        array = archive[name]
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: member `{name}` is not an array; expected only .npy members")
    return array


def _raw_graph(path: Path, arrays: Mapping[str, Array], where: Mapping[str, str]) -> RawGraph:
    needed = ("src", "dst", "label")
    missing = [name for name in needed if name not in arrays]
    if missing:
        found = ", ".join(sorted(arrays)) or "nothing"
        renamed = f"; with PyG's names, {OF_PYG}" if "edge_index" in arrays else ""
        raise InputError(
            f"{path}: there is no array `{missing[0]}`; expected {', '.join(needed)} and features; "
            f"found {found}{renamed}"
        )
    return RawGraph(
        name=path.stem,
        src=arrays["src"],
        dst=arrays["dst"],
        features=features_among(arrays, path),
        label=arrays["label"],
        masks={name: arrays[name] for name in MASKS if name in arrays},
        node_id=arrays.get("node_id"),
        where=where,
    )


def read_dgl(path: Path) -> RawGraph:
    """Read form (c); InputError if it is no such file, or holds another number or kind of graphs."""
    with reading(path, "DGL graph file"), path.open("rb") as file:
        magic = file.read(len(DGL_MAGIC))
    if magic != DGL_MAGIC:
        raise InputError(f"{path}: not a DGL graph file; expected one written by dgl.save_graphs")
    check_readable([path])
    dgl = import_dgl(f"dataset_file={path}")

    try:
        graphs = dgl.load_graphs(str(path))[0]
    except Exception as error:  # DGL raises its own class, but also what its parser stumbles over
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InputError(f"{path}: not a readable DGL graph file ({reason}); write it anew") from None
    if len(graphs) != 1 or len(graphs[0].ntypes) != 1 or len(graphs[0].etypes) != 1:
        raise InputError(
            f"{path}: holds {len(graphs)} graphs, or several types of nodes or edges; expected one homogeneous graph: "
            "save dgl.to_homogeneous(graph, ndata=['feat', 'label'])"
        )
    unknown = [f"ndata `{name}`" for name in graphs[0].ndata if name not in KNOWN]
    unknown += [f"edata `{name}`" for name in graphs[0].edata]
    if unknown:
        log.warning("%s: %s: left out", path, ", ".join(sorted(unknown)))
    data = {name: tensor.numpy() for name, tensor in graphs[0].ndata.items() if name in KNOWN}
    src, dst = (ends.numpy() for ends in graphs[0].edges(order="eid"))
    where = {name: f"{path}: ndata `{name}`" for name in KNOWN}
    return _raw_graph(path, {**data, "src": src, "dst": dst}, where)
