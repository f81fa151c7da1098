"""A directory that PyG's own partitioner made trains like one of DGL's."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support import random_graph, run_main, thirds

from partitioning.directory.read_directory import find
from partitioning.errors import InputError

SMALL = ("num_rounds=[2]", "device=cpu", "hidden_dim=16")


@pytest.mark.timeout(240)
def test_a_directory_of_pyg_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyg = pytest.importorskip("torch_geometric", reason="the extra pyg")
    from torch_geometric.distributed import Partitioner
    from torch_geometric.loader import ClusterData

    graph = random_graph()
    edges = torch.from_numpy(np.stack((graph.src, graph.dst)).astype(np.int64))
    data = pyg.data.Data(
        x=torch.from_numpy(graph.features), edge_index=edges, y=torch.from_numpy(graph.labels)
    )
    data.edge_attr = 100.0 * edges[0][:, None] + edges[1][:, None]
    parts = torch.from_numpy(np.random.default_rng(0).integers(0, 2, graph.num_nodes))
    monkeypatch.setattr(
        ClusterData, "_metis", lambda *_: parts
    )  # which needs pyg-lib or torch-sparse
    Partitioner(data, num_parts=2, root=str(tmp_path / "pyg")).generate_partition()
    check(tmp_path, graph)


def check(tmp_path: Path, graph) -> None:
    """The parts hold the graph; a missing label is named with its remedy; it trains."""
    root = tmp_path / "pyg"
    with pytest.raises(InputError, match=r"label\.pt: missing; .*torch\.save\(data\.y, PATH\)"):
        find([root], 2).read(0)
    for name, values in {"label": graph.labels, **thirds(graph.num_nodes)}.items():
        torch.save(torch.from_numpy(values), root / f"{name}.pt")
    torch.save(
        100.0 * torch.from_numpy(graph.src) + torch.from_numpy(graph.dst), root / "edge_attr.pt"
    )
    found = set()
    parts = list(map(find([root], 2).read, range(2)))
    for part in parts:
        rows = part.node_ids.numpy()
        assert (part.features.numpy() == graph.features[rows]).all()
        assert (part.labels.numpy() == graph.labels[rows]).all()
        halo = [
            parts[owner].node_ids[index]
            for owner, index in zip(part.halo_owner, part.halo_index, strict=True)
        ]
        ids = np.concatenate((rows, np.array(halo, dtype=np.int64)))
        ends = [torch.from_numpy(ids[end.numpy()]) for end in (part.src, part.dst)]
        assert part.edge_feat is not None
        assert torch.equal(part.edge_feat[:, 0], 100.0 * ends[0] + ends[1])
        found |= set(zip(ids[part.src.numpy()], ids[part.dst.numpy()], strict=True))
    assert found == {
        (src, dst) for src, dst in zip(graph.src, graph.dst, strict=True) if src != dst
    }
    ended = run_main("app=train", f"partition_dir={root}", "num_partitions=2", *SMALL, cwd=tmp_path)
    assert ended.rc == 0, ended.output
