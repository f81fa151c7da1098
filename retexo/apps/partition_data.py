"""`app=partition_data`: load, split and assign a graph, and write the partition directory."""

import contextlib
import logging
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from partitioning import datasets, node_split
from partitioning.assign import hypergraph, metis
from partitioning.assign.assignment import assign, check_memory
from partitioning.datasets import is_local as is_local
from partitioning.dgl_import import has_dgl, require_dgl
from partitioning.directory import local_copies
from partitioning.directory.dgl_files import add_dgl_files, has_dgl_files, write_dgl_files
from partitioning.directory.meta import Meta
from partitioning.directory.replace_directory import writing
from partitioning.directory.stored_graph import read_graph, read_meta
from partitioning.directory.write_directory import write_parts
from partitioning.errors import InputError
from partitioning.features.build import (
    States,
    add_kinds,
    encode_tables,
    make_features,
    read_as_fitted,
)
from partitioning.features.spec import read_spec
from partitioning.files.file_io import check_path
from partitioning.graph.graph_data import MASKS, GraphData
from partitioning.links.link_baselines import baselines
from partitioning.links.link_split import (
    LinkSplit,
    find_relation,
    split_links,
    to_graph_of_relation,
)
from partitioning.partition_settings import PartitionSettings
from partitioning.read.labelled_edges import choose_message_edges, sources_of
from partitioning.update.place import rebalance
from retexo import __version__
from retexo.apps.partition_report import print_report
from retexo.apps.partition_request import (
    describe_difference,
    directory_of,
    find_differences,
    requested_settings,
)
from retexo.scores import check_stopping_metric
from retexo.settings.run_settings import TrainSettings

logger = logging.getLogger(__name__)


def run(settings: TrainSettings) -> Meta:
    """Write the partition directory, unless it exists with the same settings.

    Return its description. Prints a report. With `partition.from` moves nodes in that directory
    instead (`_rebalance`). An object store gets the files, too.

    Raises:
        InputError: data or settings cannot be used, or another or a damaged directory is there.
    """
    if settings.partition.source is not None:
        return _rebalance(settings)
    datasets.canonical_name(settings.dataset_name)  # refuses an unknown one
    if settings.task.links:
        check_stopping_metric(settings.stopping.metric, links=True)
    directory = directory_of(settings)
    request = requested_settings(settings)
    is_stored = local_copies.refresh(directory)
    existing = _find_existing(directory, request, settings, is_stored=is_stored)
    if existing is not None:
        if settings.partition.dgl_files and not has_dgl_files(existing):
            existing = _add_dgl_files(settings, directory, existing)
        logger.info("%s exists, made with the same settings; using it", directory)
        if not is_stored:
            local_copies.upload_directory(directory, existing)
        print_report(existing, directory)
        return existing
    if settings.partition_method == "km1":
        hypergraph.library()  # a missing extra is reported before the data set is loaded
    # What cannot be written is refused before the data set is loaded.
    _writes_dgl_files(settings, links=settings.task.links, typed=False)
    # BLAS threads spin while they wait: beside other work, two took 100 times as long as one.
    with writing(directory), threadpool_limits(1, user_api="blas"):
        # Another process may have made it meanwhile.
        existing = _find_existing(directory, request, settings, is_stored=is_stored)
        if existing is not None:
            return existing
        local_copies.announce_directory(directory)
        meta = _make(settings, directory, request)
        local_copies.upload_directory(directory, meta)
        return meta


def _rebalance(settings: PartitionSettings) -> Meta:
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
        with_dgl_files = has_dgl() and meta.is_plain
        moved_meta = replace(stored, assignment=better).write(
            path, entry, write_dgl_files if with_dgl_files else None
        )
    print_report(moved_meta, path)
    sizes = [[part.nodes for part in description.parts] for description in (meta, moved_meta)]
    before, after = (f"{max(nodes) * len(nodes) / max(sum(nodes), 1):.3f}" for nodes in sizes)
    print(
        f"{path}: {moved:,} of {meta.num_nodes:,} nodes moved; edges cut {meta.cut_edges:,} before,"
        f" {moved_meta.cut_edges:,} now; largest part {before} times the mean before, {after} now"
    )
    return moved_meta


@dataclass(frozen=True, eq=False)
class _SplitGraph:
    """A graph after the split: of its nodes, or of its pairs for link prediction."""

    graph: GraphData
    masks: dict[str, NDArray[np.bool_]]
    description: dict[str, Any]
    """Split's field of meta.json."""
    feature_states: States
    """The fitted feature pipelines."""
    pairs: LinkSplit | None = None


def _make(settings: TrainSettings, directory: Path, request: dict[str, Any]) -> Meta:
    """Load, split, assign and write a graph; print the report, and return the description.

    Removes a directory that is there if `settings.overwrite`. The description keeps `request`.
    InputError for data or settings that cannot be used, or too little memory for the method.
    """
    num_parts = settings.num_partitions
    stored = {} if settings.features.spec is None else read_spec(settings.features)
    with _collect_warnings() as notes:
        with _timed("load"):
            graph = read_as_fitted(
                lambda columns: datasets.read_graph(replace(settings, columns=columns)),
                settings.columns,
                stored,
            )
        with_dgl_files = _writes_dgl_files(
            settings, links=settings.task.links, typed=not graph.is_plain
        )
        with _timed("split"):
            if settings.task.links:
                graph, states = encode_tables(graph, settings.features, None, stored)
                graph, request = _select_relation(settings, graph, request, notes)
                split = _split_pairs(settings, graph, request, states)
            else:
                split = _split_nodes(settings, graph, stored)
    graph = split.graph
    check_memory(settings.partition_method, graph.num_edges, psutil.virtual_memory().available)
    with _timed("assign"):
        assignment = assign(graph, split.masks["train_mask"], settings)
    provenance = _provenance(settings, request, split.description, notes) | {
        "features": split.feature_states,
    }
    if split.pairs is not None:
        with _timed("baselines"):
            part_of = assignment[graph.target][split.pairs.rows["train"]]
            provenance["links"] = {
                **split.pairs.description,
                "cut_rows": int((part_of[:, 0] != part_of[:, 1]).sum()),
                "baselines": baselines(split.pairs),
            }
    with _timed("write"):
        meta, (num_loops, num_duplicates, num_isolated) = write_parts(
            directory,
            graph,
            split.masks,
            assignment,
            num_parts=num_parts,
            provenance=provenance,
            overwrite=settings.overwrite,
            links=None if split.pairs is None else split.pairs.arrays,
            add_files=write_dgl_files if with_dgl_files else None,
        )
    print_report(meta, directory)
    print(
        f"{num_loops:,} self loops among the edges, which training leaves out; {num_duplicates:,}"
        f" duplicates, which count; {num_isolated:,} isolated nodes"
    )
    return meta


def _split_nodes(settings: PartitionSettings, graph: GraphData, stored: States) -> _SplitGraph:
    """Draw or take the split, then encode the features with training nodes' statistics."""
    recipe = datasets.recipe(settings.dataset_name).split
    split = node_split.draw(graph, settings.split, recipe, sources_of(graph))
    graph = choose_message_edges(graph, settings, split.val | split.test)
    masks = {"train_mask": split.train, "val_mask": split.val, "test_mask": split.test}
    graph, states = make_features(graph, settings.features, split.train, stored)
    return _SplitGraph(graph, masks, split.describe(), states)


def _select_relation(
    settings: PartitionSettings, graph: GraphData, request: dict[str, Any], notes: list[str]
) -> tuple[GraphData, dict[str, Any]]:
    """Return the plain graph whose pairs are split, and the request with the relation's full name.

    Another name than the full one adds to `notes`.

    Raises:
        InputError: no such relation, or a plain graph and task.relation.
    """
    relation = settings.task.relation
    if graph.is_plain:
        if relation is not None:
            raise InputError(
                f"task.relation={relation}: {graph.name} has one type of nodes; leave it out"
            )
        return graph, request
    full_name = find_relation(graph, relation)
    if relation != full_name:
        asked = "the only relation" if relation is None else f"by task.relation={relation}"
        notes.append(f"links of {full_name} are predicted, {asked}")
    return to_graph_of_relation(graph, full_name), {**request, "task.relation": full_name}


def _split_pairs(
    settings: TrainSettings, graph: GraphData, request: dict[str, Any], states: States
) -> _SplitGraph:
    """Split the pairs of a plain graph, and make the features from the remaining edges."""
    split = settings.split
    if split.by is not None and split.by == (request["task.relation"] or "").split("__")[0]:
        split = replace(split, by="source")
    task, metric = settings.task, settings.stopping.metric
    pairs = split_links(graph, split, task.spectral, metric=metric)
    pairs = replace(pairs, graph=add_kinds(pairs.graph, settings.features))
    no_masks = dict.fromkeys(MASKS, np.zeros(graph.num_nodes, np.bool_))
    return _SplitGraph(pairs.graph, no_masks, pairs.description, states, pairs)


def _writes_dgl_files(settings: PartitionSettings, *, links: bool, typed: bool) -> bool:
    """Return whether DGL's files are written, too: if set, or unset where DGL is installed.

    Never for links and heterogeneous graphs (`typed`). InputError if they are wanted for these, or
    without DGL.
    """
    kind = "link prediction" if links else "a heterogeneous graph" if typed else None
    if not settings.partition.dgl_files:
        return kind is None and settings.partition.dgl_files is None and has_dgl()
    require_dgl("partition.dgl_files=true")
    if kind is not None:
        raise InputError(
            f"partition.dgl_files=true: DGL's files are not written for {kind}; leave it out"
        )
    return True


def _add_dgl_files(settings: PartitionSettings, directory: Path, existing: Meta) -> Meta:
    """Write DGL's files into a directory that lacks them.

    InputError for links, a heterogeneous graph, or without DGL.
    """
    _writes_dgl_files(settings, links=bool(existing.links), typed=not existing.is_plain)
    with writing(directory):
        return add_dgl_files(directory, existing)


def _provenance(
    settings: PartitionSettings, request: dict[str, Any], split: dict[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Return the fields of Meta that say how the directory was made."""
    packages = ["torch", "numpy"]
    if settings.partition_method in ("metis", "km1"):
        packages.append("mtkahypar" if settings.partition_method == "km1" else metis.find_library())
    return {
        "request": request,
        "split": split,
        "versions": {**{name: version(name) for name in packages}, "retexo": __version__},
        "notes": notes,
    }


@contextlib.contextmanager
def _collect_warnings() -> Iterator[list[str]]:
    """Yield a list that gets each warning which partitioning logs, besides the log."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("partitioning").addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger("partitioning").removeHandler(handler)


@contextlib.contextmanager
def _timed(phase: str) -> Iterator[None]:
    """Log the duration of a phase, and the peak memory of this process so far."""
    start = time.perf_counter()
    logger.info("%s", phase)
    yield
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    taken = time.perf_counter() - start
    logger.info("%s: %.1f s; peak memory so far %.2f GiB", phase, taken, memory)


def _find_existing(
    directory: Path, request: dict[str, Any], settings: PartitionSettings, *, is_stored: bool
) -> Meta | None:
    """Return the description of a directory that can be used as it is; None if one is to be made.

    is_stored: whether an object store has its files, which need not be here.

    Raises:
        InputError: another or a damaged directory is there, and overwrite=false.
    """
    if settings.overwrite or not directory.exists():
        return None
    meta = Meta.read(directory) if directory.is_dir() else None
    if meta is None:
        raise InputError(
            f"{directory}: exists and was not written by this program; set another partition_dir, "
            "or overwrite=true to replace it"
        )
    differing = find_differences(meta, request)
    if differing:
        changes = ", ".join(describe_difference(name, *both) for name, both in differing.items())
        raise InputError(
            f"{directory}: exists with other settings: {changes}; "
            "set overwrite=true to replace it, or another partition_dir"
        )
    damaged = None if is_stored else meta.first_damaged(directory)
    if damaged is not None:
        raise InputError(f"{damaged}: missing or damaged; set overwrite=true to partition again")
    return meta
