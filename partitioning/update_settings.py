"""Settings of app=update."""

from partitioning.setting_fields import (
    Checked,
    group,
    setting,
)


@group("update")
class UpdateSettings(Checked):
    """Changes of a partition directory (docs/updates.md)."""

    new_nodes: str | None = setting(
        None,
        "table of new nodes",
        compared=False,
    )
    changed_nodes: str | None = setting(
        None,
        "table of changed nodes",
        compared=False,
    )
    deleted_nodes: str | None = setting(
        None,
        "table of deleted nodes",
        compared=False,
    )
    new_edges: str | None = setting(
        None,
        "table of new edges",
        compared=False,
    )
    changed_edges: str | None = setting(
        None,
        "table of changed edges",
        compared=False,
    )
    deleted_edges: str | None = setting(
        None,
        "table of deleted edges",
        compared=False,
    )
    again: bool = setting(
        False,
        "apply a change that was applied before",
        compared=False,
    )
