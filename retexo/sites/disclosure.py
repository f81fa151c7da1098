"""disclosure.json of a site: what left it in a run, in counts, whether the run was done or not."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from retexo.comm.collectives import Communicator
from retexo.results.atomic_write import write_json
from retexo.worker.process import Job


@dataclass(eq=False)
class Disclosure:
    """What is known of it so far."""

    comm: Communicator
    sites: tuple[str, ...]
    """By rank."""
    asked_for: list[int] = field(default_factory=list)
    """By rank, once the others have asked for nodes."""

    def content(self, job: Job) -> dict[str, Any]:
        """What the file says."""
        to: dict[str, Any] = {
            name: {"nodes_with_rows": self.asked_for[peer] if self.asked_for else 0, "bytes": {}}
            for peer, name in enumerate(self.sites)
            if peer != self.comm.rank
        }
        for (tag, peer), num_bytes in self.comm.meter.entries.items():
            kinds = to[self.sites[peer]]["bytes"].setdefault(tag.kind, {})
            place = "run" if tag.layer < 0 else f"layer {tag.layer}"
            kinds[place] = kinds.get(place, 0) + num_bytes
        return {
            "site": self.sites[self.comm.rank],
            "run_id": job.rendezvous.run_id,
            "encrypted": job.rendezvous.credentials is not None,
            "sums_hide_shares": self.comm.masks is not None,
            "to": to,
        }


@contextmanager
def disclosing(job: Job, comm: Communicator) -> Iterator[Disclosure]:
    """At the end, of a part that a site holds, write the file; of several sites on one node each has its own."""
    disclosure = Disclosure(comm, job.directory.sites)
    try:
        yield disclosure
    finally:
        if disclosure.sites:
            alone = len(job.settings.cluster.local_ranks) == 1
            path = job.run_dir / ("disclosure.json" if alone else f"disclosure-{comm.rank}.json")
            write_json(path, disclosure.content(job))
