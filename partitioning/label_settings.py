"""Settings of labels."""

from typing import Any

from partitioning.setting_fields import Check, Checked, group, one_of, setting


@group("labels", of_partitioner=True)
class LabelSettings(Checked):
    """Labels."""

    kind: str = setting(
        "auto",
        "auto: several per node for a matrix of 0 and 1; multilabel also splits cells such "
        "as Action|Comedy",
        one_of("auto", "multiclass", "multilabel"),
    )
    of: str = setting(
        "nodes",
        "what has the labels; set by task=edge_classification and edge_regression",
        one_of("nodes", "edges"),
        of_partitioner=True,
    )
    unknown: Any = setting(
        None,
        "what stands for no label besides blank cells and -1, such as [unknown,-100]",
        Check(lambda value: not isinstance(value, dict), "must be a value or a list of values"),
    )
