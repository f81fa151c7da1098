"""Cost of recovery states: seconds spent writing them, as a share of the training time.

    python benchmarks/checkpoint.py [--repeats 5] [--every 10 20 50 null none] \\
        [--pubmed PATH.npz]

Cora or PubMed, GCN, 4 random partitions and workers, defaults; `none` is checkpoint=none.
Measured in rank 0 around every write of a state and of the replay log. Prints the median and
range over the repeats, and the bytes on rank 0's disk at the end.
"""

import tempfile
from socket import socket
from typing import Any
from unittest import mock

import common
import pandas as pd
from profiled_worker import Stopwatch

from retexo.apps import train
from retexo.comm.replay_log import ReplayLog
from retexo.rounds.recovery import Recovery, state_dir
from retexo.settings.compose import compose
from retexo.worker import train as train_worker
from retexo.worker.process import serve

WRITERS = ((Recovery, "save_round"), (Recovery, "save_layer"), (ReplayLog, "append"))
"""What writes the state of a run."""


def timed(rank: int, job: train_worker.TrainJob, parent: socket, streams: Any) -> None:
    """Run a worker that also reports the seconds it spent writing."""
    watch = Stopwatch()
    for owner, name in WRITERS:
        setattr(owner, name, watch.timed("writing", getattr(owner, name)))

    def run(*arguments: Any) -> dict[str, Any]:
        result, place = train_worker.run(*arguments), state_dir(job.run_dir, rank)
        kept = sum(file.stat().st_size for file in place.rglob("*"))
        return {**result, "writing": watch.wall["writing"], "kept": kept}

    serve(run, rank, job, parent, streams)


def main() -> None:
    parser = common.parser(__doc__, repeats=5, pubmed=None)
    parser.add_argument("--every", nargs="+", default=["none", "null", "50", "20", "10"])
    arguments = parser.parse_args()
    print(f"{common.machine()}; {arguments.repeats} repeats")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            *list(common.graphs(arguments.pubmed).values())[-1],
            f"partition_dir={folder}",
            "app=train",
        ]
        common.partition(compose(overrides))
        for _ in range(arguments.repeats):
            for every in arguments.every:
                option = "checkpoint=none" if every == "none" else f"checkpoint.every={every}"
                with mock.patch.object(train, "main", timed):
                    summary = common.train(compose([*overrides, option]), folder)
                writing, training = summary["writing"], summary["seconds"]["train"]
                rows.append(
                    (
                        every,
                        1000 * writing,
                        training,
                        100 * writing / training,
                        summary["kept"] / 1e6,
                    )
                )
    table = pd.DataFrame(
        rows, columns=["checkpoint.every", "writing, ms", "training, s", "share, %", "MB"]
    )
    print(
        table.groupby("checkpoint.every", sort=False)
        .agg(["median", "min", "max"])
        .round(2)
        .to_string()
    )


if __name__ == "__main__":
    import checkpoint  # workers import what they run from a module

    checkpoint.main()
