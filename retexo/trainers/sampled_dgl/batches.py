"""Mini-batches of sampled neighbours: the objective of trainer=sampled."""

from collections.abc import Iterable, Iterator, Sequence
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


class BatchObjective(Objective):
    """Objective of a network on one batch of this partition's training nodes per round."""

    layer, traffic_layer, exchanges_rows = 0, WHOLE_RUN, True

    def __init__(
        self, context: Context, stages: Sequence[Stage], engine: Engine, fanout: Sequence[int]
    ) -> None:
        """Divide the training nodes among the workers; validation nodes are those of the partition.

        All workers call it: a batch's weight is all training nodes over those that the workers have
        in it.
        """
        self.context, self.stages, self.engine = context, stages, engine
        self.task, self.graph_info = context.task, context.graph_info
        needed_data = {"feat", "label", "train_mask", *required_degrees(stages[0].conv)}
        if missing := needed_data - engine.graph.ndata.keys():
            raise InputError(
                f"{context.directory}: model={context.settings.model.name} with trainer=sampled"
                f" reads {', '.join(sorted(missing))}, which are missing in DGL's files; partition"
                " again, or choose model=sage"
            )
        mask, book = engine.graph.ndata["train_mask"], engine.graph.get_partition_book()
        self._nodes: Tensor = engine.dgl.distributed.node_split(mask, book, rank=0, force_even=True)
        """int64 [n] global ids in the order of their batches, as in `_val`."""
        counts = context.comm.all_gather(torch.tensor([len(self._nodes)]), SETUP).flatten()
        self._size = context.batch_size or int(counts.max())
        """Nodes per batch."""
        left = counts[:, None] - self._size * torch.arange(
            max(1, -(-int(counts.max()) // self._size))
        )
        self._weights = self.graph_info.num_train / left.clamp(0, self._size).sum(dim=0).clamp(
            min=1
        )
        """[steps] factor of each batch's loss, so that it stands for all training nodes."""
        self.steps = len(self._weights)
        """Rounds per epoch."""
        mask = context.partition.val_mask
        self._val = mask.nonzero()[:, 0] + self.graph_info.id_bounds[context.comm.rank]
        self._val_labels = context.labels[mask.to(context.device)]
        """Labels as the loss reads them, on the device."""
        self._module = end_to_end.collect_modules(stages)
        self._sampler = engine.dgl.dataloading.NeighborSampler(list(fanout))
        self._step, self._measured = 0, count_validation(self.task, self.metric, [])

    @property
    def module(self) -> nn.Module:
        return self._module

    @property
    def num_train(self) -> int:
        return len(self._nodes)

    def begin_round(self, number: int) -> None:
        """Choose the batch of a round; at the start of an epoch, shuffle by torch's generator."""
        self._step = number % self.steps
        if not self._step:
            self._nodes = self._nodes[torch.randperm(len(self._nodes))]

    def first_inputs(self) -> tuple[Sequence[nn.Parameter], Iterable[Sequence[Matrix]]]:
        """Return the first weights and all features; a zero feature is in no sample."""
        weights = self.stages[0].first_weights
        return weights, [(as_matrix(self.context.features),) * len(weights)]

    def losses(self) -> Iterator[Tensor]:
        """Yield the weighted loss summed over the round's batch, unless that is empty.

        Puts the network into training mode.
        """
        self.module.train()
        batch = self._nodes[self._step * self._size :][: self._size]
        if len(batch):
            like = self._val_labels
            labels = self.task.make_targets(self.engine.rows("label", batch), like.dtype).to(like)
            yield self.task.loss_sum(self._logits(batch), labels) * self._weights[self._step]

    @torch.no_grad()
    def validate(self) -> Validation:
        """Return the validation of the start of this epoch, on sampled neighbours.

        Puts the network into evaluation mode where it computes it.
        """
        if self._step == 0 and self.graph_info.num_val:
            self.module.eval()
            nodes, labels = (
                torch.split(tensor, self._size) for tensor in (self._val, self._val_labels)
            )
            scored = (
                (self._logits(some), known)
                for some, known in zip(nodes, labels, strict=True)
                if len(some)
            )
            with self.engine.count_as("metrics"):
                self._measured = count_validation(self.task, self.metric, scored)
        return self._measured

    def _logits(self, seeds: Tensor) -> Tensor:
        """Sample the neighbourhood of the seeds, fetch its rows, and run the network."""
        inputs, _, blocks = self._sampler.sample(self.engine.graph, seeds)
        rows = self.engine.rows("feat", inputs).to(self.context.features.dtype)
        degrees = {
            name: self.engine.rows(name, inputs).to(rows)
            for name in required_degrees(self.stages[0].conv)
        }
        rows = rows.to(self._val_labels.device)
        for stage, block in zip(self.stages, blocks, strict=True):
            own = rows.clone() if rows.requires_grad else rows  # prepare may overwrite it
            rows = stage.embed(
                stage.conv.prepare(
                    convert_block(block, degrees).to(rows.device), own, NO_PROJECTED_ROWS
                )
            )
        return rows


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
