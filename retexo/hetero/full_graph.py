"""Full-graph training of heterogeneous graphs, end to end, as retexo.trainers.full_graph: by type and relation."""

from typing import Any

from retexo.hetero import network_pass
from retexo.hetero.context import HeteroContext
from retexo.trainers import end_to_end, full_graph
from retexo.trainers.context import TrainResult

USE, OWN_MODEL, RESUMES, check = (
    full_graph.USE,
    full_graph.OWN_MODEL,
    full_graph.RESUMES,
    full_graph.check,
)


def train(context: HeteroContext, stages: list[Any]) -> TrainResult:
    """One step per epoch, from a pass for the training nodes; validation takes another one, without dropout."""
    features, passes = network_pass.exchange_features(context), []
    for mask in (context.partition.train_mask, context.partition.val_mask):
        with context.phase("plan"):
            required = network_pass.required_for(context, mask, context.comm)
            plans = network_pass.plans_for(context, required)
        with context.phase("aggregate"):
            passes.append(network_pass.make_pass(context, stages, required, mask, plans, features))
    several = len(stages) > 1
    rounds = end_to_end.fit_stages(
        context,
        stages,
        lambda: passes[0],
        passes[1],
        passes[0].first_matrices,
        exchanges_rows=several,
    )
    return TrainResult(rounds, [network_pass.infer(context, stages, features)[0]])
