"""Parts of a heterogeneous graph against the graph itself."""

import collections

import numpy as np
import pytest
import torch
from hetero_support import hetero_parts, random_hetero


@pytest.mark.parametrize("num_parts", [1, 4])
def test_every_edge_has_its_ends_at_its_destination_s_owner(num_parts: int) -> None:
    weighted = [("person", "directs", "movie")]
    graph = random_hetero(weighted=weighted)
    parts = hetero_parts(graph, num_parts)
    assert sum(part.self_loops for part in parts) == 1
    for each, relation in graph.relations.items():
        src_ids, dst_ids = (graph.nodes[each[end]].node_ids for end in (0, 2))
        weights = (
            np.ones(relation.num_edges) if relation.edge_weight is None else relation.edge_weight
        )
        kept = src_ids[relation.src] != dst_ids[relation.dst]
        expected = collections.Counter(
            zip(
                src_ids[relation.src][kept], dst_ids[relation.dst][kept], weights[kept], strict=True
            )
        )
        found: collections.Counter = collections.Counter()
        for part in parts:
            edges, source = part.relations[each], part.nodes[each[0]]
            halo = [
                int(parts[owner].nodes[each[0]].node_ids[index])
                for owner, index in zip(source.halo_owner, source.halo_index, strict=True)
            ]
            held = np.array([*source.node_ids.tolist(), *halo], np.int64)
            weight = torch.ones(len(edges.src)) if edges.edge_weight is None else edges.edge_weight
            dst = part.nodes[each[2]].node_ids[edges.dst.long()]
            found.update(zip(held[edges.src.numpy()], dst.numpy(), weight.numpy(), strict=True))
        assert found == expected, each


def test_rows_labels_and_masks_are_those_of_the_nodes() -> None:
    graph = random_hetero(multi=True)
    for part in hetero_parts(graph, 3):
        for name, nodes in part.nodes.items():
            position = np.searchsorted(graph.nodes[name].node_ids, nodes.node_ids.numpy())
            assert np.array_equal(nodes.features.numpy(), graph.nodes[name].features[position])
            if name == graph.target:
                assert part.multilabel
                assert np.array_equal(part.labels.numpy(), graph.labels[position])
                assert np.array_equal(part.train_mask.numpy(), position % 3 == 0)
