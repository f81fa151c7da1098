"""The settings of app=predict and app=report, and of what app=train shows."""

from partitioning.setting_fields import Checked, at_least, one_of, setting, settings_dataclass
from retexo.settings.communication_settings import AT_PREDICTION


@settings_dataclass
class PredictSettings(Checked):
    """Output of app=predict."""

    format: str = setting(
        "predict.format",
        "parquet",
        "file format of predictions",
        one_of("parquet", "npy", "csv"),
        compared=False,
    )
    precision: str = setting(
        "predict.precision",
        "auto",
        "precision of boundary rows at prediction; trained: exchange.precision of the run; "
        "auto: the same, with int8 in place of int4",
        one_of(*AT_PREDICTION),
        compared=False,
    )
    pairs: str | None = setting(
        "predict.pairs",
        None,
        "link prediction: file of id pairs to score (npy, csv)",
        per_node=True,
        compared=False,
    )
    top: int | None = setting(
        "predict.top",
        None,
        "link prediction: number of most likely new neighbours of each node in predict.nodes",
        at_least(1),
        compared=False,
    )
    nodes: str | None = setting(
        "predict.nodes",
        None,
        "link prediction: file of ids for predict.top (npy, csv)",
        per_node=True,
        compared=False,
    )
    embeddings: bool = setting(
        "predict.embeddings",
        False,
        "also write the embeddings of the last hidden layer",
        compared=False,
    )


@settings_dataclass
class ReportSettings(Checked):
    """Input of app=report, and names of methods in it."""

    runs: str | None = setting(
        "report.runs",
        None,
        "app=report: folder to search for run directories; null: outputs and multirun",
        compared=False,
    )
    label: str | None = setting(
        "report.label", None, "app=train: name of the method in reports, besides its model"
    )


@settings_dataclass
class DisplaySettings(Checked):
    """Where the metrics of a run go while it runs."""

    logger: tuple[str, ...] | None = setting(
        "logger",
        None,
        "trackers that get the metrics of a run besides metrics.jsonl, one or a list; mlflow and "
        "wandb read their own environment variables (docs/experiments.md)",
        one_of("csv", "tensorboard", "mlflow", "wandb"),
        per_node=True,
        compared=False,
    )
    progress: str = setting(
        "progress",
        "auto",
        "how rounds are shown: a bar, lines, or none of them; auto: a bar on a terminal and in "
        "notebooks, lines elsewhere",
        one_of("auto", "bar", "lines", "none"),
        per_node=True,
        compared=False,
    )
