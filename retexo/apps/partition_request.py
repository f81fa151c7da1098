"""What a partition directory is made from: its path, and the settings that decide its content.

`app=partition_data` reuses a directory only if these settings and the checksums of all input files
are the same; `app=train` compares them with its command line.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from partitioning import datasets
from partitioning.directory.meta import Meta
from partitioning.errors import InputError
from partitioning.features.spec import find_spec
from partitioning.files.file_io import check_path, file_checksum
from partitioning.graph.graph_data import SPLITS, is_relation
from partitioning.partition_settings import PartitionSettings
from partitioning.read.file import TABLES
from partitioning.read.index_files import FILE_NAMES, index_file
from partitioning.read.labels import unknown_labels
from partitioning.read.table_files import kind_of, list_visible, stem_of
from partitioning.read.tables import NODE_TABLES, named_tables
from retexo.settings.run_settings import TrainSettings
from retexo.settings.schema import DEFAULTS, DEFINED, keys, with_current_names

SHORT_NAMES = {"features.kind": "features", "labels.kind": "labels", "split.kind": "split"}
"""Settings whose name in a request is another one."""
SPECTRAL_METRIC = "stopping.metric of task.spectral"
"""Not a setting's name: a run may stop by another metric than the partitions were made with."""
FIXED = keys(lambda setting: setting.of_partitioner and setting.compared) - {"edges.unknown"}
"""Settings that a request holds, or leaves out at their defaults."""
OF_NODES = {
    name
    for name in FIXED
    if name.startswith("split.") and name not in ("split.seed", "split.edges", "split.by")
}
OF_LINKS = {"split.edges", "task.spectral"}
OF_PAIRS = {"split.by", "task.relation"}
OF_LABELLED_EDGES = {"task.message_edges"}
OF_TABLES = {f"features.{name}" for name in ("scale", "missing", "fit")}
ONE_COLUMN = {f"columns.{name}" for name in ("id", "label", "src", "dst")}
"""Settings of which a request has a list of one column as that column."""
OPTIONAL = {
    *("split.index", "labels.unknown", "target"),
    *("relations.reverse", "tables.nodes", "tables.edges", "features.spec", "partition_file"),
    *(name for name in FIXED - ONE_COLUMN - {"columns.weight"} if name.startswith("columns.")),
}
"""Settings that a request has only where they are not at their defaults."""


def directory_of(settings: PartitionSettings) -> Path:
    """Return PARTITION_DIR/NAME-METHOD-OBJECTIVE-PARTS; -links, -edges or -regression follows NAME.

    For dataset_name=file, NAME is the stem of dataset_file. InputError as `_data_name`, and for
    paths that cannot be used. Whether it exists is not checked.
    """
    task = "-links" if settings.task.links else "-regression" if settings.task.regression else ""
    task = f"-edges{task}" if settings.task.of_edges else task
    name = f"{_data_name(settings)}{task}-{settings.partition_method}-{settings.part_obj}"
    return check_path("partition_dir", settings.partition_dir) / f"{name}-{settings.num_partitions}"


def _data_name(settings: PartitionSettings) -> str:
    """Return the name of the data set in paths: dataset_name, or the stem of dataset_file.

    InputError for a name that is a path, and a dataset_file that is needed but not set. Whether it
    exists is not checked.
    """
    if settings.dataset_name != "file":
        name = settings.dataset_name
        if Path(name).name != name or "\0" in name:
            raise InputError(
                f"dataset_name={name!r}: expected a name; a path goes into dataset_file"
            )
        return settings.dataset_name
    if settings.dataset_file is None:
        raise InputError(
            "dataset_name=file needs dataset_file=PATH: an npz, a folder of tables, or a DGL graph"
            " file"
        )
    return check_path("dataset_file", settings.dataset_file).resolve().stem


def requested_settings(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings that decide the content of a partition directory, by command-line name.

    Values are those of JSON, with the split of the data set where none is set. Without settings
    that have no effect here, and those of OPTIONAL at their defaults. A file is represented by its
    name and checksum, which is None where it does not exist. InputError for an unknown data set.
    """
    recipe = datasets.recipe(settings.dataset_name)
    kind = recipe.split.kind if settings.split.kind == "default" else settings.split.kind
    is_of_pairs = settings.task.links or settings.task.of_edges
    unused = {
        *(OF_NODES if settings.task.links else OF_LINKS),
        *(() if is_of_pairs else OF_PAIRS),
        *(() if settings.task.of_edges else OF_LABELLED_EDGES),
        *(() if settings.dataset_name == "file" else OF_TABLES),
    }
    values = {name: _plain_value(name, settings) for name in sorted(FIXED - unused)}
    for name in (values.keys() & OF_NODES) if kind == recipe.split.kind else ():
        if values[name] is None:
            values[name] = getattr(recipe.split, name.removeprefix("split."))
    request = {
        SHORT_NAMES.get(name, name): value
        for name, value in values.items()
        if name not in OPTIONAL or value != DEFAULTS[name]
    }
    if settings.task.links:
        kind = "files" if settings.split.kind == "files" else "links"
    request |= {
        "dataset_name": datasets.canonical_name(settings.dataset_name),
        "symmetrize": recipe.symmetrize if settings.symmetrize is None else settings.symmetrize,
        "split": kind,
        "num_partitions": settings.num_partitions,
    }
    if settings.edges.unknown == "add":  # of a graph that is read, drop and refuse are one
        request["edges.unknown"] = "add"
    if settings.task.of_edges:
        request["labels.of"] = "edges"
    if settings.task.links or settings.task.regression:
        request["task"] = settings.task.node_task
    if settings.task.links and settings.task.spectral and settings.stopping.metric != "auto":
        request[SPECTRAL_METRIC] = settings.stopping.metric
    if settings.dataset_name in ("synthetic", "synthetic_hetero"):
        synthetic = asdict(settings.synthetic).items()
        request |= {f"synthetic.{name}": value for name, value in synthetic}
    files: dict[str, str | Path | None] = {
        "dataset_file": settings.dataset_file,
        "partition_file": settings.partition_file,
    }
    if settings.features.spec is not None:
        files["features.spec"] = find_spec(settings.features.spec)
    if kind == "files":
        files |= {f"split.{name}": index_file(name, settings.split) for name in SPLITS}
    for name, file in files.items():
        if file is not None:
            path = check_path(name, str(file))
            named = named_tables(settings.tables) if name == "dataset_file" else []
            request[name] = {"name": path.name, "sha256": _checksum(name, path, named)}
    return request


def _plain_value(name: str, settings: TrainSettings) -> Any:
    """Return a setting as JSON has it; a list of one id, label, source or destination is that."""
    value = functools.reduce(getattr, name.split("."), settings)
    if name == "labels.unknown":
        return list(unknown_labels(settings.labels)) or None
    if name in ONE_COLUMN and isinstance(value, tuple) and len(value) == 1:
        return value[0]
    return list(value) if isinstance(value, tuple) else value


def is_file_value(value: Any) -> bool:
    """Return whether a value in a request describes a file by name and checksum."""
    return isinstance(value, dict) and value.keys() == {"name", "sha256"}


def find_differences(meta: Meta, request: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ between a directory and a request: name -> (there, here).

    A relation is named as in the request.
    """
    there = with_current_names(meta.request)
    relation = there.get("task.relation")
    if relation is not None and is_relation(request.get("task.relation"), str(relation)):
        there["task.relation"] = request["task.relation"]
    if not meta.is_plain and "target" in request:
        there["target"] = meta.target  # also where it is the default
    return {
        name: (there.get(name), request.get(name))
        for name in sorted(there.keys() | request.keys())
        if there.get(name) != request.get(name)
    }


def made_with(meta: Meta) -> dict[str, Any]:
    """Return the settings that a directory was made with, by dotted name, as a command has them.

    A file is given by its name. Settings that the request leaves out have their defaults.
    """
    known = {SHORT_NAMES.get(name, name): name for name in DEFINED}
    request = {
        known[name]: value
        for name, value in with_current_names(meta.request).items()
        if name in known
    }
    if request.get("split.kind") == "links":  # of pairs; `split` does not name it
        del request["split.kind"]
    if not meta.is_plain:
        request["target"] = meta.target
    usual = {name: DEFAULTS[name] for name in FIXED}
    usual_values = {name: value for name, value in usual.items() if not str(value).startswith("${")}
    for name, value in request.items():
        value = value["name"] if is_file_value(value) else value
        usual_values[name] = value[0] if isinstance(value, list) and len(value) == 1 else value
    return usual_values


def data_checksums(meta: Meta) -> dict[str, str]:
    """Return the sha256 of the files that a directory was made from, by setting.

    That of a folder is of the list of its tables. partition_file is left out.
    """
    files = {name: value["sha256"] for name, value in meta.request.items() if is_file_value(value)}
    files.pop("partition_file", None)  # of the assignment
    return {
        name: str(value)
        if len(str(value)) == 64
        else hashlib.sha256(str(value).encode()).hexdigest()
        for name, value in files.items()
    }


def _checksum(setting: str, path: Path, named: Sequence[str] = ()) -> str | None:
    """Return the sha256 (hex) of the file that a setting names, or of every table of a folder.

    A table of dataset_file stands for its folder, whose tables are NAME:SHA256, separated by
    blanks. The name is relative to the folder, quoted as in a URL. None where nothing exists.

    named: the names of tables that settings give.
    """
    if path.is_file() and not (setting == "dataset_file" and kind_of(path) in TABLES):
        return file_checksum(path)
    folder = path.parent if path.is_file() else path
    if not folder.is_dir():
        return None
    return (
        " ".join(
            f"{quote(str(file.relative_to(folder)))}:{file_checksum(file)}"
            for file in _list_tables(folder, named)
        )
        or None
    )


def _list_tables(folder: Path, named: Sequence[str]) -> list[Path]:
    """Return the files of a folder of tables that may be read, sorted.

    These have known names, or `named`, or are in nodes/ and edges/, or are part files of tables
    that are folders. Hidden files are not read; names of types may begin with _.
    """
    known = {"edges", *NODE_TABLES, *chain.from_iterable(FILE_NAMES.values())}
    groups = [path for path in (folder / "nodes", folder / "edges") if path.is_dir()]
    tables = [path for path in list_visible(folder) if stem_of(path) in known]
    tables += [file for group in groups for file in group.glob("[!.]*")]
    tables += [folder / name for name in named]
    tables = [path for path in tables if kind_of(path) in (*TABLES, "npz")]
    parts = [part for table in tables if table.is_dir() for part in list_visible(table)]
    return sorted({path for path in (*tables, *parts) if path.is_file()})


def describe_difference(setting: str, there: Any, here: Any) -> str:
    """Describe how a setting differs between a directory and this command."""
    if not (is_file_value(there) and is_file_value(here)) or there["name"] != here["name"]:
        values_text = (value["name"] if is_file_value(value) else value for value in (there, here))
        return "{} ({} there, {} now)".format(setting, *values_text)
    before, now = (set(str(value["sha256"] or "").split()) for value in (there, here))
    if not any(":" in table for table in before | now):
        return f"{setting} ({here['name']} has changed since)"
    changed = _names_of(now - before)
    gone = _names_of(before) - _names_of(now)
    says = [f"{', '.join(sorted(changed))}: changed since, or new"] if changed else []
    says += [f"{', '.join(sorted(gone))}: gone"] if gone else []
    return f"{setting} ({'; '.join(says)})"


def _names_of(tables: set[str]) -> set[str]:
    """Return the names of tables from NAME:SHA256."""
    return {unquote(table.rpartition(":")[0]) for table in tables}
