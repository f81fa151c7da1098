"""What `resume` costs: seconds spent on writing the state of a run, as a share of its training time.

    python benchmarks/checkpoint.py [--repeats 5] [--every 10 20 50 null]

Cora, GCN, 4 random parts and workers, the project's defaults. Measured in rank 0 around every write of a state and of
the replay log, so that the noise of the rest has no part in it; the median over the repeats, and the whole range.
"""

import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import common
import pandas as pd

from retexo.apps import train
from retexo.comm.replay_log import ReplayLog
from retexo.config.compose import compose
from retexo.training.recovery import Recovery
from retexo.worker import train as train_worker


def timed(rank: int, job: train_worker.TrainJob, parent: Connection) -> None:
    """A worker that also reports the seconds that it spent writing."""
    spent = [0.0]

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                spent[0] += time.perf_counter() - start

        return call

    Recovery.save_round, Recovery.save_layer, ReplayLog.append = (
        around(f) for f in (Recovery.save_round, Recovery.save_layer, ReplayLog.append)
    )
    run = train_worker.run
    train_worker.run = lambda *arguments: {**run(*arguments), "writing": spent[0]}
    train_worker.main(rank, job, parent)


def main() -> None:
    parser = common.parser(__doc__, repeats=5)
    parser.add_argument("--every", nargs="+", default=["null", "50", "20", "10"])
    arguments = parser.parse_args()
    train.main = timed
    print(f"{common.machine()}; {arguments.repeats} repeats")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        overrides = [*common.CORA, f"partition_dir={folder}", "app=train"]
        common.partition(compose(overrides))
        for _ in range(arguments.repeats):
            for every in arguments.every:
                summary = common.train(compose([*overrides, f"checkpoint.every={every}"]), folder)
                writing, training = summary["writing"], summary["seconds"]["train"]
                found.append((every, 1000 * writing, training, 100 * writing / training))
    table = pd.DataFrame(found, columns=["checkpoint.every", "writing, ms", "training, s", "share, %"])
    print(table.groupby("checkpoint.every", sort=False).agg(["median", "min", "max"]).round(2).to_string())


if __name__ == "__main__":
    main()
