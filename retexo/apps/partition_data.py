"""`app=partition_data`: load a graph, split its nodes, assign them to partitions, write the partition directory."""

import contextlib
import functools
import logging
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from partitioning import assign, datasets, hypergraph, node_split
from partitioning.datasets import objects as objects
from partitioning.datasets.file import TABLES
from partitioning.datasets.node_features import with_features
from partitioning.dgl_import import has_dgl, require_dgl
from partitioning.directory.meta import HeteroMeta, Meta
from partitioning.directory.verify import verify_directory
from partitioning.directory.write_directory import CHUNK, write, writing
from partitioning.errors import InputError
from partitioning.file_io import check_path, file_checksum
from partitioning.graph_data import MASKS, Endpoints, GraphData, HeteroGraphData
from partitioning.links.link_baselines import baselines
from partitioning.links.link_split import find_relation, is_relation, of_relation, split_links
from partitioning.partition_settings import PartitionSettings
from retexo import __version__
from retexo.apps import partition_hetero
from retexo.exchange.cover import minimum_cover

logger = logging.getLogger(__name__)

COVER_LIMIT = 4_000_000
"""Cut edges beyond which the cover is not counted. 4 million take 3 s
and 0.5 GiB on one core, as long as to write the parts."""


def run(settings: PartitionSettings) -> Meta:
    """Make the partition directory, unless it is there with the same settings; return its description."""
    datasets.canonical_name(settings.dataset.name)  # refuses an unknown one
    directory = directory_of(settings)
    request = requested_settings(settings)
    found = _existing(directory, request, settings.overwrite, settings.dataset.file)
    if found is not None:
        if settings.dgl_files and not (directory / f"{directory.name}.json").is_file():
            raise InputError(
                f"partition.dgl_files=true: {directory} is there without them; set overwrite=true"
            )
        logger.info("%s is there already, made with the same settings; using it", directory)
        _print_report(found, directory)
        return found
    if settings.method == "km1":
        hypergraph.library()  # a missing extra is found before the data set is loaded
    if settings.dgl_files:
        require_dgl("partition.dgl_files=true")
    # Threads of BLAS wait busily: beside other work two took a hundred times as long as one.
    with writing(directory), threadpool_limits(1, user_api="blas"):
        # Another process may have made it.
        found = _existing(directory, request, settings.overwrite, settings.dataset.file)
        return _make(settings, directory, request) if found is None else found


def verify(settings: PartitionSettings) -> None:
    """Check the partition directory that the settings name, or partition_dir itself; InputError for a damaged one."""
    named = directory_of(settings)
    path = named if named.exists() else Path(settings.dir)
    damages = verify_directory(path)
    meta = Meta.read(path)
    if meta is not None:
        _print_report(meta, path)
    if damages:
        raise InputError("; ".join(damages.values()))
    print(
        f"{path}: all parts {'are as meta.json says' if meta else 'can be read; nothing says what they should hold'}"
    )


def _make(settings: PartitionSettings, directory: Path, request: dict[str, Any]) -> Meta:
    """Load, split, assign, write, and print the report."""
    seconds: dict[str, float] = {}
    with _timed(seconds, "load"), _warnings() as notes:
        graph = datasets.load_any(settings.dataset)
        learned = graph.of_target() if isinstance(graph, HeteroGraphData) else graph
        if settings.dataset.links:
            return _make_links(settings, directory, request, graph, notes, seconds)
        split = node_split.draw(
            learned, settings.dataset.split, datasets.recipe(settings.dataset.name).split
        )
        masks = {"train_mask": split.train, "val_mask": split.val, "test_mask": split.test}
    assign.check_memory(settings.method, graph.num_edges, psutil.virtual_memory().available)
    if isinstance(graph, HeteroGraphData):
        described, counts = partition_hetero.write(
            settings,
            directory,
            graph,
            masks,
            functools.partial(_provenance, settings, request, split.describe(), notes),
            functools.partial(_timed, seconds),
            covered,
            COVER_LIMIT,
        )
        return _reported(described, directory, counts, seconds)
    with _timed(seconds, "assign"):
        assignment = assign.assign(graph, split.train, settings)
    with _timed(seconds, "cover"):
        rows = cover_rows(graph.src, graph.dst, assignment, settings.num_partitions)
        if rows is None:
            logger.info(
                "rows after the cover are not counted: more than %s edges are cut",
                f"{COVER_LIMIT:,}",
            )
    with _timed(seconds, "write"):
        meta, odd = write(
            directory,
            graph,
            masks,
            assignment,
            num_parts=settings.num_partitions,
            provenance=_provenance(settings, request, split.describe(), notes, rows),
            overwrite=settings.overwrite,
            with_dgl_files=has_dgl() if settings.dgl_files is None else settings.dgl_files,
        )
    counts = (
        f"{odd.self_loops:,} self loops, which are left out; {odd.duplicates:,} duplicates, which count; "
        f"{odd.isolated:,} isolated nodes"
    )
    return _reported(meta, directory, counts, seconds)


def _make_links(
    settings: PartitionSettings,
    directory: Path,
    request: dict[str, Any],
    graph: GraphData | HeteroGraphData,
    notes: list[str],
    seconds: dict[str, float],
) -> Meta:
    """The same of a graph whose pairs are split."""
    relation = settings.dataset.relation
    if isinstance(graph, HeteroGraphData):
        named, relation = relation, find_relation(graph, relation)
        if named != relation:
            notes.append(f"task.relation={named}: {relation}")
        request = {**request, "task.relation": relation}
        graph = of_relation(graph, relation)
    elif relation is not None:
        raise InputError(
            f"task.relation={relation}: {graph.name} has one type of nodes; leave it out"
        )
    by = settings.dataset.split
    if by.by is not None and by.by == (relation or "").split("__")[0]:
        by = replace(by, by="source")
    with _timed(seconds, "split"):
        split = split_links(graph, by, settings.dataset.spectral, paths=settings.dataset.paths)
    split = replace(split, graph=with_features(split.graph, settings.dataset.features))
    graph, no_masks = split.graph, dict.fromkeys(MASKS, np.zeros(graph.num_nodes, np.bool_))
    with _timed(seconds, "assign"):
        assign.check_memory(settings.method, graph.num_edges, psutil.virtual_memory().available)
        assignment = assign.assign(graph, np.zeros(graph.num_nodes, np.bool_), settings)
    rows = cover_rows(graph.src, graph.dst, assignment, settings.num_partitions)
    with _timed(seconds, "baselines"):
        scores = baselines(split)
    part_of = assignment[split.rows["train"]]
    links = {
        **split.description,
        "cut_rows": int((part_of[:, 0] != part_of[:, 1]).sum()),
        "baselines": scores,
    }
    with _timed(seconds, "write"):
        meta, odd = write(
            directory,
            graph,
            no_masks,
            assignment,
            num_parts=settings.num_partitions,
            provenance={
                **_provenance(settings, request, split.description, notes, rows),
                "links": links,
            },
            overwrite=settings.overwrite,
            links=split.arrays,
        )
    return _reported(meta, directory, f"{odd.isolated:,} isolated nodes", seconds)


def _print_links(links: dict[str, Any]) -> None:
    pairs = ", ".join(f"{count:,} {part}" for part, count in links["pairs"].items())
    print(
        f"pairs: {pairs}; {links['edges_removed']:,} edges of held-out pairs left the graph; "
        f"{links['cut_rows']:,} of {links['rows']['train']:,} training rows between two parts"
    )
    if links["spectral"]:
        print(
            f"spectral embedding: {links['spectral']} columns, degrees to the power -{links['spectral_power']}, of "
            f"an MRR of {links['spectral_mrr']:.4f} on validation pairs"
        )
    for name, scores in links["baselines"].items():
        print(
            f"{name:<20} "
            + ", ".join(f"{measure} {value:.4f}" for measure, value in scores.items())
        )


def _provenance(
    settings: PartitionSettings,
    request: dict[str, Any],
    split: dict[str, Any],
    notes: list[str],
    rows: int | None,
) -> dict[str, Any]:
    """Fields of Meta that say how the directory was made."""
    packages = ("torch", "numpy", *(("mtkahypar",) if settings.method == "km1" else ()))
    return {
        "request": request,
        "split": split,
        "versions": {**{name: version(name) for name in packages}, "retexo": __version__},
        "cover_rows": rows,
        "notes": notes,
    }


def _reported(meta: Meta, directory: Path, counts: str, seconds: dict[str, float]) -> Meta:
    _print_report(meta, directory)
    logger.info(counts)
    print(counts)
    print(
        f"seconds: {', '.join(f'{phase} {taken:.1f}' for phase, taken in seconds.items())}; "
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"
    )
    return meta


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """What is warned of, besides being logged."""
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("partitioning").addHandler(handler)
    try:
        yield told
    finally:
        logging.getLogger("partitioning").removeHandler(handler)


@contextlib.contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Note and log how long a phase took, and the peak of memory so far."""
    start = time.perf_counter()
    logger.info("%s", phase)
    yield
    seconds[phase] = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    logger.info("%s: %.1f s; peak memory so far %.2f GiB", phase, seconds[phase], peak)


def cover_rows(
    src: Endpoints,
    dst: Endpoints,
    assignment: NDArray[np.int64],
    num_parts: int,
    *,
    limit: int = COVER_LIMIT,
) -> int | None:
    """Rows of an exchange when a partial sum is sent wherever it saves rows; None for more than `limit` cut edges.

    That is the smallest vertex cover of the boundary edges, summed over the ordered pairs of parts. A source is told
    apart by the part that it sends to, and a destination by the part that it hears from: then the pairs share no
    vertex, and one cover does for all of them. src, dst [E]; assignment int64 [N].
    """
    cut: list[NDArray[np.int64]] = []
    for begin in range(0, len(src), CHUNK):
        chunk = slice(begin, begin + CHUNK)
        cut.append(begin + np.flatnonzero(assignment[src[chunk]] != assignment[dst[chunk]]))
        if sum(map(len, cut)) > limit:
            return None
    edges = np.concatenate(cut) if cut else np.empty(0, np.int64)
    senders, receivers = src[edges].astype(np.int64), dst[edges].astype(np.int64)
    return covered(
        senders * num_parts + assignment[receivers], receivers * num_parts + assignment[senders]
    )


def covered(rows: NDArray[np.int64], partial_sums: NDArray[np.int64]) -> int:
    """The smallest vertex cover of edges between a row and a partial sum that it enters, by their keys, [E] each."""
    sources, left = _numbered(rows)
    sums, right = _numbered(partial_sums)
    return minimum_cover(left, right, np.ones(sources, np.int64), np.ones(sums, np.int64)).weight


def _numbered(keys: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """How many distinct keys there are, int64 [K], and each one's place among them; np.unique takes twice as long."""
    order = np.argsort(keys)
    first = np.diff(keys[order], prepend=-1) > 0
    place = np.empty_like(keys)
    place[order] = np.cumsum(first) - 1
    return int(first.sum()), place


def is_local(settings: PartitionSettings) -> bool:
    """Whether nothing has to be downloaded; InputError for a data set that nobody knows."""
    return datasets.is_local(settings.dataset)


def directory_of(settings: PartitionSettings) -> Path:
    """PARTITION_DIR/NAME-METHOD-OBJECTIVE-PARTS, where NAME of the user's own data is the stem of its file."""
    name = f"{_data_name(settings)}{'-links' * settings.dataset.links}-{settings.method}-{settings.objective}"
    return check_path("partition_dir", settings.dir) / f"{name}-{settings.num_partitions}"


def _data_name(settings: PartitionSettings) -> str:
    dataset = settings.dataset
    if dataset.name != "file":
        if Path(dataset.name).name != dataset.name or "\0" in dataset.name:
            raise InputError(
                f"dataset_name={dataset.name!r}: expected a name; a path goes into dataset_file"
            )
        if dataset.file is not None and dataset.name != "parts":
            raise InputError(
                f"dataset_file={dataset.file} has no meaning with dataset_name={dataset.name}: "
                "remove it, or set dataset_name=file"
            )
        return dataset.name
    if dataset.file is None:
        raise InputError(
            "dataset_name=file needs dataset_file=PATH: an npz, a folder of tables, or a DGL graph file"
        )
    return check_path("dataset_file", dataset.file).resolve().stem


def requested_settings(settings: PartitionSettings) -> dict[str, Any]:
    """The settings that decide what a partition directory holds, by their names on the command line."""
    dataset = settings.dataset
    recipe = datasets.recipe(dataset.name)
    split = asdict(dataset.split)
    kind = recipe.split.kind if split.pop("kind") == "default" else dataset.split.kind
    of_links = {f"split.{name}": split.pop(name) for name in node_split.OF_LINKS}
    if of_links["split.edges"] is not None:
        of_links["split.edges"] = list(of_links["split.edges"])  # as JSON has it
    if dataset.links:
        kind, split = (
            ("files" if dataset.split.kind == "files" else "links"),
            {"seed": dataset.split.seed},
        )
    elif kind == recipe.split.kind:
        split = {
            name: getattr(recipe.split, name, None) if value is None else value
            for name, value in split.items()
        }
    request = {
        "dataset_name": datasets.canonical_name(dataset.name),
        "symmetrize": recipe.symmetrize if dataset.symmetrize is None else dataset.symmetrize,
        "split": kind,
        **{f"split.{name}": value for name, value in split.items()},
        "partition_method": settings.method,
        "part_obj": settings.objective,
        "num_partitions": settings.num_partitions,
        "partition.seed": settings.seed,
        "partition.balance_train": settings.balance_train,
        "labels": dataset.labels,
        "duplicates": dataset.duplicates,
        "features": dataset.features
        if isinstance(dataset.features, dict)
        else list(dataset.features),
        **{f"columns.{role}": name for role, name in asdict(dataset.columns).items()},
    }
    if request["columns.time"] is None:
        del request["columns.time"]
    if dataset.links:
        request |= {"task": "link_prediction", "task.relation": dataset.relation, **of_links}
        request |= {"task.spectral": dataset.spectral, "task.paths": dataset.paths}
    if dataset.target is not None:  # of a heterogeneous graph, as is the next
        request["target"] = dataset.target
    if not dataset.reverse:
        request["relations.reverse"] = False
    if dataset.name in ("synthetic", "synthetic_hetero"):
        drawn = asdict(dataset.synthetic)
        if dataset.name == "synthetic":
            del drawn["types"], drawn["relations"]
        request |= {f"synthetic.{name}": value for name, value in drawn.items()}
    files: dict[str, str | Path | None] = {
        "dataset_file": dataset.file,
        "partition_file": settings.file,
    }
    if kind == "files":
        files |= {
            f"split.{name}": node_split.index_file(name, dataset.split) for name in node_split.PARTS
        }
    for name, file in files.items():
        if file is not None:
            path = check_path(name, str(file))
            checksums = [file_checksum(each) for each in _files_of(name, path)]
            request[name] = {"name": path.name, "sha256": " ".join(checksums) or None}
    return request


def is_of_file(value: Any) -> bool:
    """Whether a setting's value in a request describes a file: its name and what it holds."""
    return isinstance(value, dict) and value.keys() == {"name", "sha256"}


def made_with(meta: Meta, request: dict[str, Any]) -> dict[str, Any]:
    """The request of a directory, to compare `request` with: what is the same has the same name in both.

    Settings that came later had their defaults.
    """
    later = {
        "labels": "auto",
        "duplicates": "keep",
        "features": ["given"],
        "split.drop_unlabelled": False,
    }
    there = later | meta.request
    relation = there.get("task.relation")
    if relation is not None and is_relation(request.get("task.relation"), str(relation)):
        there["task.relation"] = request["task.relation"]
    return there


def _files_of(setting: str, path: Path) -> list[Path]:
    """The file that a setting names, or all files right in a folder, its nodes/ and edges/; none where there is none.

    A table of dataset_file stands for its folder.
    """
    if path.is_file() and not (setting == "dataset_file" and path.suffix in TABLES):
        return [path]
    folder = path.parent if path.is_file() else path
    folders = [folder, folder / "nodes", folder / "edges"] if folder.is_dir() else []
    return sorted(
        file for each in folders if each.is_dir() for file in each.iterdir() if file.is_file()
    )


def _difference(setting: str, there: Any, here: Any, path: str | Path | None) -> str:
    """What of a setting differs; of files their names. path: of the file or folder that the setting names now."""
    if not (is_of_file(there) and is_of_file(here)) or there["name"] != here["name"]:
        shown = (each["name"] if is_of_file(each) else each for each in (there, here))
        return "{} ({} there, {} now)".format(setting, *shown)
    before, now = (set(str(each["sha256"] or "").split()) for each in (there, here))
    if len(before) == len(now) == 1:
        return f"{setting} ({here['name']} has changed since)"
    files = [] if path is None else _files_of(setting, Path(path))
    changed = [file.name for file in files if file_checksum(file) not in before]
    if not changed:
        return f"{setting} ({len(before - now)} of the files of {there['name']} are gone)"
    return f"{setting} ({', '.join(changed)}: changed since, or new)"


def _existing(
    directory: Path, request: dict[str, Any], overwrite: bool, dataset_file: str | None
) -> Meta | None:
    """The description of a directory that can be used as it is; InputError where it would be lost."""
    if overwrite or not directory.exists():
        return None
    meta = Meta.read(directory) if directory.is_dir() else None
    if meta is None:
        raise InputError(
            f"{directory}: exists and was not written by this program; set another partition_dir, "
            "or overwrite=true to replace it"
        )
    names = sorted(request.keys() | meta.request.keys())
    there = made_with(meta, request)
    differing = [name for name in names if request.get(name) != there.get(name)]
    if differing:
        paths = {"dataset_file": dataset_file}
        changes = ", ".join(
            _difference(name, there.get(name), request.get(name), paths.get(name))
            for name in differing
        )
        raise InputError(
            f"{directory}: exists with other settings: {changes}; "
            "set overwrite=true to replace it, or another partition_dir"
        )
    damaged = meta.first_damaged(directory)
    if damaged is not None:
        raise InputError(f"{damaged}: missing or damaged; set overwrite=true to partition again")
    return meta


def _print_report(meta: Meta, directory: Path) -> None:
    share = meta.cut_edges / meta.num_edges if meta.num_edges else 0.0
    print(
        f"{directory}: {meta.num_nodes:,} nodes, {meta.num_edges:,} directed edges, {meta.num_features} features, "
        f"{meta.num_classes} classes ({meta.task}); {meta.cut_edges:,} edges cut ({share:.1%})"
    )
    print(f"halo rows {sum(part.halo for part in meta.parts):,}; {_after_cover(meta)}")
    columns = ("part", "nodes", "edges", "halo", "train", "val", "test")
    print(" ".join(f"{column:>10}" for column in columns))
    for part, counts in enumerate(meta.parts):
        print(
            " ".join(
                f"{value:>10,}"
                for value in (part, *(getattr(counts, column) for column in columns[1:]))
            )
        )
    if isinstance(meta, HeteroMeta):
        partition_hetero.print_types(meta)
    if meta.links:
        _print_links(meta.links)
    for note in meta.notes:
        print(f"note: {note}")


def _after_cover(meta: Meta) -> str:
    if meta.cover_rows is not None:
        return f"{meta.cover_rows:,} rows after the cover (partial sums where they are fewer)"
    if meta.cut_edges > COVER_LIMIT:
        return f"rows after the cover not counted (more than {COVER_LIMIT:,} edges cut)"
    return "rows after the cover not counted (made by an earlier version; overwrite=true makes it again)"
