"""`app=plan` at one site: bounds what a run would send from here, without asking the others.

An edge belongs to the site of its destination, so only the other sites know which rows they will
ask for. The bound of rows assumes that each edge between sites has its reverse, as in an undirected
graph; `sites.max_rows_shared` limits the rows in any case.
"""

from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partitioning.directory.partition import Partition, PartNodes
from partitioning.site_folders import SiteFolders
from retexo.apps.summary import print_rows
from retexo.exchange.coding.values import MAX_CODES, Precision, value_bytes
from retexo.exchange.layer_exchange import pieces_per_message
from retexo.models.hetero_stage import HeteroArchitecture, build_network
from retexo.plan.traffic import find_architecture
from retexo.results.atomic_write import write_json
from retexo.settings.run_settings import TrainSettings
from retexo.sites.ledger import max_nodes
from retexo.trainers.layerwise import PRECISIONS


def run(settings: TrainSettings, directory: SiteFolders, run_dir: Path) -> dict[str, Any]:
    """Print the plan of the one local site, write it to run_dir/plan.json, and return it.

    Nothing is sent: bytes to other sites are upper bounds.
    """
    (site,) = directory.local_sites
    part = directory.read_part(site.rank)
    types, limit = part.nodes, settings.sites.max_rows_shared
    architecture = find_architecture(settings, directory, [part])
    stages: list[Any] = build_network(architecture, settings.seed)
    if isinstance(architecture, HeteroArchitecture):
        widths = [max(group.width for group in stage.conv.groups[-1]) for stage in stages[1:]]
    else:
        widths = [stage.output_widths[0] for stage in stages[:-1]]
    precisions = [PRECISIONS[precision] for precision in settings.exchange.precision]
    embedding_bytes = sum(
        value_bytes(*kind_of_rows)
        for kind_of_rows in zip(widths, repeat(torch.float32), precisions[1:], strict=False)
    )
    by_site: dict[str, Any] = {}
    for peer, name in enumerate(site.sites):
        if peer != site.rank:
            targets = {kind: _targets_from(peer, kind, part) for kind in types}
            rows = {
                kind: _count_own_nodes(targets[kind], nodes, limit) for kind, nodes in types.items()
            }
            num_rows = sum(rows.values())
            by_site[name] = {
                "ids_asked_for": sum(
                    int((nodes.halo_owner == peer).sum()) for nodes in types.values()
                ),
                "edges_told": sum(map(len, targets.values())),
                "own_nodes_with_rows": num_rows,
                "bytes_at_most": {
                    "features": sum(
                        _bytes_at_most(rows[kind], nodes, precisions[0])
                        for kind, nodes in types.items()
                    ),
                    "embeddings": num_rows * embedding_bytes,
                    "predictions": (
                        num_rows * settings.smoothing.steps * architecture.num_classes * 4
                    ),
                },
            }
    result = {
        "site": site.name,
        "nodes": sum(nodes.num_inner for nodes in types.values()),
        "sums_hide_shares": settings.gradient.secure,
        "parameters": sum(
            parameter.numel() for stage in stages for parameter in stage.parameters()
        ),
        "to": by_site,
    }
    write_json(run_dir / "plan.json", result)
    _print(result, settings, run_dir)
    return result


def _bytes_at_most(num_rows: int, nodes: PartNodes, precision: Precision) -> int:
    """Return bytes of rows of features, and of the exponents of their columns in each phase."""
    width = nodes.features.shape[1]
    pieces = pieces_per_message(nodes.num_inner, 4 * width)
    exponents = 2 * pieces * width if num_rows and precision in MAX_CODES else 0
    return num_rows * value_bytes(width, torch.float32, precision) + exponents


def _targets_from(peer: int, kind: str, part: Partition) -> Tensor:
    """Return the destination of each edge from a site into nodes of a type, of all relations."""
    targets = [torch.empty(0, dtype=torch.int64)]
    for (source, _, to), edges in part.relations.items():
        if to == kind:
            begin, halo_owner = part.nodes[source].num_inner, part.nodes[source].halo_owner
            cut = edges.src >= begin
            targets.append(edges.dst[cut][halo_owner[edges.src[cut] - begin] == peer])
    return torch.cat(targets)


def _count_own_nodes(targets: Tensor, nodes: PartNodes, limit: float | None) -> int:
    """Return the number of own nodes of a type whose rows a site may ask for."""
    asked = len(set(targets.tolist()))
    return asked if limit is None else min(asked, max_nodes(limit, nodes.num_inner))


def _print(result: dict[str, Any], settings: TrainSettings, run_dir: Path) -> None:
    visibility = (
        "under masks: only the sum can be read"
        if settings.gradient.secure
        else "which each site sees a part of"
    )
    rows = {
        f"{result['site']} alone": f"{result['nodes']:,} nodes; nothing was sent to find this out"
    }
    for name, sent in result["to"].items():
        sizes = ", ".join(f"{kind} {count:,}" for kind, count in sent["bytes_at_most"].items())
        rows[f"to {name}"] = (
            f"{sent['ids_asked_for']:,} ids of its nodes, {sent['edges_told']:,} edges from them;"
            f" rows of {sent['own_nodes_with_rows']:,} own nodes if edges have their reverse,"
            f" bytes at most: {sizes}"
        )
    rows["to all, each round"] = (
        f"its share of a sum of {result['parameters']:,} parameters or less, {visibility}"
    )
    print_rows(rows | {"results": str(run_dir / "plan.json")})
