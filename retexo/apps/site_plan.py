"""`app=plan` at one site alone: what a run would take out of it, before it meets the others.

How many rows others ask for, only they know: an edge belongs to the site of its destination. What is said of rows
holds where each edge between sites has its reverse, as in an undirected graph; `sites.max_rows_shared` limits them in
any case.
"""

from pathlib import Path
from typing import Any

import torch

from partitioning.sites import SiteFolders
from retexo.apps.summary import print_rows
from retexo.config.settings import TrainSettings
from retexo.estimate.traffic import architecture_of
from retexo.exchange.coding.values import value_bytes
from retexo.nn.stage import build_stages
from retexo.outputs.files import write_json
from retexo.trainers.layerwise import PRECISIONS


def run(settings: TrainSettings, directory: SiteFolders, run_dir: Path) -> dict[str, Any]:
    """Print it, write plan.json into run_dir, and return what that says."""
    (site,) = directory.local_sites
    partition = directory.read(site.rank)
    architecture = architecture_of(settings, directory, [partition])
    stages = build_stages(architecture, settings.seed)
    widths = [architecture.num_features, *(stage.output_widths[0] for stage in stages[:-1])]
    src_owner = partition.halo_owner[partition.src[partition.src >= partition.num_inner] - partition.num_inner]
    targets = partition.dst[partition.src >= partition.num_inner]
    by_site: dict[str, Any] = {}
    for peer, name in enumerate(site.sites):
        if peer != site.rank:
            nodes = len(set(targets[src_owner == peer].tolist()))
            if settings.max_rows_shared is not None:
                limit = settings.max_rows_shared
                nodes = min(nodes, int(limit * partition.num_inner if limit < 1 else limit))
            kept = zip(widths, settings.exchange.precision, strict=True)
            row_bytes = [value_bytes(width, torch.float32, PRECISIONS[precision]) for width, precision in kept]
            by_site[name] = {
                "ids_asked_for": int((partition.halo_owner == peer).sum()),
                "edges_told": int((src_owner == peer).sum()),
                "own_nodes_with_rows": nodes,
                "bytes_at_most": {
                    "features": nodes * row_bytes[0],
                    "embeddings": nodes * sum(row_bytes[1:]),
                    "predictions": nodes * settings.smoothing.steps * architecture.num_classes * 4,
                },
            }
    result = {
        "site": site.name,
        "nodes": partition.num_inner,
        "sums_hide_shares": settings.gradient.secure,
        "parameters": sum(parameter.numel() for stage in stages for parameter in stage.parameters()),
        "to": by_site,
    }
    write_json(run_dir / "plan.json", result)
    _print(result, settings, run_dir)
    return result


def _print(result: dict[str, Any], settings: TrainSettings, run_dir: Path) -> None:
    hidden = "under masks: only the sum can be read" if settings.gradient.secure else "which each site sees a part of"
    rows = {f"{result['site']} alone": f"{result['nodes']:,} nodes; nothing was sent to find this out"}
    for name, found in result["to"].items():
        sizes = ", ".join(f"{kind} {count:,}" for kind, count in found["bytes_at_most"].items())
        rows[f"to {name}"] = (
            f"{found['ids_asked_for']:,} ids of its nodes, {found['edges_told']:,} edges from them; rows of "
            f"{found['own_nodes_with_rows']:,} own nodes if edges have their reverse, bytes at most: {sizes}"
        )
    rows["to all, each round"] = f"its share of a sum of {result['parameters']:,} parameters or less, {hidden}"
    print_rows(rows | {"results": str(run_dir / "plan.json")})
