"""Settings of app=update, and of rebalancing an updated directory."""

from partitioning.setting_fields import (
    FINITE,
    Checked,
    at_least,
    setting,
    settings_dataclass,
    within,
)


@settings_dataclass
class UpdateSettings(Checked):
    """Changes of a partition directory (docs/updates.md)."""

    new_nodes: str | None = setting(
        "update.new_nodes",
        None,
        "table of new nodes",
        compared=False,
    )
    changed_nodes: str | None = setting(
        "update.changed_nodes",
        None,
        "table of changed nodes",
        compared=False,
    )
    deleted_nodes: str | None = setting(
        "update.deleted_nodes",
        None,
        "table of deleted nodes",
        compared=False,
    )
    new_edges: str | None = setting(
        "update.new_edges",
        None,
        "table of new edges",
        compared=False,
    )
    changed_edges: str | None = setting(
        "update.changed_edges",
        None,
        "table of changed edges",
        compared=False,
    )
    deleted_edges: str | None = setting(
        "update.deleted_edges",
        None,
        "table of deleted edges",
        compared=False,
    )
    max_imbalance: float = setting(
        "update.max_imbalance",
        0.05,
        "app=update, partition.from: share by which a partition may exceed the mean number of nodes"
        " of a type",
        at_least(0),
        FINITE,
        compared=False,
    )
    again: bool = setting(
        "update.again",
        False,
        "apply a change that was applied before",
        compared=False,
    )
    source: str | None = setting(
        "partition.source",
        None,
        "app=partition_data: partition directory to rebalance in place, moving few nodes",
        compared=False,
    )
    max_moved: float = setting(
        "partition.max_moved",
        0.05,
        "partition.source: share of the nodes that may move to cut fewer edges",
        within(0, 1),
        compared=False,
    )
