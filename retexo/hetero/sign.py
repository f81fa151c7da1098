"""SIGN on relations: features after 0, 1, ... L hops over all relations are computed once, then an MLP trains on them.

It is NARS (Yu et al., "Scalable Graph Neural Networks for Heterogeneous Graphs", 2020) without sampling: its one subset
of relations is all of them, and what comes of each type stays apart. With X_u the features of type u,

    H_t,u = mean over the relations r = (s, r, t) that bring rows of u of  A_r H_s,u        from  H_u,u = X_u

hop by hop; the MLP reads those of the target (retexo.trainers.sign).
"""

from collections import Counter

import torch
from torch import Tensor

from partitioning.errors import InputError
from retexo.exchange.exchange_plan import Use
from retexo.hetero.context import HeteroContext
from retexo.models.conv_registry import check_model
from retexo.models.stage import Stage
from retexo.settings.run_settings import TrainSettings
from retexo.trainers.context import TrainResult
from retexo.trainers.end_to_end import exchange_rows
from retexo.trainers.sign import fit_hops

USE: Use = "evaluate"
OWN_MODEL = True
RESUMES = False
Hop = dict[str, dict[str, Tensor]]
"""By type, and by the type that its features are of: [I, F_u]."""


def check(settings: TrainSettings) -> None:
    if not check_model(settings.model).linear_aggregation:
        raise InputError(
            f"model={settings.model.name}: trainer=sign takes means of rows; choose one of rgcn, hetero_sage"
        )


def train(context: HeteroContext, stages: list[Stage]) -> TrainResult:
    """Exchange and aggregate hop by hop, then train; of the stages nothing is used."""
    return fit_hops(context, make_hops(context, len(stages)))


def make_hops(context: HeteroContext, num_hops: int) -> list[Tensor]:
    """[I, F_u] of the target: its features, then what each hop brings of each type's."""
    target = context.schema.target
    hop: Hop = {name: {name: rows} for name, rows in context.features.items() if rows.shape[1]}
    found = list(hop.get(target, {}).values())
    for number in range(num_hops):
        hop = _next(context, hop, number)
        found += hop.get(target, {}).values()
    return found


def _next(context: HeteroContext, hop: Hop, number: int) -> Hop:
    """One hop more, at the nodes that some worker needs; zeros elsewhere."""
    nodes = {name: (each > number).nonzero()[:, 0] for name, each in context.required.items()}
    total: Hop = {}
    count: Counter[tuple[str, str]] = Counter()
    for name, rows in hop.items():
        table = torch.cat(list(rows.values()), dim=1)
        received = exchange_rows(context, context.plans[name], number, table, None)
        with context.phase("aggregate"):
            sums = context.means(name, table, nodes)
            sums.add(received)
            means = sums.found()
        for each in context.out[name].first:
            brought = table.new_zeros(len(context.required[each[2]]), table.shape[1])
            if each in means:
                brought[nodes[each[2]]] = means[each].cpu()
            into = total.setdefault(each[2], {})
            widths = [part.shape[1] for part in rows.values()]
            for origin, part in zip(rows, torch.split(brought, widths, dim=1), strict=True):
                into[origin] = into[origin] + part if origin in into else part
                count[each[2], origin] += 1
    return {
        to: {origin: rows / count[to, origin] for origin, rows in each.items()}
        for to, each in total.items()
    }
