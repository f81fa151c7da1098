"""Lazy message passing (Retexo, arXiv 2302.13053, algorithm 1): exchange, train, embed, next layer.

The boundary rows of a layer's input cross the network once: those that the rounds need before the layer trains, the
others when it is frozen. It trains alone, to convergence; its embeddings of all nodes are the input of the next layer.
"""

from dataclasses import replace

from retexo.config.settings import TrainSettings
from retexo.exchange.plan import Use
from retexo.nn.stage import Stage
from retexo.trainers.context import Context, TrainResult
from retexo.trainers.layerwise import LayerInput, run_layer
from retexo.training.loop import run_rounds
from retexo.training.objective import LayerObjective

USE: Use = "train"
OWN_MODEL = False
RESUMES = True


def check(settings: TrainSettings) -> None:
    """Every combination of settings is supported."""


def train(context: Context, stages: list[Stage]) -> TrainResult:
    """Train the stages one after the other; each ends with the parameters of its best validation round."""
    given, logits = LayerInput.first(context, stages), []
    rounds: list[int] = []

    def fit(objective: LayerObjective) -> None:
        with context.phase("rounds"):
            rounds.append(run_rounds(objective, context.settings, context.comm, context.log, context.recovery))

    for layer, stage in enumerate(stages):
        output = run_layer(context, layer, stage, given, fit)
        context.features = context.features[:0].clone()  # what is of use after the first layer is in `given`
        context.save_layer(layer, stage)
        given = replace(given, rows=output.rows)
        logits.append(output.logits)
    return TrainResult(rounds, logits)
