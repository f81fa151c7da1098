"""`app=partition_data partition.from=DIR`: rebalance an updated partition directory in place."""

import time

from partitioning.dgl_import import has_dgl
from partitioning.directory.meta import Meta
from partitioning.directory.write_directory import write, writing
from partitioning.file_io import check_path
from partitioning.graph_data import GraphData
from partitioning.update.held_graph import open_directory
from partitioning.update.rebalance import read_graph, rebalance
from partitioning.update_settings import UpdateSettings
from retexo import __version__
from retexo.apps.partition_report import print_report


def rebalance_directory(settings: UpdateSettings) -> Meta:
    """Move few nodes to other partitions, and write the directory anew; return its description.

    Raises:
        InputError: it is no directory of this program, is damaged, or another process writes it.
    """
    path = check_path("partition.from", str(settings.source)).resolve()  # of a link its target
    with writing(path):
        held = open_directory(path)
        found, meta = read_graph(held), held.meta
        num_parts = held.num_parts
        better = rebalance(found, num_parts, settings.max_imbalance, settings.max_moved)
        moved = sum(int((better[name] != found.assignment[name]).sum()) for name in better)
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "moved": moved,
            "cut": {"before": meta.cut_edges},
            "version": __version__,
        }
        provenance = {
            "request": meta.request,
            "split": meta.split,
            "versions": meta.versions,
            "notes": meta.notes,
            "features": meta.features,
            "history": [*meta.history, entry],
        }
        made, _ = write(
            path,
            found.graph,
            found.masks,
            better,
            num_parts=num_parts,
            provenance=provenance,
            overwrite=True,
            with_dgl_files=has_dgl() and isinstance(found.graph, GraphData),
        )
    print_report(made, path)
    lost = meta.num_edges - made.num_edges
    if lost:
        print(f"note: {lost:,} self loops, which partitions leave out, are no longer counted")
    print(
        f"{path}: {moved:,} of {made.num_nodes:,} nodes moved; edges cut {meta.cut_edges:,} before,"
        f" {made.cut_edges:,} now; largest part {_measure_imbalance(meta):.3f} times the mean"
        " before,"
        f" {_measure_imbalance(made):.3f} now"
    )
    return made


def _measure_imbalance(meta: Meta) -> float:
    """Return the nodes of the largest partition divided by the mean over partitions."""
    return max(part.nodes for part in meta.parts) * len(meta.parts) / max(meta.num_nodes, 1)
