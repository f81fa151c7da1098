"""`app=partition_data partition.from=DIR`: rebalance an updated partition directory in place."""

import time
from dataclasses import replace

from partitioning.dgl_import import has_dgl
from partitioning.directory.meta import HeteroMeta, Meta
from partitioning.directory.replace_directory import writing
from partitioning.directory.stored_graph import read_graph, read_meta
from partitioning.file_io import check_path
from partitioning.partition_settings import PartitionSettings
from partitioning.update.rebalance import rebalance
from retexo import __version__
from retexo.apps.partition_report import print_report


def rebalance_directory(settings: PartitionSettings) -> Meta:
    """Move few nodes to other partitions, and write the directory anew; return its description.

    Raises:
        InputError: it is no directory of this program, is damaged, or another process writes it.
    """
    path = check_path(
        "partition.from", str(settings.partition.source)
    ).resolve()  # of a link its target
    with writing(path):
        meta = read_meta(path)
        stored = read_graph(path, meta)
        better = rebalance(stored)
        moved = sum(int((better[name] != stored.assignment[name]).sum()) for name in better)
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "moved": moved,
            "cut": {"before": meta.cut_edges},
            "version": __version__,
        }
        with_dgl_files = has_dgl() and not isinstance(meta, HeteroMeta)
        moved_meta = replace(stored, assignment=better).write(
            path, entry, with_dgl_files=with_dgl_files
        )
    print_report(moved_meta, path)
    sizes = [[part.nodes for part in each.parts] for each in (meta, moved_meta)]
    before, after = (f"{max(nodes) * len(nodes) / max(sum(nodes), 1):.3f}" for nodes in sizes)
    print(
        f"{path}: {moved:,} of {meta.num_nodes:,} nodes moved; edges cut {meta.cut_edges:,} before,"
        f" {moved_meta.cut_edges:,} now; largest part {before} times the mean before, {after} now"
    )
    return moved_meta
