"""Lazy message passing (Retexo, arXiv 2302.13053, algorithm 1): exchange, train, embed, next layer.

The boundary rows of a layer's input cross the network once: those that the rounds need before the layer trains, the
others when it is frozen. It trains alone, to convergence; its embeddings of all nodes are the input of the next layer.
"""

from torch import Tensor

from retexo.exchange.exchange_plan import Use
from retexo.models.stage import Stage
from retexo.rounds.objective import LayerObjective
from retexo.rounds.training_loop import run_rounds
from retexo.settings.run_settings import TrainSettings
from retexo.trainers.context import RunContext, TrainResult
from retexo.trainers.layerwise import LAYERS, Layers, each_layer

USE: Use = "train"
OWN_MODEL = False
RESUMES = True


def check(settings: TrainSettings) -> None:
    """Every combination of settings is supported."""


def train(context: RunContext, stages: list[Stage], layers: Layers = LAYERS) -> TrainResult:
    """Train the stages one after the other; each ends with the parameters of its best validation round."""
    rounds: list[int] = []
    logits: list[Tensor] = []

    def fit(objective: LayerObjective) -> None:
        with context.phase("rounds"):
            rounds.append(
                run_rounds(objective, context.settings, context.comm, context.log, context.recovery)
            )

    # Without enumerate, which would hold on to the output before.
    for output in each_layer(
        context, stages, layers, fit, output_heads=context.settings.output_heads
    ):
        context.release_features()  # what is of use after the first layer is in its output
        context.save_layer(len(rounds) - 1, stages[len(rounds) - 1])
        if output.logits is not None:
            logits.append(output.logits)
        del output
    return TrainResult(rounds, logits)
