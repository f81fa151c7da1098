"""Settings of app=update."""

from partitioning.setting_fields import (
    Checked,
    group,
    setting,
)


@group("update", compared=False)
class UpdateSettings(Checked):
    """Changes of a partition directory (docs/updates.md)."""

    new_nodes: str | None = setting(None, "table of new nodes")
    changed_nodes: str | None = setting(None, "table of changed nodes")
    deleted_nodes: str | None = setting(None, "table of deleted nodes")
    new_edges: str | None = setting(None, "table of new edges")
    changed_edges: str | None = setting(None, "table of changed edges")
    deleted_edges: str | None = setting(None, "table of deleted edges")
