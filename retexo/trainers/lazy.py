"""Lazy message passing (Retexo, arXiv 2302.13053, algorithm 1): exchange, train, embed, next layer.

A trained network is run in the same way, without rounds (`infer`).

The boundary rows of a layer's input cross the network once: those that the rounds need before the layer trains, the
others when it is frozen. It trains alone, to convergence; what it then makes of every node is the input of the next.

I inner nodes of this worker, F input width, D hidden width, C classes.
"""

from retexo.config.settings import TrainSettings
from retexo.exchange.plan import Use
from retexo.nn.stage import Stage
from retexo.trainers.context import Context, TrainResult
from retexo.trainers.layerwise import run_layer
from retexo.training.loop import run_rounds
from retexo.training.objective import LayerTask

USE: Use = "train"

OWN_MODEL = False

RESUMES = True


def check(settings: TrainSettings) -> None:
    """Every combination of settings can be had."""


def train(context: Context, stages: list[Stage]) -> TrainResult:
    """Train the stages one after the other; each ends with the parameters of its best validation round."""
    rows = context.features
    rounds: list[int] = []

    def learn(layer_task: LayerTask) -> None:
        with context.phase("rounds"):
            rounds.append(run_rounds(layer_task, context.settings, context.comm, context.log, context.recovery))

    for layer, stage in enumerate(stages):
        rows = run_layer(context, layer, stage, rows, learn)
        context.features = context.features[:0].clone()  # of no use after the first layer
        context.save_layer(layer, stage)
    return TrainResult(rounds, rows)
