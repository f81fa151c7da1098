"""Cut the bundled Cora graph into site folders, to try dataset_name=parts on one machine.

python examples/make_sites.py FOLDER NAME NAME ...
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning import datasets, node_split
from partitioning.errors import InputError
from partitioning.graph.array_checks import csr_arrays
from partitioning.graph.graph_data import GraphData
from partitioning.sites.site_description import ARRAYS, DESCRIPTION, VERSION
from retexo.settings.compose import compose


def write_sites(
    base: Path,
    graph: GraphData,
    masks: Mapping[str, NDArray[np.bool_]],
    assignment: NDArray[np.int64],
    names: list[str],
) -> list[Path]:
    """Cut a graph into site folders base/NAME, to try sites on one machine.

    Args:
        assignment: int64 [N], rank of each node's site.
        names: of the sites, by rank.

    Returns:
        The folders.

    Raises:
        InputError: a folder exists.
    """
    folders = [base / name for name in names]
    for rank, folder in enumerate(folders):
        if folder.exists():
            raise InputError(f"{folder}: exists; choose another place")
        nodes, incoming = np.flatnonzero(assignment == rank), assignment[graph.edges.dst] == rank
        description: dict[str, Any] = {"version": VERSION, "site": names[rank], "sites": names}
        if graph.label_kind != "multiclass":
            description |= {"task": graph.label_kind, "num_classes": graph.num_classes}
        rows = graph.features[nodes]
        arrays: dict[str, Any] = (
            csr_arrays(rows) if isinstance(rows, sp.csr_array) else {"feat": rows}
        )
        arrays |= {mask: values[nodes] for mask, values in masks.items()}
        folder.mkdir(parents=True)
        (folder / DESCRIPTION).write_text(
            json.dumps(description, indent=2) + "\n", encoding="utf-8"
        )
        np.savez_compressed(
            folder / ARRAYS,
            node_id=graph.node_ids[nodes],
            src=graph.node_ids[graph.edges.src[incoming]],
            dst=graph.node_ids[graph.edges.dst[incoming]],
            src_owner=assignment[graph.edges.src[incoming]],
            label=graph.labels[nodes],
            **arrays,
            **{name: data[incoming] for name, data in graph.edges.edge_data.items()},
        )
    return folders


def main(base: Path, names: list[str]) -> None:
    settings = compose(["dataset_name=cora"])
    graph = datasets.load_graph(settings)
    assert graph.is_plain
    split = node_split.draw(graph, settings.split, datasets.recipe("cora").split)
    masks = {"train_mask": split.train, "val_mask": split.val, "test_mask": split.test}
    assignment = np.random.default_rng(0).integers(len(names), size=graph.num_nodes)
    for folder in write_sites(base, graph, masks, assignment, names):
        print(f"{folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
