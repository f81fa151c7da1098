"""Directories of the public Retexo code are read as ours of the same assignment.

test_edges.py has those of DGL.
"""

import json
from pathlib import Path

import numpy as np
import torch
from graph_files import change_tensors
from hetero_support import reassembled
from support import MASKS, dgl_directory, random_graph, thirds, write_partitions

from retexo.apps.find_partitions import find_or_make_partitions
from retexo.settings.compose import compose

PARTS = np.random.default_rng(3).integers(3, size=40)


def add_wrong_degrees(tensors: dict[str, torch.Tensor]) -> None:
    """Never those of the graph."""
    tensors["_N/in_deg"] = tensors["_N/out_deg"] = torch.full_like(tensors["_N/label"], 7)


def test_the_public_layout(tmp_path: Path) -> None:
    """PARTITION_DIR/NAME/NAME.json with a meta.json of counts, and degrees beside the features."""
    folder = tmp_path / "karateclub"
    dgl_directory(folder, random_graph(), thirds(40), PARTS)
    (folder / "toy.json").rename(folder / "karateclub.json")
    counts = {"n_feat": 6, "n_class": 3, **{f"n_{name.split('_')[0]}": 13 for name in MASKS}}
    (folder / "meta.json").write_text(json.dumps(counts))
    for path in folder.glob("part*/node_feat.dgl"):
        change_tensors(path, add_wrong_degrees)
    overrides = ["dataset_name=karateclub", "num_partitions=3", f"partition_dir={tmp_path}"]
    theirs = find_or_make_partitions(compose(overrides))
    ours = write_partitions(tmp_path / "ours", random_graph(), thirds(40), PARTS, 3)
    their_parts, our_parts = (
        [directory.read_part(rank) for rank in range(3)] for directory in (theirs, ours)
    )
    assert reassembled(their_parts) == reassembled(our_parts)
    for part, own in zip(their_parts, our_parts, strict=True):
        assert part.target_nodes.out_degree is None, "it is asked for"
        for name in ("labels", *MASKS):
            values = (
                getattr(partition, name)[partition.node_ids.argsort()] for partition in (part, own)
            )
            assert torch.equal(*values)
