"""Mini-batches of sampled neighbours: the objective of trainer=sampled."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from partitioning.errors import InputError
from retexo.comm.traffic_meter import SETUP, WHOLE_RUN
from retexo.models.block import Block
from retexo.models.conv.sage import SAGEMean
from retexo.models.convolution import Convolution
from retexo.models.linear import NO_PROJECTED_ROWS
from retexo.models.matrix import Matrix, as_matrix
from retexo.models.stage import Stage
from retexo.rounds.objective import Objective, Validation, count_validation
from retexo.trainers import end_to_end
from retexo.trainers.context import Context
from retexo.trainers.sampled_dgl.client import Engine


@dataclass(frozen=True, eq=False)
class TrainerShare:
    """What the worker of a partition trains on."""

    stages: Sequence[Stage]
    task: Any
    fanout: Sequence[int]
    train: Tensor
    """int64 [n] global ids, as in `val`."""
    val: Tensor
    val_labels: Tensor
    """Labels as the loss reads them, on the device."""
    size: int
    """Nodes per batch."""
    weights: Tensor
    """[steps per epoch] factor of each batch's loss, so that it stands for all training nodes."""
    dtype: torch.dtype


class Batches:
    """Network on one batch of the worker's nodes per round."""

    def __init__(self, share: TrainerShare, client: Engine) -> None:
        self.share, self.client, self.module = (
            share,
            client,
            end_to_end.collect_modules(share.stages),
        )
        self.metric = share.task.make_round_metric()
        self._sampler = client.dgl.dataloading.NeighborSampler(list(share.fanout))
        self._nodes, self._step = share.train, 0

    def begin_round(self, number: int) -> None:
        """Choose the batch of a round; at the start of an epoch, shuffle by torch's generator."""
        self._step = number % len(self.share.weights)
        if not self._step:
            self._nodes = self._nodes[torch.randperm(len(self._nodes))]

    def loss(self) -> Tensor | None:
        """Return the weighted loss summed over the round's batch; None if the batch is empty.

        Puts the network into training mode.
        """
        self.module.train()
        batch = self._nodes[self._step * self.share.size :][: self.share.size]
        if not len(batch):
            return None
        task, like = self.share.task, self.share.val_labels
        labels = task.make_targets(self.client.rows("label", batch), like.dtype).to(like)
        loss: Tensor = task.loss_sum(self._logits(batch), labels) * self.share.weights[self._step]
        return loss

    @torch.no_grad()
    def validate(self) -> Validation:
        """Return counts and loss of this worker's validation nodes, on sampled neighbours.

        The module is in evaluation mode afterwards.
        """
        self.module.eval()
        nodes, labels = (
            torch.split(tensor, self.share.size)
            for tensor in (self.share.val, self.share.val_labels)
        )
        pieces = (
            (self._logits(some), labels_of_batch)
            for some, labels_of_batch in zip(nodes, labels, strict=True)
            if len(some)
        )
        with self.client.count_as("metrics"):
            return count_validation(self.share.task, self.metric, pieces)

    def _logits(self, seeds: Tensor) -> Tensor:
        """Sample the neighbourhood of the seeds, fetch its rows, and run the network."""
        stages, device = self.share.stages, self.share.val_labels.device
        inputs, _, blocks = self._sampler.sample(self.client.graph, seeds)
        rows = self.client.rows("feat", inputs).to(self.share.dtype)
        degrees = {
            name: self.client.rows(name, inputs).to(rows)
            for name in required_degrees(stages[0].conv)
        }
        rows = rows.to(device)
        for stage, block in zip(stages, blocks, strict=True):
            own = rows.clone() if rows.requires_grad else rows  # prepare may overwrite it
            rows = stage.embed(
                stage.conv.prepare(convert_block(block, degrees).to(device), own, NO_PROJECTED_ROWS)
            )
        return rows


class BatchObjective(Objective):
    """Objective of a network on one batch of this partition per round."""

    layer, traffic_layer, exchanges_rows = 0, WHOLE_RUN, True

    def __init__(
        self, context: Context, stages: Sequence[Stage], engine: Engine, fanout: Sequence[int]
    ) -> None:
        self.context, self.stages, self.engine = context, stages, engine
        self.task, self.graph_info = context.task, context.graph_info
        needed_data = {"feat", "label", "train_mask", *required_degrees(stages[0].conv)}
        if missing := needed_data - engine.graph.ndata.keys():
            raise InputError(
                f"{context.directory}: model={context.settings.model.name} with trainer=sampled"
                f" reads {', '.join(sorted(missing))}, which are missing in DGL's files; partition"
                " again, or choose model=sage"
            )
        share = self._make_share(fanout)
        self.steps = len(share.weights)
        """Rounds per epoch."""
        self._batches = Batches(share, engine)
        self._num_train = len(share.train)
        self.metric = self._batches.metric
        self._number, self._measured = 0, count_validation(self.task, self.metric, [])

    @property
    def module(self) -> nn.Module:
        return self._batches.module

    @property
    def num_train(self) -> int:
        return self._num_train

    def _make_share(self, fanout: Sequence[int]) -> TrainerShare:
        """Divide the training nodes among the workers; validation nodes are those of the partition.

        All workers call it: a batch's weight is all training nodes over those that the workers have
        in it.
        """
        context, engine = self.context, self.engine
        mask, book = engine.graph.ndata["train_mask"], engine.graph.get_partition_book()
        train = engine.dgl.distributed.node_split(mask, book, rank=0, force_even=True)
        counts = context.comm.all_gather(torch.tensor([len(train)]), SETUP).flatten()
        size = context.batch_size or int(counts.max())
        left = counts[:, None] - size * torch.arange(max(1, -(-int(counts.max()) // size)))
        weights = self.graph_info.num_train / left.clamp(0, size).sum(dim=0).clamp(min=1)
        mask = context.partition.val_mask
        val = mask.nonzero()[:, 0] + self.graph_info.id_bounds[context.comm.rank]
        labels = context.labels[mask.to(context.device)]
        return TrainerShare(
            self.stages,
            self.task,
            fanout,
            train,
            val,
            labels,
            size,
            weights,
            context.features.dtype,
        )

    def begin_round(self, number: int) -> None:
        self._number = number
        self._batches.begin_round(number)

    def first_inputs(self) -> tuple[Sequence[nn.Parameter], Iterable[Sequence[Matrix]]]:
        """Return the first weights and all features; a zero feature is in no sample."""
        weights = self.stages[0].first_weights
        return weights, [(as_matrix(self.context.features),) * len(weights)]

    def losses(self) -> Iterator[Tensor]:
        """Yield this worker's loss, unless its batch is empty."""
        own = self._batches.loss()
        if own is not None:
            yield own

    def validate(self) -> Validation:
        """Return the validation of the start of this epoch."""
        if self._number % self.steps == 0 and self.graph_info.num_val:
            self._measured = self._batches.validate()
        return self._measured


def required_degrees(conv: Convolution) -> list[str]:
    """Return the names of the global degrees that a convolution's sums read."""
    names = ["in_deg"] if conv.linear_aggregation and not isinstance(conv, SAGEMean) else []
    return [*names, "out_deg"] if conv.uses_out_degree else names


def convert_block(block: Any, degrees: dict[str, Tensor]) -> Block:
    """Convert a DGL block, without self loops.

    Args:
        block: DGL's block.
        degrees: [n] global degrees; their first nodes are the block's sources.
    """
    src, dst = block.edges()
    src, dst = src[src != dst], dst[src != dst]
    num_src, num_dst = block.num_src_nodes(), block.num_dst_nodes()
    count = torch.bincount(dst, minlength=num_dst)
    in_degree, weight = count.float(), None
    if "in_deg" in degrees:
        in_degree = degrees["in_deg"][:num_dst]
        weight = (in_degree / count)[dst]
    out_degree = degrees["out_deg"][:num_src] if "out_deg" in degrees else torch.zeros(num_src)
    return Block(torch.arange(num_src), num_dst, num_src, src, dst, out_degree, in_degree, weight)
