"""The settings of app=predict and app=report."""

from partitioning.setting_fields import Checked, at_least, one_of, setting, settings_dataclass


@settings_dataclass
class PredictSettings(Checked):
    """What app=predict writes."""

    format: str = setting(
        "predict.format",
        "parquet",
        "parquet needs the extra `tables`",
        one_of("parquet", "npy", "csv"),
        compared=False,
    )
    pairs: str | None = setting(
        "predict.pairs",
        None,
        "links: a npy or csv of pairs of ids, which are scored",
        per_node=True,
        compared=False,
    )
    top: int | None = setting(
        "predict.top",
        None,
        "links: so many most likely new partners of each node of predict.nodes",
        at_least(1),
        compared=False,
    )
    nodes: str | None = setting(
        "predict.nodes", None, "likewise: a npy or csv of ids", per_node=True, compared=False
    )
    embeddings: bool = setting(
        "predict.embeddings",
        False,
        "write the embeddings of the last hidden layer, too",
        compared=False,
    )


@settings_dataclass
class ReportSettings(Checked):
    """What app=report reads, and how a run is called in it."""

    runs: str | None = setting(
        "report.runs",
        None,
        "app=report: the folder below which runs are read; null: outputs and multirun",
        compared=False,
    )
    label: str | None = setting(
        "report.label", None, "app=train: what reports call the method, besides its model"
    )
