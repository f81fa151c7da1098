"""Mini-batches of sampled neighbours, end to end, by DGL's own distributed engine on the same partition directory.

Hamilton, Ying and Leskovec, "Inductive Representation Learning on Large Graphs", NeurIPS 2017; Zheng et al., "DistDGL",
2020. Each worker starts the DGL server of its part. A round is a step on a batch of each worker, and an epoch a pass
over the training nodes, which `node_split` deals out evenly, so that some labels travel. num_rounds and
stopping.patience count epochs. Validation is on sampled neighbours, once an epoch; the test is on the whole graph, by
the exchange of the other trainers.

Of s sampled in-edges of a node with degree d, a mean is that of these; in a sum each stands for d / s, so that the sum
is unbiased. F features.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from partitioning.dgl_import import require_dgl
from partitioning.directory.dgl_files import config_file
from partitioning.directory.read import PartitionDirectory
from partitioning.errors import InputError
from partitioning.setting_fields import Checked, at_least, setting, settings_dataclass
from retexo.comm.traffic import SETUP, WHOLE_RUN
from retexo.config.schema import typed_options
from retexo.config.settings import TrainSettings
from retexo.distdgl.client import Engine
from retexo.exchange.plan import Use
from retexo.nn.block import Block
from retexo.nn.conv.sage import SAGEMean
from retexo.nn.convolution import Convolution
from retexo.nn.linear import NOT_PROJECTED
from retexo.nn.matrix import Matrix, as_matrix
from retexo.nn.stage import Stage
from retexo.trainers import checks, end_to_end
from retexo.trainers.context import Context, TrainResult
from retexo.training.loop import run_rounds

USE: Use = "evaluate"
OWN_MODEL = False
RESUMES = False
NAME = "trainer=sampled"


@settings_dataclass
class Options(Checked):
    """How many neighbours are sampled."""

    fanout: tuple[int, ...] = setting(
        "sampled.fanout", [15, 10],
        "in-edges sampled of each node, of each layer, the first one first; -1: all; the last entry goes on",
        at_least(-1),
    )  # fmt: skip


def check(settings: TrainSettings) -> None:
    typed_options("sampled", settings.trainer.options, Options)
    checks.refuse_rounding(settings)
    require_dgl(NAME)
    refused = {
        f"gradient={settings.gradient.mode}": (settings.gradient.mode != "sync", "steps together; set gradient=sync"),
        "gradient.secure=true": (settings.gradient.secure, "lets all workers read all rows and labels; leave it out"),
        "distributed.backend=sockets": (
            settings.cluster.encrypted,
            "DGL sends in the clear; use gloo, or distributed.tls=false, in a network that you trust",
        ),
    }
    for name, (wrong, why) in refused.items():
        if wrong:
            raise InputError(f"{name}: {NAME} {why}")


def check_directory(settings: TrainSettings, directory: PartitionDirectory) -> None:
    """InputError unless DGL's files of this node's parts are there, whole, and nobody's own."""
    if directory.sites:
        raise InputError(f"dataset_name=parts: {NAME} lets all workers read all rows and labels, which sites do not; "
                         "choose another trainer")  # fmt: skip
    if directory.of_pyg or config_file(directory.path) is None:
        raise InputError(f"{directory.path}: {NAME} needs DGL's files; partition again with partition.dgl_files=true")
    for part in settings.cluster.local_ranks if directory.meta is not None else ():
        path = directory.meta.first_damaged(directory.path, f"part{part}/", ".dgl") if directory.meta else None
        if path is not None:
            raise InputError(f"{path}: missing, or its checksum is not the one in meta.json; copy it again")


def train(context: Context, stages: list[Stage]) -> TrainResult:
    """Steps on batches to convergence, then the test on the whole graph."""
    info, settings, stopping = context.graph_info, context.settings, context.settings.stopping
    if info.weighted or info.num_edge_features:
        raise InputError(f"{NAME}: the edges have weights or features, which its samples do not read; choose another "
                         "trainer")  # fmt: skip
    with (
        context.phase("plan"),
        Engine(settings, context.directory, context.comm, context.clock.progress.fail) as engine,
    ):
        objective = BatchObjective(context, stages, engine)
        with context.phase("rounds"):
            steps = objective.steps
            patience = None if stopping.patience is None else stopping.patience * steps
            limits = tuple(count * steps for count in settings.num_rounds)
            in_steps = replace(settings, num_rounds=limits, stopping=replace(stopping, patience=patience))
            rounds = run_rounds(objective, in_steps, context.comm, context.log)
    for layer, stage in enumerate(stages):
        stage.eval()
        context.save_layer(layer, stage)
    scale = context.source_scale(stages[0].conv)
    features = end_to_end.exchange_rows(context, context.plan, 0, context.features, scale, "metrics")
    return TrainResult([rounds], [end_to_end.infer(context, stages, features)])


class BatchObjective:
    """A network on a batch of this worker's training nodes in each round, as retexo.training.objective.Objective."""

    layer, traffic_layer, exchanges_rows = 0, WHOLE_RUN, True

    def __init__(self, context: Context, stages: Sequence[Stage], engine: Engine) -> None:
        fanout = typed_options("sampled", context.settings.trainer.options, Options).fanout
        self.context, self.stages, self.engine = context, stages, engine
        self.module, self.task, self.graph_info = end_to_end.network_of(stages), context.task, context.graph_info
        dgl, graph = engine.dgl, engine.graph
        wanted = {"feat", "label", "train_mask", *_degrees(stages[0].conv)}
        if missing := wanted - graph.ndata.keys():
            raise InputError(f"{context.directory}: model={context.settings.model.name} with {NAME} reads "
                             f"{', '.join(sorted(missing))}, which DGL's files there do not have; partition again, or "
                             "choose model=sage")  # fmt: skip
        self._sampler = dgl.dataloading.NeighborSampler([*fanout, *fanout[-1:] * len(stages)][: len(stages)])
        book = graph.get_partition_book()
        self._nodes: Tensor = dgl.distributed.node_split(graph.ndata["train_mask"], book, force_even=True)
        self._val = context.graph_info.id_bounds[context.comm.rank] + context.partition.val_mask.nonzero()[:, 0]
        counts = context.comm.all_gather(torch.tensor([len(self._nodes)]), SETUP)[:, 0]
        self._size = context.settings.batch_size or int(counts.max())
        self.steps = max(1, -(-int(counts.max()) // self._size))
        """Rounds of an epoch."""
        left = counts[:, None] - self._size * torch.arange(self.steps)
        self._weight = context.graph_info.num_train / left.clamp(0, self._size).sum(dim=0).clamp(min=1)
        """[steps] A batch stands for all training nodes."""
        self._batch, self._step, self._counts = self._nodes[:0], 0, torch.zeros(3, dtype=torch.int64)

    @property
    def num_train(self) -> int:
        return len(self._nodes)

    def begin(self, number: int) -> None:
        self._step = number % self.steps
        if not self._step:
            self._nodes = self._nodes[torch.randperm(len(self._nodes))]
        self._batch = self._nodes[self._step * self._size :][: self._size]

    def first_inputs(self) -> tuple[Sequence[nn.Parameter], Iterable[Sequence[Matrix]]]:
        """A feature that no node has is in no sample."""
        weights = self.stages[0].first_weights
        return weights, [(as_matrix(self.context.features),) * len(weights)]

    def losses(self) -> Iterator[Tensor]:
        self.module.train()
        if len(self._batch):
            labels = self.engine.rows("label", self._batch).to(self.context.labels)
            yield self.task.loss_sum(self._logits(self._batch), labels) * self._weight[self._step]

    @torch.no_grad()
    def val_counts(self) -> Tensor:
        """Anew at the beginning of each epoch."""
        if not self._step and self.graph_info.num_val:
            self.module.eval()
            labels = self.context.labels[self.context.partition.val_mask.to(self.context.device)]
            self._counts = torch.zeros(3, dtype=torch.int64)
            with self.engine.counted_as("metrics"):
                for nodes, wanted in zip(
                    torch.split(self._val, self._size), torch.split(labels, self._size), strict=True
                ):
                    if len(nodes):
                        self._counts += self.task.counts(self._logits(nodes), wanted).sum(dim=1)
        return self._counts

    def _logits(self, seeds: Tensor) -> Tensor:
        inputs, _, blocks = self._sampler.sample(self.engine.graph, seeds)
        rows = self.engine.rows("feat", inputs).to(self.context.features.dtype)
        names = _degrees(self.stages[0].conv)
        degrees = {name: self.engine.rows(name, inputs).to(rows) for name in names}
        rows, device = rows.to(self.context.device), self.context.device
        for stage, block in zip(self.stages, blocks, strict=True):
            own = rows.clone() if rows.requires_grad else rows  # which is overwritten
            rows = stage.embed(stage.conv.prepare(_block_of(block, degrees).to(device), own, NOT_PROJECTED))
        return rows


def _degrees(conv: Convolution) -> list[str]:
    """Which degrees in the whole graph its sums read."""
    names = ["in_deg"] if conv.linear_aggregation and not isinstance(conv, SAGEMean) else []
    return [*names, "out_deg"] if conv.uses_out_degree else names


def _block_of(block: Any, degrees: dict[str, Tensor]) -> Block:
    """From DGL's; degrees: [n] of nodes that begin with the block's sources. Self loops are left out."""
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
