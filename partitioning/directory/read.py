"""Finding a partition directory, checking it and reading its parts.

N nodes, E edges, F features, C classes, I inner nodes of a part, H its halo nodes.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partitioning.checks import (
    MANY_CLASSES,
    Array,
    check_classes,
    check_dense,
    check_length,
    check_mask,
    check_multilabel,
    check_node_ids,
    check_split,
    check_unique,
)
from partitioning.dgl_probe import check_readable
from partitioning.directory.meta import Meta, content_digest
from partitioning.directory.types import Partition
from partitioning.errors import InputError
from partitioning.files import file_checksum, read_json
from partitioning.graph_data import MASKS, is_labelled

log = logging.getLogger(__name__)

FEATURE_NAMES = ("feat", "features")  # what DGL's examples, GraphStorm and the public Retexo code call them
LABEL_NAMES = ("label", "labels")


class MissingPartitions(InputError):
    """There is no partition directory where one was looked for."""


@dataclass(frozen=True)
class PartitionDirectory:
    """A partition directory that was found, with its two descriptions read."""

    path: Path
    config: dict[str, Any]
    """DGL's."""
    meta: Meta | None
    """Ours; None for a directory made by DGL itself or by the public Retexo code."""

    @property
    def num_parts(self) -> int:
        return int(self.config["num_parts"])

    def digest(self) -> str:
        """sha256 (hex): of meta.json, or of DGL's config where there is none."""
        if self.meta is not None:
            return self.meta.digest()
        return hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()

    def content_digest(self, parts: range) -> str:
        """sha256 (hex) that changes, too, with what these parts hold."""
        if self.meta is not None:
            return self.digest()  # it has their contents
        held = [file_checksum(file) for part in parts for file in _files_of(self, part)]
        return hashlib.sha256(json.dumps([self.digest(), held]).encode()).hexdigest()

    @property
    def stated_classes(self) -> int | None:
        """The number of classes, where the directory says it."""
        return None if self.meta is None else self.meta.num_classes

    @property
    def remedy(self) -> str:
        """What another digest on another node means, and what to do."""
        return "another partitioning (its digest differs); copy it the same partition directory"

    def verify(self, parts: Iterable[int]) -> None:
        """Check all files of these parts: by checksum, or, where nobody took one, by reading them."""
        if self.meta is None:
            check_readable([file for part in parts for file in _files_of(self, part)])
            ids = [self.read(part).node_ids for part in parts]
            if ids:
                check_unique(torch.cat(ids).numpy(), f"{self.path}: orig_id")
            return
        for part in parts:
            path = self.meta.first_damaged(self.path, below=f"part{part}/")
            if path is not None and not path.is_file():
                raise InputError(f"{path}: missing; copy the whole part {part} or partition again")
            if path is not None:
                raise InputError(
                    f"{path}: its checksum is not the one in meta.json, so it is damaged or of another partitioning; "
                    "copy it again, or partition again with overwrite=true"
                )

    def read(self, part: int) -> Partition:
        """Read one part, checked; InputError names what is wrong with it."""
        return _read_part(self, part)


def find(candidates: list[Path], num_parts: int | None) -> PartitionDirectory:
    """Open the first of the candidates that is a partition directory; it has to have num_parts parts, unless None."""
    for path in candidates:
        config_file = _dgl_config_file(path)
        if config_file is None:
            continue
        directory = PartitionDirectory(path, _checked_config(config_file), Meta.read(path))
        _check_descriptions(directory, config_file, num_parts)
        if directory.meta is None:
            log.warning("%s: without a meta.json of ours, so nobody sees whether its parts were changed", path)
        return directory
    raise MissingPartitions(f"no partition directory at {candidates[0]}; make it with app=partition_data")


def _dgl_config_file(path: Path) -> Path | None:
    """DGL's partition config in a directory: the one named after it, else the only one there."""
    if not path.is_dir():
        return None
    named = path / f"{path.name}.json"
    if named.is_file():
        return named
    others = (file for file in sorted(path.glob("*.json")) if file.name != "meta.json")
    found = [file for file in others if "num_parts" in read_json(file)]
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise InputError(f"{path}: holds several partition configs ({names}); keep each in a directory of its own")
    return found[0] if found else None


def _checked_config(path: Path) -> dict[str, Any]:
    """DGL's partition config, of a homogeneous graph with contiguous ids."""
    config = read_json(path)
    for key in ("num_parts", "num_nodes", "node_map"):
        if key not in config:
            raise InputError(f"{path}: has no '{key}', so it is not a partition config of DGL's")
    for key in ("num_parts", "num_nodes"):
        if not isinstance(config[key], int) or isinstance(config[key], bool) or not 0 <= config[key] < 2**63:
            raise InputError(f"{path}: {key} is {config[key]!r}, needs an integer from 0 on")
    node_map = config["node_map"]
    if isinstance(node_map, dict) and len(node_map) != 1:
        raise InputError(f"{path}: has {len(node_map)} node types; only graphs with one are supported")
    ranges = next(iter(node_map.values())) if isinstance(node_map, dict) else node_map
    try:
        bounds = np.array(ranges, dtype=np.int64).reshape(config["num_parts"], 2)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{path}: node_map has no range of ids for each part: {error}") from error
    ascending = (bounds[:, 0] <= bounds[:, 1]).all() and (bounds[1:, 0] == bounds[:-1, 1]).all()
    if not len(bounds) or not ascending or bounds[0, 0] != 0 or bounds[-1, 1] != config["num_nodes"]:
        raise InputError(f"{path}: node_map {bounds.tolist()} does not cover ids 0 ... {config['num_nodes'] - 1}")
    config["node_bounds"] = [0, *bounds[:, 1].tolist()]
    return config


def _check_descriptions(directory: PartitionDirectory, config_file: Path, num_parts: int | None) -> None:
    if num_parts is not None and directory.num_parts != num_parts:
        raise InputError(
            f"{directory.path}: has {directory.num_parts} parts, num_partitions={num_parts}; "
            "set num_partitions to it or partition again"
        )
    meta = directory.meta
    if meta is not None and meta.checksums.get(config_file.name) != file_checksum(config_file):
        raise InputError(f"{config_file}: its checksum is not in meta.json; partition again with overwrite=true")
    if meta is not None and (len(meta.parts), meta.num_nodes) != (directory.num_parts, directory.config["num_nodes"]):
        raise InputError(
            f"{directory.path}: meta.json and {config_file.name} disagree about parts or nodes; copy both again, "
            "or partition again with overwrite=true"
        )
    for part in range(directory.num_parts):
        if f"part-{part}" not in directory.config:
            raise InputError(f"{config_file}: does not name the files of part {part}")


def _read_part(directory: PartitionDirectory, part: int) -> Partition:
    from partitioning.dgl_import import dgl

    graph_file, feat_file = _files_of(directory, part)
    try:
        structure = dgl.load_graphs(str(graph_file))[0][0]
        tensors = dgl.data.utils.load_tensors(str(feat_file))
    except Exception as error:  # DGL raises its own, of many kinds
        raise InputError(f"{graph_file.parent}: DGL cannot read part {part}: {error}") from error
    for name in list(structure.edata):  # numbers that nobody asks for, as many as a third of the edges
        structure.edata.pop(name)
    where = f"{directory.path}: part {part}"
    ids = _required(structure.ndata, ("_ID",), where).to(torch.int64)
    out_degree = structure.ndata.get("out_deg") if directory.meta is not None else None
    if len(ids) >= 2**31:
        raise InputError(f"{where}: has {len(ids):,} nodes with its halo, at most {2**31 - 1:,} fit; make more parts")
    src, dst = structure.edges(order="eid")
    tensors = {name.split("/")[-1]: tensor for name, tensor in tensors.items()}
    if directory.meta is not None:
        _check_content(directory.meta.parts[part].content, (ids, src, dst, tensors), where)
    read = _Read(src.to(torch.int32), dst.to(torch.int32), ids, out_degree)
    del structure, src, dst
    return _check_part(directory, part, read, tensors)


def _check_content(expected: str, held: tuple[Tensor, Tensor, Tensor, dict[str, Tensor]], where: str) -> None:
    """A checksum of a file can be made anew, and says nothing then; nodes compare the contents that meta.json names."""
    try:
        found = content_digest(*held)
    except KeyError as error:
        raise InputError(f"{where}: has no {error}; copy it again, or partition again with overwrite=true") from None
    if found != expected:
        raise InputError(
            f"{where}: holds something else than meta.json says (its content's sha256 is {found[:8]}, expected "
            f"{expected[:8]}); copy it again, or partition again with overwrite=true"
        )


@dataclass(frozen=True, eq=False)
class _Read:
    """What DGL's graph of a part says, unchecked."""

    src: Tensor
    """int32 [E], and so are the destinations."""
    dst: Tensor
    ids: Tensor
    """int64 [n] of the nodes in the partitioned graph."""
    out_degree: Tensor | None
    """[n]"""


def _files_of(directory: PartitionDirectory, part: int) -> list[Path]:
    """A part's graph and the tensors of its nodes."""
    return [_inside(directory.path, directory.config[f"part-{part}"], key) for key in ("part_graph", "node_feats")]


def _inside(directory: Path, files: Any, key: str) -> Path:
    """The path of a part's file; it has to lie in the partition directory."""
    if not isinstance(files, dict) or not isinstance(files.get(key), str):
        raise InputError(f"{directory}: the partition config names no file for '{key}'")
    path = directory / str(files[key])
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory)):  # resolve() raises on a loop
        raise InputError(f"{directory}: the partition config names {files[key]}, outside of the directory")
    if not path.is_file():
        raise InputError(f"{path}: missing; copy the whole part or partition again")
    return path


def _check_part(directory: PartitionDirectory, part: int, read: _Read, tensors: dict[str, Tensor]) -> Partition:
    """Turn what DGL read into a Partition; edges are copied only where some have to go."""
    where = f"{directory.path}: part {part}"
    bounds = torch.tensor(directory.config["node_bounds"])
    num_inner = int(bounds[part + 1] - bounds[part])
    ids, inner = read.ids, torch.arange(num_inner) + bounds[part]
    if len(ids) < num_inner or not torch.equal(ids[:num_inner], inner):
        raise InputError(f"{where}: its inner nodes are not ids {bounds[part]} ... {bounds[part + 1] - 1} in order")
    if len(ids) and not bool(((ids >= 0) & (ids < bounds[-1])).all()):
        raise InputError(f"{where}: has node ids outside [0, {int(bounds[-1])})")
    if bool(((ids[num_inner:] >= bounds[part]) & (ids[num_inner:] < bounds[part + 1])).any()):
        raise InputError(f"{where}: a halo node is one of its own inner nodes")
    into_inner, loop = read.dst < num_inner, read.src == read.dst
    wanted = into_inner & ~loop
    src, dst = (read.src, read.dst) if bool(wanted.all()) else (read.src[wanted], read.dst[wanted])
    # Only halo nodes that send something are kept (DGL's halo can be wider), by owner, then by index at the owner.
    is_source = np.zeros(len(ids), np.bool_)
    is_source[src.numpy()] = True
    used = torch.from_numpy(np.flatnonzero(is_source[num_inner:])) + num_inner
    used = used[torch.argsort(ids[used])]
    kept = torch.cat((torch.arange(num_inner), used))
    if not torch.equal(kept, torch.arange(len(ids))):
        renumber = torch.zeros(len(ids), dtype=torch.int32)
        renumber[kept] = torch.arange(len(kept), dtype=torch.int32)
        src = renumber[src]
    owner = torch.searchsorted(bounds, ids[used], right=True) - 1
    checked = _checked_tensors(tensors, inner, int(bounds[-1]), where)
    if directory.meta is not None:
        _check_described(checked, directory.meta, where)
    return Partition(
        rank=part,
        num_parts=directory.num_parts,
        num_inner=num_inner,
        num_halo=len(used),
        src=src,
        dst=dst,
        halo_owner=owner,
        halo_index=ids[used] - bounds[owner],
        in_degree=torch.bincount(dst, minlength=num_inner),
        out_degree=None if read.out_degree is None else read.out_degree[kept],
        self_loops=int((into_inner & loop).sum()),
        unresolved_halo=None,
        **checked,
    )


def _check_described(tensors: dict[str, Tensor], meta: Meta, where: str) -> None:
    """The widths that meta.json says; no checksum covers it."""
    labels = tensors["labels"]
    classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1 if len(labels) else 0
    task = "multilabel" if labels.ndim == 2 else "multiclass"
    fits = classes == meta.num_classes if labels.ndim == 2 else classes <= meta.num_classes
    if not fits or task != meta.task or tensors["features"].shape[1] != meta.num_features:
        raise InputError(
            f"{where}: holds {tensors['features'].shape[1]} features and {classes} classes ({task}), meta.json says "
            f"{meta.num_features} and {meta.num_classes} ({meta.task}); copy it again, or partition again with "
            "overwrite=true"
        )


def _checked_tensors(tensors: dict[str, Tensor], inner: Tensor, num_nodes: int, where: str) -> dict[str, Tensor]:
    """Features, labels, masks and ids of the inner nodes.

    `inner` are their ids in the partitioned graph of `num_nodes` nodes, int64 [I].
    """
    # NumPy has no bfloat16.
    arrays = {name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
              for name, tensor in tensors.items()}  # fmt: skip
    features, labels = (_required(arrays, names, where) for names in (FEATURE_NAMES, LABEL_NAMES))
    features = check_dense(features, len(inner), f"{where}: features")
    labels = _checked_labels(labels, num_nodes, f"{where}: labels")
    check_length(labels, len(inner), f"{where}: labels")
    masks = {name: check_mask(_required(arrays, (name,), where), len(inner), f"{where}: {name}") for name in MASKS}
    check_split(masks, is_labelled(labels), where)
    node_ids = arrays.get("orig_id", inner.numpy())
    checked = {"features": features, "labels": labels, **masks}
    return {
        **{name: torch.from_numpy(array) for name, array in checked.items()},
        "node_ids": torch.from_numpy(check_node_ids(node_ids, len(inner), f"{where}: orig_id")),
    }


def _required(tensors: Mapping[str, Any], names: tuple[str, ...], where: str) -> Any:
    for name in names:
        if name in tensors:
            return tensors[name]
    raise InputError(f"{where}: has no '{names[0]}'; it has {', '.join(sorted(tensors)) or 'nothing'}")


def _checked_labels(labels: Array, num_nodes: int, where: str) -> Array:
    """As Partition has them; classes may be float or [I, 1], NaN for none, as OGB gives them."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2:
        return check_multilabel(labels, where)
    if labels.dtype.kind == "f" and bool(np.all((labels == np.floor(labels)) | np.isnan(labels))):
        labels = np.where(np.isnan(labels), -1, np.clip(labels, -2, 2**62)).astype(np.int64)
    return check_classes(labels, max(num_nodes, MANY_CLASSES), where)
