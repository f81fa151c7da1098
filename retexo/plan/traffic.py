"""Bytes of a run by a dry run: threads of one process send the messages of the workers.

The dry run uses the workers' exchange plan, choice of rows and sums, and encoders with the real
features. It sends one gradient message per layer instead of all rounds, and embeddings without
zeros. Bytes that do not depend on trained values are exact. Others are upper bounds: zeros make
rows shorter, and a layer may stop early.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import PartitionDirectory
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import WHOLE_RUN, MessageTag, TrafficMeter
from retexo.exchange.boundary import INFER_PHASE, TRAIN_PHASE
from retexo.models.network import Architecture, build_network
from retexo.models.stage import Stage
from retexo.rounds.graph_info import GraphInfo, agree_on_graph_info
from retexo.rounds.objective import LayerObjective, Validation
from retexo.rounds.parameters import check_same_parameters, check_same_result, flatten_parameters
from retexo.rounds.round_message import build_message
from retexo.settings.run_settings import TrainSettings
from retexo.sites.secure_sums import hide_shares
from retexo.tasks.scores import choose_and_score
from retexo.trainers.context import Clock, Context
from retexo.trainers.label_propagation import make_smoother
from retexo.trainers.layerwise import LayerOutput
from retexo.trainers.lazy import first_input
from retexo.trainers.relational_layers import RelationalOutput
from retexo.worker.graph import make_architecture, prepare_links
from retexo.worker.make_context import (
    link_task,
    make_context,
)
from retexo.worker.process import gather_measurements

ROW_KINDS = ("features", "embeddings", "aggregates")
PHASE_NAMES = {TRAIN_PHASE: "rounds", INFER_PHASE: "embed"}


@dataclass(frozen=True)
class Entry:
    """Bytes of one kind from one worker to another."""

    layer: int | None
    """Layer; None: the whole run."""
    phase: str | None
    """rounds or embed for rows, see retexo.exchange.exchange_plan."""
    kind: str
    sender: int
    receiver: int
    num_bytes: int
    """Bytes; of gradients, bytes per round."""
    exact: bool
    """Whether the bytes are exact; else an upper bound. For gradients the bound holds for the sum
    over workers: between two workers up to six more values may be sent."""
    if_smoothed: bool = False
    """Whether they are sent only if the first step of label propagation gains."""

    @property
    def each_round(self) -> bool:
        """Whether num_bytes are sent in every round of the layer, not once."""
        return self.kind == "gradients"


@dataclass(frozen=True)
class TrafficEstimate:
    """All messages of a run."""

    entries: tuple[Entry, ...]

    @property
    def unsmoothed(self) -> "TrafficEstimate":
        """Return the messages of a run whose predictions are not smoothed after the first step."""
        return TrafficEstimate(tuple(entry for entry in self.entries if not entry.if_smoothed))

    def total(self, rounds: Sequence[int], kinds: Sequence[str] | None = None) -> int:
        """Return bytes for given rounds per layer, optionally only of some kinds."""
        return sum(
            entry.num_bytes * (rounds[entry.layer or 0] if entry.each_round else 1)
            for entry in self.entries
            if kinds is None or entry.kind in kinds
        )


def estimate_traffic(
    settings: TrainSettings, directory: PartitionDirectory, parts: Sequence[Partition]
) -> TrafficEstimate:
    """Predict the bytes of a run over all partitions of a directory, by a dry run on the CPU.

    InputError where settings and graph do not fit, or no part has training nodes.
    """
    settings = replace(settings, device="cpu")
    # Threads would draw their networks from one random state.
    stages = build_network(find_architecture(settings, directory, parts), settings.seed)
    validates = any(bool(part.val_mask.any()) for part in parts)

    def worker(comm: Communicator) -> list[Entry]:
        part = prepare_links(parts[comm.rank], settings.task)
        smoothing = TrafficMeter(comm.world_size)
        _dry_run(settings, directory, part, copy.deepcopy(stages), comm, smoothing)
        if_smoothed = [
            replace(entry, exact=False, if_smoothed=True)
            for entry in _make_entries(comm.rank, smoothing.entries, settings, validates=validates)
        ]
        sent = _make_entries(comm.rank, comm.meter.entries, settings, validates=validates)
        return sent + if_smoothed

    return TrafficEstimate(tuple(chain.from_iterable(run_threads(len(parts), worker))))


def find_architecture(
    settings: TrainSettings, directory: PartitionDirectory, parts: Sequence[Partition]
) -> Architecture:
    """Return the architecture that the workers agree on for these partitions.

    InputError where their features or labels differ in form, or none reach the labelled type.
    """

    def agree(comm: Communicator) -> GraphInfo:
        part, task = parts[comm.rank], link_task(settings)
        return agree_on_graph_info(comm, part, directory, training=False, task=task)

    return make_architecture(parts[0], settings, run_threads(len(parts), agree)[0])


def _dry_run(
    settings: TrainSettings,
    directory: PartitionDirectory,
    part: Partition,
    stages: list[Stage],
    comm: Communicator,
    smoothing: TrafficMeter,
) -> None:
    """Send the messages of retexo.worker.train.run in order.

    smoothing: counts those that are sent only if the first step of label propagation gains.
    """
    graph_info = agree_on_graph_info(comm, part, directory, training=True, task=link_task(settings))
    check_same_parameters(comm, stages)
    if settings.gradient.secure:
        hide_shares(comm, graph_info.num_ranks_by_split, "")
    context = make_context(
        settings,
        part,
        graph_info,
        comm,
        stages[0].conv,
        clock=Clock(),
        use="train",
        class_names=directory.class_names,
    )
    logits = list(_dry_run_layers(context, stages))
    smoother = make_smoother(context, partial(_counted_apart, comm, smoothing))
    choose_and_score(context, stages, logits, smoother)
    gather_measurements(comm, Clock(), (0, 0), 0.0, len(stages))


def _dry_run_layers(context: Context, stages: Sequence[Stage]) -> Iterator[Tensor]:
    """Send the rows of both phases, and one gradient message per layer and its counts.

    Yields:
        Logits without zeros, [I, C].
    """
    layer_input = first_input(context, stages)
    for layer, stage in enumerate(stages):
        exchanges = layer_input.open_exchanges(context, layer, stage)
        received = {name: exchange.run(TRAIN_PHASE) for name, exchange in exchanges.items()}
        _step(context, layer_input.make_objective(context, layer, stage, received))
        if layer > 0 and (context.plan.options.partial_sums or not context.schema.is_plain):
            # Which rows are held then depends on the embeddings: none, at worst.
            exchanges = layer_input.open_exchanges(context, layer, stage)
        for exchange in exchanges.values():
            exchange.run(INFER_PHASE)
        output, num_logits = _output_without_zeros(context, layer, stage, layer_input)
        yield _no_zeros(len(context.labels), num_logits)
        layer_input = layer_input.next_layer(output)


def _output_without_zeros(
    context: Context, layer: int, stage: Stage, layer_input: Any
) -> tuple[Any, int]:
    """Return a made-up LayerOutput (or RelationalOutput) of rows without zeros, and C.

    Rows without zeros give the largest messages. The stage does not run.
    """
    width, num_logits = stage.output_widths
    if context.schema.is_plain:
        return LayerOutput(_no_zeros(len(layer_input.rows), width), None), num_logits
    schema, num_layers = context.schema, context.settings.model.depth
    widths = {name: rows.shape[1] for name, rows in layer_input.rows.items()}
    passed = schema.passed_widths(layer, widths, stage.conv.projected_width)
    types = schema.passing_types(layer, num_layers)
    required = context.required_layers
    rows = {name: _no_zeros(len(required[name]), passed[name]) for name in types}
    nothing = _no_zeros(0, 0)
    return RelationalOutput(rows, nothing, nothing), num_logits


def _step(context: Context, objective: LayerObjective) -> None:
    """Send the gradients of one round, then what ends the rounds: counts, and a checksum."""
    nothing = Validation(torch.zeros(objective.metric.num_counts, dtype=torch.int64))
    flat = flatten_parameters(objective, context.comm, context.settings.gradient)
    message = build_message(objective, context.settings, context.comm, flat)
    message.reduce_update(0.0, nothing)
    message.reduce_counts(nothing)
    check_same_result(context.comm, objective)


def _no_zeros(count: int, width: int) -> Tensor:
    """Return rows without zeros, [count, width]."""
    return torch.linspace(0.5, 1.5, count * width).view(count, width)


@contextlib.contextmanager
def _counted_apart(comm: Communicator, meter: TrafficMeter) -> Iterator[None]:
    """Within the block, count the bytes sent with another meter. An exception leaves it there."""
    training_meter, comm.meter = comm.meter, meter
    yield
    comm.meter = training_meter


def _make_entries(
    rank: int,
    sent: Mapping[tuple[MessageTag, int], int],
    settings: TrainSettings,
    *,
    validates: bool,
) -> list[Entry]:
    """Return an Entry for each kind of message that a worker sent in the dry run.

    Bytes that depend on trained values are upper bounds.
    """

    def entry(tag: MessageTag, receiver: int, num_bytes: int) -> Entry:
        kind, layer = tag.kind, None if tag.layer == WHOLE_RUN else tag.layer
        phase = PHASE_NAMES[tag.phase] if kind in ROW_KINDS else None
        times = (
            max_count_messages(settings, layer, validates=validates)
            if kind == "metrics" and layer is not None
            else 1
        )
        of_training = kind == "embeddings" or (kind == "aggregates" and layer != 0)
        values_of_training = of_training and settings.exchange.mode != "plain"
        made_in_training = values_of_training or (kind == "gradients" and layer != 0) or times > 1
        return Entry(layer, phase, kind, rank, receiver, num_bytes * times, not made_in_training)

    return [entry(*key, num_bytes) for key, num_bytes in sent.items()]


def max_count_messages(settings: TrainSettings, layer: int, *, validates: bool) -> int:
    """Return how often a layer sends its counts alone, at most: at its end, and when it may end.

    With validation nodes it may end every `patience` rounds; without them, after each round from
    `patience` on. See retexo.rounds.training_loop.run_rounds.
    """
    patience, limit = settings.stopping.patience, int(settings.num_rounds[layer])
    if patience is None:
        return 1
    return 1 + (max(0, limit - 1) // patience if validates else max(0, limit - patience))
