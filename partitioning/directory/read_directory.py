"""Finding a partition directory, checking it and reading its parts.

N nodes, E edges, F features, C classes, I inner nodes of a part, H its halo nodes.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partitioning.array_checks import (
    check_dense,
    check_edge_feat,
    check_edge_weight,
    check_integers,
    check_labels,
    check_length,
    check_mask,
    check_node_ids,
    check_split,
    check_unique,
)
from partitioning.dgl_probe import check_readable
from partitioning.directory import dgl_files, pyg_files
from partitioning.directory.meta import VERSION, HeteroMeta, Meta, content_digest
from partitioning.directory.npy_files import (
    check_no_leak,
    check_relations,
    content_of,
    read_arrays,
    read_links,
)
from partitioning.directory.partition import HALO_IDS, Partition
from partitioning.directory.sorted_rows import degrees
from partitioning.errors import InputError
from partitioning.file_io import file_checksum, load_npy, reading
from partitioning.graph_data import EDGE_DATA, MASKS, is_labelled
from partitioning.node_names import Names
from partitioning.random_rows import random_rows
from partitioning.thread_pool import BLOCK, in_blocks

log = logging.getLogger(__name__)

FEATURE_NAMES = (
    "feat",
    "features",
)  # what DGL's examples, GraphStorm and the public Retexo code call them
LABEL_NAMES = ("label", "labels")


class MissingPartitions(InputError):
    """There is no partition directory where one was looked for."""


@dataclass(frozen=True)
class PartitionDirectory:
    """A partition directory that was found, with its two descriptions read."""

    path: Path
    num_parts: int
    meta: Meta | None
    """Ours; None for a directory made by DGL itself or by the public Retexo code."""
    bounds: list[int]
    """[P + 1] part p owns ids bounds[p] ... bounds[p + 1] - 1 of the partitioned graph."""
    config: dict[str, Any] | None
    """DGL's or PyG's, of a directory whose parts are read from their files; None where arrays are."""

    @property
    def of_pyg(self) -> bool:
        return self.config is not None and "is_hetero" in self.config

    def files_of(self, part: int) -> list[Path]:
        """Those of DGL's or PyG's that a part is read from."""
        assert self.config is not None
        if self.of_pyg:
            return pyg_files.files_of(self.path, part)
        return dgl_files.files_of(self.path, self.config, part)

    def digest(self) -> str:
        """sha256 (hex): of meta.json, or of DGL's config where there is none."""
        if self.meta is not None:
            return self.meta.digest()
        return hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()

    def content_digest(self, parts: range) -> str:
        """sha256 (hex) that changes, too, with what these parts hold."""
        if self.meta is not None:
            return self.digest()  # it has their contents
        held = [file_checksum(file) for part in parts for file in self.files_of(part)]
        return hashlib.sha256(json.dumps([self.digest(), held]).encode()).hexdigest()

    @property
    def stated_classes(self) -> int | None:
        """The number of classes, where the directory says it."""
        return None if self.meta is None else self.meta.num_classes

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the owners, by rank, where each holds its own part."""
        return ()

    @property
    def remedy(self) -> str:
        """What another digest on another node means, and what to do."""
        return "another partitioning (its digest differs); copy it the same partition directory"

    def verify(self, parts: Iterable[int]) -> None:
        """Check the files of these parts: by checksum, or, where nobody took one, by reading them."""
        if self.meta is None:
            if not self.of_pyg:
                check_readable([file for part in parts for file in self.files_of(part)])
            ids = [self.read(part).node_ids for part in parts]
            if ids:
                check_unique(torch.cat(ids).numpy(), f"{self.path}: orig_id")
            return
        for part in parts:
            path = self.meta.first_damaged(
                self.path, f"part{part}/", ".npy" if self.config is None else ""
            )
            if path is not None and not path.is_file():
                raise InputError(f"{path}: missing; copy the whole part {part} or partition again")
            if path is not None:
                raise InputError(
                    f"{path}: its checksum is not the one in meta.json, so it is damaged or of another partitioning; "
                    "copy it again, or partition again with overwrite=true"
                )

    def read(self, part: int) -> Partition:
        """Read one part, checked; InputError names what is wrong with it."""
        if self.of_pyg:
            of_edges, ids, tensors = pyg_files.read_part(self.path, part, self.bounds)
            return _check_part(self, part, _Read(of_edges, ids, None), tensors)
        partition = (_read_part if self.config is None else _read_dgl_part)(self, part)
        file = self.path / f"part{part}" / HALO_IDS
        if self.meta is None or not file.is_file():
            return partition
        with reading(file, "npy array"):
            halo = check_integers(load_npy(file), str(file))
        check_length(halo, partition.num_halo, str(file))
        return replace(
            partition,
            halo_features=torch.from_numpy(random_rows(halo, partition.features.shape[1])),
        )

    def check(self, part: int) -> None:
        """InputError for what reading the part finds wrong."""
        self.read(part)

    def node_names(self, part: int) -> Names | None:
        """What the data set calls the inner nodes of a part, where that is no integer."""
        return Names.read(self.path / f"part{part}")

    @property
    def class_names(self) -> list[Any]:
        """What the data set calls its classes; none: 0 ... C-1."""
        return [] if self.meta is None else self.meta.class_names


def find(candidates: list[Path], num_parts: int | None) -> PartitionDirectory:
    """Open the first of the candidates that is a partition directory; it has to have num_parts parts, unless None."""
    for path in candidates:
        meta = Meta.read(path)
        if meta is not None and meta.version == VERSION:
            bounds = np.cumsum([0, *(part.nodes for part in meta.parts)]).tolist()
            directory = _class_for(meta)(path, len(meta.parts), meta, bounds, None)
            _check_arrays(directory, meta)
        elif (path / pyg_files.DESCRIPTION).is_file():
            config, bounds = pyg_files.read_config(path)
            directory = PartitionDirectory(path, config["num_parts"], None, bounds, config)
        else:
            file = dgl_files.config_file(path)
            if file is None:
                continue
            directory = _of_dgl(path, file, meta)
            if meta is not None:
                _check_config(directory, meta, file)
        if num_parts is not None and directory.num_parts != num_parts:
            raise InputError(
                f"{path}: has {directory.num_parts} parts, num_partitions={num_parts}; "
                "set num_partitions to it or partition again"
            )
        if meta is None:
            log.warning(
                "%s: without a meta.json of ours, so nobody sees whether its parts were changed",
                path,
            )
        return directory
    raise MissingPartitions(
        f"no partition directory at {candidates[0]}; make it with app=partition_data"
    )


def _class_for(meta: Meta) -> type[PartitionDirectory]:
    from partitioning.directory.hetero_files import HeteroDirectory  # it is a PartitionDirectory

    return HeteroDirectory if isinstance(meta, HeteroMeta) else PartitionDirectory


def _of_dgl(path: Path, file: Path, meta: Meta | None) -> PartitionDirectory:
    from partitioning.directory import hetero_dgl_files

    if hetero_dgl_files.is_hetero(file):
        return hetero_dgl_files.open_directory(path, file)
    config = dgl_files.read_config(file)
    return PartitionDirectory(path, config["num_parts"], meta, config["node_bounds"], config)


def _check_arrays(directory: PartitionDirectory, meta: Meta) -> None:
    """A checksum can be made anew, and says nothing then; nodes compare the contents that meta.json names."""
    if directory.bounds[-1] != meta.num_nodes:
        raise InputError(
            f"{directory.path}/meta.json: num_nodes is {meta.num_nodes}, its parts have "
            f"{directory.bounds[-1]}; copy it again, or partition again with overwrite=true"
        )
    for part, counts in enumerate(meta.parts):
        if content_of(meta.checksums, part) != counts.content:
            raise InputError(
                f"{directory.path}/meta.json: the checksums of part {part} are not those of its content; copy the "
                "directory again, or partition again with overwrite=true"
            )


def _check_config(directory: PartitionDirectory, meta: Meta, config_file: Path) -> None:
    if meta.checksums.get(config_file.name) != file_checksum(config_file):
        raise InputError(
            f"{config_file}: its checksum is not in meta.json; partition again with overwrite=true"
        )
    if (len(meta.parts), meta.num_nodes) != (directory.num_parts, directory.bounds[-1]):
        raise InputError(
            f"{directory.path}: meta.json and {config_file.name} disagree about parts or nodes; copy both again, "
            "or partition again with overwrite=true"
        )


def _read_part(directory: PartitionDirectory, part: int) -> Partition:
    assert directory.meta is not None
    (first, end), folder = directory.bounds[part : part + 2], directory.path / f"part{part}"
    arrays = read_arrays(folder, end - first)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    ids = torch.cat((torch.arange(first, end), tensors["halo"]))
    self_loops = directory.meta.parts[part].edges - len(tensors["src"])
    of_edges = {name: tensors[name] for name in ("src", "dst", *EDGE_DATA) if name in tensors}
    read = _Read(of_edges, ids, tensors["out_deg"], self_loops, every_halo_sends=True)
    checked = _check_part(directory, part, read, tensors)
    if not directory.meta.links:
        return checked
    links = read_links(
        folder, range(first, end), directory.bounds[-1], directory.meta.links.get("spectral", 0)
    )
    halo = np.array(directory.bounds)[checked.halo_owner] + checked.halo_index.numpy()
    known = np.concatenate((np.arange(first, end), halo))
    check_no_leak(folder, known[checked.src.numpy()], known[checked.dst.numpy()], links)
    checked = replace(
        checked,
        first_id=first,
        links={name: torch.from_numpy(pairs) for name, pairs in links.items()},
    )
    relations = len(directory.meta.links.get("relations", ()))
    if not relations:
        return checked
    numbers = check_relations(folder, checked.edge_feat, len(checked.src), relations)
    return replace(
        checked, edge_feat=None, edge_relation=torch.from_numpy(numbers), num_relations=relations
    )


def _read_dgl_part(directory: PartitionDirectory, part: int) -> Partition:
    of_edges, of_nodes, tensors = dgl_files.read_part(*directory.files_of(part))
    where = f"{directory.path}: part {part}"
    ids = _required(of_nodes, ("_ID",), where).to(torch.int64)
    out_degree = of_nodes.get("out_deg") if directory.meta is not None else None
    if len(ids) >= 2**31:
        raise InputError(
            f"{where}: has {len(ids):,} nodes with its halo, at most {2**31 - 1:,} fit; make more parts"
        )
    if directory.meta is not None:
        _check_content(
            directory.meta.parts[part].content,
            (ids, of_edges["src"], of_edges["dst"], tensors),
            where,
        )
    for end in ("src", "dst"):
        of_edges[end] = of_edges[end].to(torch.int32)
    read = _Read(of_edges, ids, out_degree)
    return _check_part(directory, part, read, tensors)


def _check_content(
    expected: str, held: tuple[Tensor, Tensor, Tensor, dict[str, Tensor]], where: str
) -> None:
    """As _check_arrays, of a directory of version 1."""
    try:
        found = content_digest(*held)
    except KeyError as error:
        raise InputError(
            f"{where}: has no {error}; copy it again, or partition again with overwrite=true"
        ) from None
    if found != expected:
        raise InputError(
            f"{where}: holds something else than meta.json says (its content's sha256 is {found[:8]}, expected "
            f"{expected[:8]}); copy it again, or partition again with overwrite=true"
        )


@dataclass(frozen=True, eq=False)
class _Read:
    """The graph of a part, unchecked."""

    of_edges: dict[str, Tensor]
    """int32 [E] src and dst; EDGE_DATA, where there is any."""
    ids: Tensor
    """int64 [n] of the nodes in the partitioned graph."""
    out_degree: Tensor | None
    """[n]"""
    self_loops: int = 0
    """That were left out already."""
    every_halo_sends: bool = False
    """Whether there is an edge from each halo node, as there is where this program wrote the part."""


def _check_part(
    directory: PartitionDirectory, part: int, read: _Read, tensors: dict[str, Tensor]
) -> Partition:
    """Turn what was read into a Partition; edges are copied only where some have to go."""
    where = f"{directory.path}: part {part}"
    bounds = torch.tensor(directory.bounds)
    num_inner = int(bounds[part + 1] - bounds[part])
    ids, inner = read.ids, torch.arange(num_inner) + bounds[part]
    if len(ids) < num_inner or not torch.equal(ids[:num_inner], inner):
        raise InputError(
            f"{where}: its inner nodes are not ids {bounds[part]} ... {bounds[part + 1] - 1} in order"
        )
    if len(ids) and not bool(((ids >= 0) & (ids < bounds[-1])).all()):
        raise InputError(f"{where}: has node ids outside [0, {int(bounds[-1])})")
    if bool(((ids[num_inner:] >= bounds[part]) & (ids[num_inner:] < bounds[part + 1])).any()):
        raise InputError(f"{where}: a halo node is one of its own inner nodes")
    src, dst = (
        read.of_edges[name].numpy() for name in ("src", "dst")
    )  # NumPy compares in a fifth of torch's time

    def all_count(edges: slice) -> bool:
        return bool(((dst[edges] < num_inner) & (src[edges] != dst[edges])).all())

    of_edges, self_loops = dict(read.of_edges), read.self_loops
    whole = all(in_blocks(all_count, len(src), BLOCK))
    if not whole:
        into_inner, is_loop = dst < num_inner, src == dst
        self_loops += int(np.count_nonzero(into_inner & is_loop))
        chosen = torch.from_numpy(into_inner & ~is_loop)
        of_edges = {name: each[chosen] for name, each in of_edges.items()}
    source, target = of_edges.pop("src"), of_edges.pop("dst")
    edge_data = _checked_edge_data(of_edges, len(source), where)
    # Only halo nodes that send something are kept (DGL's halo can be wider), by owner, then by index at the owner.
    halo, out_degree = ids[num_inner:], read.out_degree
    if not (read.every_halo_sends and whole and bool((halo.diff() > 0).all())):
        used = torch.bincount(source, minlength=len(ids))[num_inner:].nonzero()[:, 0]
        used = used[torch.argsort(halo[used])]
        kept = torch.cat((torch.arange(num_inner), used + num_inner))
        if not torch.equal(kept, torch.arange(len(ids))):
            renumber = torch.zeros(len(ids), dtype=torch.int32)
            renumber[kept] = torch.arange(len(kept), dtype=torch.int32)
            source, halo = renumber[source], halo[used]
            out_degree = None if out_degree is None else out_degree[kept]
    owner = torch.searchsorted(bounds, halo, right=True) - 1
    checked = _checked_tensors(tensors, inner, int(bounds[-1]), where)
    if directory.meta is not None:
        _check_described(checked, directory.meta, where)
    return Partition(
        rank=part,
        num_parts=directory.num_parts,
        num_inner=num_inner,
        num_halo=len(halo),
        src=source,
        dst=target,
        halo_owner=owner,
        halo_index=halo - bounds[owner],
        in_degree=degrees(target, edge_data.get("edge_weight"), num_inner),
        out_degree=out_degree,
        self_loops=self_loops,
        unresolved_halo=None,
        asked_for=None,
        links=None,
        first_id=0,
        edge_relation=None,
        num_relations=0,
        **checked,
        **edge_data,
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


def _checked_tensors(
    tensors: dict[str, Tensor], inner: Tensor, num_nodes: int, where: str
) -> dict[str, Tensor]:
    """Features, labels, masks and ids of the inner nodes.

    `inner` are their ids in the partitioned graph of `num_nodes` nodes, int64 [I].
    """
    # NumPy has no bfloat16.
    arrays = {
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        for name, tensor in tensors.items()
    }
    features, labels = (_required(arrays, names, where) for names in (FEATURE_NAMES, LABEL_NAMES))
    features = check_dense(features, len(inner), f"{where}: features")
    labels = check_labels(labels, num_nodes, f"{where}: labels")
    check_length(labels, len(inner), f"{where}: labels")
    masks = {
        name: check_mask(_required(arrays, (name,), where), len(inner), f"{where}: {name}")
        for name in MASKS
    }
    check_split(masks, is_labelled(labels), where)
    node_ids = arrays.get("orig_id", inner.numpy())
    checked = {"features": features, "labels": labels, **masks}
    return {
        **{name: torch.from_numpy(array) for name, array in checked.items()},
        "node_ids": torch.from_numpy(check_node_ids(node_ids, len(inner), f"{where}: orig_id")),
    }


def _checked_edge_data(
    of_edges: dict[str, Tensor], num_edges: int, where: str
) -> dict[str, Tensor]:
    """What a part has of EDGE_DATA; weights that are all one are none."""
    checks = {"edge_weight": check_edge_weight, "edge_feat": check_edge_feat}
    arrays = {
        name: checks[name](data.numpy(), num_edges, f"{where}: {name}")
        for name, data in of_edges.items()
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}


def _required(tensors: Mapping[str, Any], names: tuple[str, ...], where: str) -> Any:
    for name in names:
        if name in tensors:
            return tensors[name]
    raise InputError(
        f"{where}: has no '{names[0]}'; it has {', '.join(sorted(tensors)) or 'nothing'}"
    )
