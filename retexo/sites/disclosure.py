"""disclosure.json: how many rows and bytes left a site in a run, even one that failed."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retexo.comm.collectives import Communicator
from retexo.comm.process_group import Rendezvous
from retexo.results.atomic_write import write_json


@dataclass(eq=False)
class Disclosure:
    """What is known so far."""

    comm: Communicator
    sites: tuple[str, ...]
    """Names by rank; empty where the partitions have no owners."""
    num_nodes_disclosed: list[int] = field(default_factory=list)
    """By rank; empty until the other sites have asked for rows."""
    num_aggregates: list[tuple[int, int]] = field(default_factory=list)
    """By rank, see Context.num_aggregates_disclosed; empty without look-ahead."""

    summed_columns: list[str] = field(default_factory=list)
    """Columns of which the sites add up statistics (app=describe)."""

    def content(self, rendezvous: Rendezvous) -> dict[str, Any]:
        """Return the content of the file: what this site has sent to each other site so far."""
        counts = self.num_nodes_disclosed or [0] * len(self.sites)
        to: dict[str, Any] = {
            name: {"nodes_with_rows": counts[peer], "bytes": {}}
            for peer, name in enumerate(self.sites)
            if peer != self.comm.rank
        }
        for peer, (all_nodes, of_few_rows) in enumerate(self.num_aggregates):
            if peer != self.comm.rank:
                to[self.sites[peer]]["nodes_with_aggregates"] = all_nodes
                to[self.sites[peer]]["nodes_with_aggregates_of_fewer_than_5_rows"] = of_few_rows
        for (tag, peer), num_bytes in self.comm.meter.entries.items():
            kinds = to[self.sites[peer]]["bytes"].setdefault(tag.kind, {})
            layer = "run" if tag.layer < 0 else f"layer {tag.layer}"
            kinds[layer] = kinds.get(layer, 0) + num_bytes
        return {
            "site": self.sites[self.comm.rank],
            "run_id": rendezvous.run_id,
            "encrypted": rendezvous.security is not None,
            "sums_hide_shares": self.comm.masks is not None,
            **({"summed_columns": self.summed_columns} if self.summed_columns else {}),
            "to": to,
        }

    def write(self, run_dir: Path, rendezvous: Rendezvous, *, alone: bool) -> None:
        """Write disclosure.json, if sites own the partitions; also of a failed run.

        TrainingError if it cannot be written.

        Args:
            alone: whether this is the node's only worker; else the rank is part of the file's name.
        """
        if self.sites:
            name = "disclosure.json" if alone else f"disclosure-{self.comm.rank}.json"
            write_json(run_dir / name, self.content(rendezvous))
