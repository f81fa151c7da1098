"""Train on a GPU: seconds by phase and memory, beside PyG's full graph and the floor by bandwidth.

    python benchmarks/gpu.py [--minutes 4] [--models gcn] [--workers 1 4]
    python benchmarks/gpu.py --nodes 6000 --device cpu --minutes 10

A synthetic graph with the sizes of ogbn-products (scale.py; `--nodes` for fewer, with as many edges
per node), 30 rounds per layer without early stopping, with the defaults and with
`+experiment=exact`; all workers share the first GPU. PyG trains the same network (2 layers of
width 256) on the whole graph for as many epochs as all layers have rounds. No run begins, and none
goes on, after `--minutes`; the table then says so. Not yet run on a GPU.

Memory is what all processes hold of the GPU at most, sampled; with `--device cpu` the private
memory of all workers.

The floor is the bytes that must move through the device's memory, divided by the rate of a copy:

    aggregate + embed   for each layer, a row per edge in the narrower of its widths, each node's
                        row and its output
    rounds              in each round, the aggregates and the outputs of training nodes twice
                        (forward and backward) and those of validation nodes once
"""

import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import alternative_runs
import common
import scale
import torch
from alternatives import write_graph

from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

METHODS = {"defaults": (), "exact": ("+experiment=exact",)}
PHASES = ("plan", "exchange", "aggregate", "rounds", "embed", "evaluate")
COLUMNS = ("workers", *(f"{name}, s" for name in PHASES), "training, s", "GiB", "test")
COPIED = 1 << 30
"""Bytes of the copy that measures the bandwidth."""


def main() -> None:
    parser = common.parser(__doc__, models=["gcn"], options=[])
    parser.add_argument("--nodes", type=int, default=scale.NODES)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=30, help="per layer")
    parser.add_argument("--minutes", type=float, default=4.0)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here; try the script with --nodes 6000 --device cpu")
    deadline = time.monotonic() + 60 * args.minutes
    print(f"{common.machine()}, {torch.cuda.get_device_name() if args.device == 'cuda' else 'cpu'}")
    print("|".join(["", "run", *COLUMNS, ""]) + "\n" + "|---" * (len(COLUMNS) + 1) + "|")
    graph = scale.data(max(1, scale.NODES // args.nodes))
    for model in args.models:
        print_row(f"{model}, floor by bandwidth", floor(model, graph, args))
    with tempfile.TemporaryDirectory() as folder:
        runs = [("PyG", 0, model) for model in args.models]
        runs += product(args.methods, args.workers, args.models)
        partitioned: set[int] = set()
        for name, workers, model in runs:
            overrides = [*graph, f"num_partitions={workers or 1}", f"partition_dir={folder}/parts"]
            settings = compose(overrides)
            if workers not in partitioned:
                partitioned.add(workers)
                common.partition(settings) if workers else write_graph(settings, Path(folder))
            left = deadline - time.monotonic()
            with peak_memory(args.device) as peak:
                if workers:
                    more = [*overrides, *METHODS[name], *args.options, f"device={args.device}"]
                    row = train(model, more, args.rounds, Path(folder), left)
                else:
                    row = pyg(model, args, folder, left)
            memory = {"GiB": peak[0] / 2**30} if peak[0] else {}
            print_row(f"{model}, {name}", row | memory | ({"workers": workers} if workers else {}))


def print_row(name: str, row: dict[str, Any]) -> None:
    """Print a line of the table, or why there is none."""
    cells = [row.get(column, "") for column in COLUMNS]
    texts = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells]
    print("|".join(["", name + row.get("note", ""), *texts, ""]), flush=True)


def train(
    model: str, settings: list[str], rounds: int, folder: Path, left: float
) -> dict[str, Any]:
    """Train as a user would; return the cells of a run that ended within `left` seconds."""
    run_dir = Path(tempfile.mkdtemp(dir=folder)) / "run"
    command = [sys.executable, str(common.ROOT / "main.py")]
    command += ["--config-name", f"node_classification_{model}", "app=train", *settings]
    command += [f"num_rounds=[{rounds}]", "stopping=none", "num_layers=2"]
    failed = run([*command, f"hydra.run.dir={run_dir}"], left)
    if failed:
        return {"note": failed}
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    phases = summary["seconds"]["phase"]
    return {f"{name}, s": phases[name] for name in PHASES} | {
        "training, s": summary["seconds"]["train"],
        "GiB": sum(summary["peak_private_bytes"]) / 2**30,
        "test": summary["test"]["accuracy"],
    }


def pyg(model: str, args: Namespace, folder: str, left: float) -> dict[str, Any]:
    """The same of PyG on the whole graph, in a process of its own."""
    method = f"PyG {model.upper()}"
    epochs = 2 * args.rounds
    job = alternative_runs.Run(method, 0, [], folder, math.inf, args.device, epochs)
    result = Path(folder) / "result.json"
    command = [sys.executable, alternative_runs.__file__, json.dumps(vars(job)), str(result)]
    failed = run(command, left)
    if failed:
        return {"note": failed}
    figures = json.loads(result.read_text(encoding="utf-8"))
    return {"training, s": figures["train"], "rounds, s": figures["train"], "test": figures["test"]}


def run(command: list[str], left: float) -> str:
    """Run a command for at most `left` seconds; return why it has no result, or nothing."""
    if left <= 0:
        return ": no time left"
    try:
        ended = subprocess.run(
            command, timeout=left, capture_output=True, text=True, check=False, cwd=common.ROOT
        )
    except subprocess.TimeoutExpired:
        return f": not done after {left:.0f} s"
    said = [line for line in ended.stderr.splitlines() if line.strip()]
    return f": {said[-1] if said else 'failed'}" if ended.returncode else ""


@contextmanager
def peak_memory(device: str) -> Iterator[list[int]]:
    """Sample the bytes of the GPU in use, beyond those in use at the start; [0] on a CPU."""
    peak, ended = [0], threading.Event()

    def sample(at_start: int) -> None:
        while not ended.wait(0.1):
            peak[0] = max(peak[0], used_bytes() - at_start)

    if device == "cpu":
        yield peak
        return
    thread = threading.Thread(target=sample, args=(used_bytes(),))
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def used_bytes() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free


def floor(model: str, graph: list[str], args: Namespace) -> dict[str, Any]:
    """Seconds of the bytes that must move, by phase."""
    settings = compose(graph)
    rate = bandwidth(args.device)
    moved = moved_bytes(settings, model, args.rounds)
    sums, rounds = (num_bytes / rate for num_bytes in moved)
    note = f" ({rate / 1e9:.4g} GB/s, aggregate with embed)"
    return {"aggregate, s": sums, "rounds, s": rounds, "note": note}


def moved_bytes(settings: Settings, model: str, num_rounds: int) -> tuple[float, float]:
    """Bytes of aggregate + embed, and of all rounds, on one worker."""
    data = settings.synthetic
    inputs = 2 if model == "sage" else 1  # its own row beside the aggregate
    sums = rounds = 0.0
    for width, out in ((data.features, scale.HIDDEN), (scale.HIDDEN, data.classes)):
        sums += 4 * (2 * data.edges * min(width, out) + data.nodes * (inputs * width + out))
        seen = 2 * scale.TRAIN + scale.VAL
        rounds += num_rounds * 4 * data.nodes * seen * (inputs * width + out)
    return sums, rounds


def bandwidth(device: str) -> float:
    """Bytes per second that a copy reads and writes."""
    source = torch.ones(COPIED >> 2, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        target.copy_(source)
        float(target[-1])  # waits for the copy
        seconds.append(time.perf_counter() - start)
    return 2 * COPIED / min(seconds)


if __name__ == "__main__":
    main()
