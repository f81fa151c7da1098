"""Error of rounded rows along the layers of deep networks (table of docs/results.md).

    python benchmarks/depth_precision.py --datasets DIR [--graph minesweeper] [--rounds 100]
        [--layers 8]

A network is trained with rows in fp32 on four random partitions, then all its layers are computed
again with rounded rows. The error of a layer is the norm of what its outputs differ by, divided by
the norm of the exact ones, at the nodes of the first partition.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import torch
from objectives import settings_of
from torch import Tensor

from retexo.models.stage import Stage
from retexo.settings.run_settings import TrainSettings
from retexo.trainers.context import Context
from retexo.trainers.lazy import run_layers

NETWORKS = {
    "residual, ahead": ("model.residual=true", "model.input_skip=false", "model.lookahead=1"),
    "residual": ("model.residual=true", "model.input_skip=false"),
    "ahead": ("model.lookahead=1",),
}
PRECISIONS = ("bf16", "int8", "int4")


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", type=Path, required=True)
    parser.add_argument("--graph", default="minesweeper")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--layers", type=int, default=8)
    args = parser.parse_args()
    args.datasets = args.datasets.resolve()
    common.be_silent()
    layers = [f"layer {layer + 1}" for layer in range(args.layers - 1)] + ["logits"]
    print(f"| network | rows | {' | '.join(layers)} |", flush=True)
    print("|---|---|" + "---|" * args.layers)
    fixed = [f"num_layers={args.layers}", f"num_rounds=[{args.rounds}]", "hidden_dim=64"]
    for name, options in NETWORKS.items():
        with TemporaryDirectory() as folder:
            more = ["exchange.precision=fp32", "learning_rate=[0.003]", *fixed, *options]
            settings = settings_of(args, args.graph, 0, "sage", folder, more)
            common.partition(settings)
            errors = common.train_in_threads(settings, measure_errors)["errors"]
        for precision, row in errors.items():
            print(f"| {name} | {precision} | {' | '.join(f'{error:.3%}' for error in row)} |")


def measure_errors(
    make: Callable[..., Context], settings: TrainSettings, stages: list[Stage]
) -> dict[str, Any]:
    """Return by precision the relative error of each layer's output."""

    def outputs(precision: str) -> list[Tensor]:
        exchange = replace(settings.exchange, precision=[precision] * settings.model.depth)
        context = make(replace(settings, exchange=exchange))
        return [output.rows.nan_to_num() for output in run_layers(context, stages)]

    exact = outputs("fp32")
    return {
        "errors": {
            precision: [
                float(torch.norm(rows - exact_rows) / torch.norm(exact_rows))
                for rows, exact_rows in zip(outputs(precision), exact, strict=True)
            ]
            for precision in PRECISIONS
        }
    }


if __name__ == "__main__":
    main()
