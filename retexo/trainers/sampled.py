"""End-to-end training on mini-batches of sampled neighbours, with DGL's distributed engine.

Hamilton, Ying and Leskovec, "Inductive Representation Learning on Large Graphs", NeurIPS 2017;
Zheng et al., "DistDGL", 2020. Each worker starts the DGL server of its partition. A round is a
step on one batch per worker, an epoch a pass over the training nodes. `node_split` distributes
these evenly, so some labels are sent. num_rounds and stopping.patience count epochs. Validation
uses sampled neighbours, once per epoch; the test uses the whole graph, as the other trainers do.

With s sampled of d in-edges, a mean is over the sample; in a sum each sampled edge has the
weight d / s, which makes the sum unbiased. F features.
"""

from dataclasses import replace

from partitioning.dgl_import import require_dgl
from partitioning.directory.dgl_config import config_file
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from retexo.models.stage import Stage
from retexo.rounds.training_loop import run_rounds
from retexo.settings.run_settings import TrainSettings
from retexo.trainers import end_to_end
from retexo.trainers.context import Context, TrainResult
from retexo.trainers.lazy import compute_logits
from retexo.trainers.trainer import Trainer, refuse_rounding

NAME = "trainer=sampled"


class SampledTrainer(Trainer):
    """Mini-batches of sampled neighbours."""

    TAKES = ("batch_size",)

    def check(self, settings: TrainSettings) -> None:
        """Raise InputError for settings that DGL's engine does not support."""
        refuse_rounding(settings)
        require_dgl(NAME)
        refused = {
            f"gradient={settings.gradient.mode}": (
                settings.gradient.mode != "sync",
                "supports synchronous steps only; set gradient=fp32",
            ),
            "gradient.secure=true": (
                settings.gradient.secure,
                "lets all workers read all rows and labels; remove the setting",
            ),
            "distributed.backend=sockets": (
                settings.encrypted,
                "sends unencrypted; use gloo, or distributed.tls=false, in a trusted network",
            ),
        }
        for name, (wrong, why) in refused.items():
            if wrong:
                raise InputError(f"{name}: {NAME} {why}")

    def check_directory(self, settings: TrainSettings, directory: PartitionDirectory) -> None:
        """Raise InputError unless DGL's files of this node's partitions exist and are undamaged.

        Sites cannot use this trainer, either.
        """
        if directory.sites:
            raise InputError(
                f"dataset_name=parts: {NAME} lets all workers read all rows and "
                "labels, which sites do not allow; choose another trainer"
            )
        if config_file(directory.dgl_folder) is None:
            raise InputError(
                f"{directory.path}: {NAME} needs DGL's files; "
                "partition again with partition.dgl_files=true"
            )
        begin = tuple(f"part{part}/" for part in settings.local_ranks)
        path = directory.meta and directory.meta.first_damaged(directory.path, begin, ".dgl")
        if path is not None:
            raise InputError(
                f"{path}: missing, or its checksum is not the one in meta.json; copy it again"
            )

    def train(self, context: Context, stages: list[Stage]) -> TrainResult:
        """Train on batches until convergence, then test on the whole graph.

        Starts DGL's servers and trainers, and saves the layers. InputError for edge weights or
        features.
        """
        info, settings, stopping = context.graph_info, context.settings, context.settings.stopping
        if info.weighted or info.num_edge_features:
            raise InputError(
                f"{NAME}: does not support edge weights or edge features; choose another trainer"
            )
        # imported here, because only this trainer needs DGL
        from retexo.trainers.sampled_dgl.client import BatchObjective, Engine

        options, fail = (
            settings.sampled,
            context.clock.progress.fail,
        )
        with (
            context.phase("plan"),
            Engine(settings, context.directory, context.comm, fail) as engine,
        ):
            fanout = [*options.fanout, *options.fanout[-1:] * len(stages)][: len(stages)]
            objective = BatchObjective(context, stages, engine, fanout)
            with context.phase("rounds"):
                steps = objective.steps
                patience = None if stopping.patience is None else stopping.patience * steps
                limits = tuple(count * steps for count in settings.num_rounds)
                in_steps = replace(
                    settings, num_rounds=limits, stopping=replace(stopping, patience=patience)
                )
                rounds = run_rounds(objective, in_steps, context.comm, context.log).num_rounds
        for layer, stage in enumerate(stages):
            stage.eval()
            context.save_layer(layer, stage)
        features = end_to_end.exchange_features(context, stages, kind="metrics")
        return TrainResult([rounds], [compute_logits(context, stages, features)], engine.memory)
