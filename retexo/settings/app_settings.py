"""Settings of app=predict, export, serve, report, object stores, and what app=train shows."""

from typing import Any

from partitioning.setting_fields import (
    Check,
    Checked,
    at_least,
    at_most,
    group,
    one_of,
    setting,
)
from retexo.settings.communication_settings import AT_PREDICTION

APPS = (
    "train",
    "partition_data",
    "update",
    "describe",
    "plan",
    "evaluate",
    "predict",
    "export",
    "serve",
    "report",
    "hub",
)
DISTRIBUTED_APPS = ("train", "evaluate", "predict")
WITHOUT_DATA = ("update", "export", "report", "hub")
"""They read no data set, so dataset_name says nothing about them."""
NEED_A_MODEL = ("evaluate", "predict", "export", "serve")


@group("predict", compared=False)
class PredictSettings(Checked):
    """Output of app=predict."""

    format: str = setting("parquet", "file format of predictions", one_of("parquet", "npy", "csv"))
    precision: str = setting(
        "fp32",
        "boundary rows; trained: as in training; auto: with int8 in place of int4; rounded "
        "rows make predictions depend on the partitions",
        one_of(*AT_PREDICTION),
    )
    pairs: str | None = setting(None, "links: file of id pairs to score (npy, csv)", per_node=True)
    top: int | None = setting(
        None,
        "links: number of most likely new neighbours of each node in predict.nodes",
        at_least(1),
    )
    nodes: str | None = setting(
        None, "links: file of ids for predict.top (npy, csv)", per_node=True
    )
    known: str = setting(
        "all",
        "links: neighbours that predict.top leaves out; train: of training pairs only",
        one_of("all", "train"),
    )
    embeddings: bool = setting(False, "also write the embeddings of the last hidden layer")


@group("export")
class ExportSettings(Checked):
    """Output of app=export."""

    format: str = setting(
        "pt2",
        "a program of torch.export (pt2), or onnx, which onnxruntime checks",
        one_of("pt2", "onnx"),
        compared=False,
    )


@group("serve", compared=False)
class ServeSettings(Checked):
    """Service of app=serve."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0: a free one", at_least(0), at_most(65_535))


@group("report")
class ReportSettings(Checked):
    """Reports."""

    runs: str | None = setting(
        None,
        "folder to search for run directories; null: outputs and multirun",
        compared=False,
    )
    label: str | None = setting(None, "app=train: name of the method in reports, besides its model")


WRITABLE = Check(
    lambda value: value.startswith(("s3://", "gs://")),
    "expected a folder to write to, s3://BUCKET/PATH or gs://BUCKET/PATH",
)


@group("remote", compared=False, per_node=True)
class RemoteSettings(Checked):
    """Object stores."""

    upload: str | None = setting(
        None, "s3:// or gs:// folder to which node 0 copies a finished run", WRITABLE
    )


@group(compared=False, per_node=True)
class DisplaySettings(Checked):
    """Display of a run."""

    logger: Any = setting(
        None,
        "trackers, one or a list (docs/experiments.md)",
        one_of("csv", "tensorboard", "mlflow", "wandb"),
        list_of=str,
    )
    progress: str = setting(
        "auto",
        "auto: a bar on a terminal and in notebooks, lines elsewhere",
        one_of("auto", "bar", "lines", "none"),
    )
