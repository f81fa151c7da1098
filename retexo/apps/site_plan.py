"""`app=plan` at one site: what a run would send from here, without asking the others.

An edge belongs to the site of its destination, so only the other sites know which rows they will
ask for. The number of rows assumes that each edge between sites has its reverse, as in an
undirected graph; `sites.max_rows_shared` limits the rows in any case.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partitioning.directory.partition import Partition
from partitioning.sites.site_folders import SiteFolders
from retexo.apps.summary import print_rows
from retexo.results.atomic_write import write_json
from retexo.settings.run_settings import TrainSettings
from retexo.sites.ledger import max_nodes


def run(settings: TrainSettings, directory: SiteFolders, run_dir: Path) -> dict[str, Any]:
    """Print the plan of the one local site, write it to run_dir/plan.json, and return it.

    Nothing is sent.
    """
    (site,) = directory.local_sites
    part, limit = directory.read_part(site.rank), settings.sites.max_rows_shared
    num_nodes = sum(nodes.num_inner for nodes in part.nodes.values())
    rows = {f"{site.name} alone": f"{num_nodes:,} nodes; nothing was sent to find this out"}
    by_site: dict[str, Any] = {}
    for peer, name in enumerate(site.sites):
        if peer == site.rank:
            continue
        ids, edges, own = 0, 0, 0
        for kind, nodes in part.nodes.items():
            targets = _targets_from(peer, kind, part)
            asked = len(set(targets.tolist()))
            ids += int((nodes.halo_owner == peer).sum())
            edges += len(targets)
            own += asked if limit is None else min(asked, max_nodes(limit, nodes.num_inner))
        by_site[name] = {"ids_asked_for": ids, "edges_told": edges, "own_nodes_with_rows": own}
        rows[f"to {name}"] = (
            f"{ids:,} ids of its nodes, {edges:,} edges from them; rows of {own:,} own nodes if"
            " edges have their reverse"
        )
    is_hidden = settings.gradient.secure
    rows["to all, each round"] = "its share of the sum of gradients, " + (
        "under masks: only the sum can be read" if is_hidden else "which each site sees a part of"
    )
    result = {
        "site": site.name,
        "nodes": num_nodes,
        "sums_hide_shares": is_hidden,
        "to": by_site,
    }
    write_json(run_dir / "plan.json", result)
    print_rows(rows | {"results": str(run_dir / "plan.json")})
    return result


def _targets_from(peer: int, kind: str, part: Partition) -> Tensor:
    """Return the destination of each edge from a site into nodes of a type, of all relations."""
    targets = [torch.empty(0, dtype=torch.int64)]
    for (source, _, to), edges in part.relations.items():
        if to == kind:
            begin, halo_owner = part.nodes[source].num_inner, part.nodes[source].halo_owner
            cut = edges.src >= begin
            targets.append(edges.dst[cut][halo_owner[edges.src[cut] - begin] == peer])
    return torch.cat(targets)
