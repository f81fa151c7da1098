"""Profile a run by worker: start-up, exchange, and the parts of a round.

    python benchmarks/profile_run.py [--rounds 100] \\
        [--options distributed.backend=sockets +experiment=retexo ...]

A run as users start it (Cora, GCN, 4 random partitions and workers, a fixed number of rounds per
layer), with workers that time the functions named in profiled_worker.py, without nested named
functions. Prints means over workers: wall and CPU seconds (without gloo's own threads), and
milliseconds per round for repeated parts.
"""

# Not profile.py: that would take the place of the standard library's module, which torch imports by
# way of cProfile.
import json
import os
import tempfile
import time
from pathlib import Path
from unittest import mock

import common
import pandas as pd
import profiled_worker

from retexo.apps import train as train_app
from retexo.settings.compose import compose


def main() -> None:
    parser = common.parser(__doc__, options=[])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--model", default="gcn")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fixed = [
            f"partition_dir={folder}",
            "app=train",
            "stopping=none",
            f"num_rounds=[{arguments.rounds}]",
        ]
        config = f"node_classification_{arguments.model}"
        settings = compose([*common.CORA, *fixed, *arguments.options], config)
        common.partition(settings)
        begin = time.time()
        run_dir = Path(folder) / "run"
        with mock.patch.object(train_app, "main", profiled_worker.main):
            summary = train_app.run(settings, run_dir)
        profiles = [
            json.loads(path.read_text(encoding="utf-8"))
            for path in sorted(run_dir.glob("profile-*.json"))
        ]
    rounds = sum(summary["rounds"])
    print(
        f"{common.machine()}; load {os.getloadavg()[0]:.1f}; {rounds} rounds;", *arguments.options
    )
    print(
        f"workers start after {min(profile['started'] for profile in profiles) - begin:.2f} s,"
        f" train for {summary['seconds']['train']:.2f}; phases",
        summary["seconds"]["phase"],
    )
    table = pd.DataFrame(
        {
            clock: pd.DataFrame([profile[clock] for profile in profiles]).mean()
            for clock in ("wall", "cpu")
        }
    )
    table = table.reindex([*profiled_worker.WATCHED, "rest"]).dropna()
    repeated = table.index.str.startswith(("round", "sums", "messages"))
    for clock in ("wall", "cpu"):
        table[f"{clock} ms a round"] = (1000 * table[clock] / rounds).where(repeated)
    print(table.round(2).to_string(na_rep=""))


if __name__ == "__main__":
    main()
