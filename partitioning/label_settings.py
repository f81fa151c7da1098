"""Settings of labels."""

from typing import Any

from partitioning.setting_fields import Checked, group, one_of, setting


@group("labels", of_partitioner=True)
class LabelSettings(Checked):
    """Labels of nodes. `labels=KIND` is short for labels.kind=KIND."""

    kind: str = setting(
        "auto",
        "with dataset_name=file: one class per node or several; auto: several if the labels "
        "are a matrix of 0 and 1; multilabel also splits cells such as Action|Comedy",
        one_of("auto", "multiclass", "multilabel"),
    )
    of: str = setting(
        "nodes",
        "with dataset_name=file: what has the labels; task=edge_classification and edge_regression"
        " set edges (docs/edges.md)",
        one_of("nodes", "edges"),
        of_partitioner=True,
    )
    unknown: Any = setting(
        None,
        "with dataset_name=file: what stands for no label besides blank cells and -1, such as"
        " [unknown,-100]",
    )
