"""How the connections of a node are encrypted and relayed."""

from dataclasses import dataclass
from pathlib import Path

from retexo.comm.transport import SecureStream
from retexo.launch.certificates import read_credentials
from retexo.launch.hub import Hub
from retexo.launch.tls import StreamTls, Tls
from retexo.settings.cluster_settings import ClusterSettings


@dataclass(frozen=True)
class Security:
    """How a node's connections are encrypted and relayed; by default direct and in the clear."""

    tls: Tls | None = None
    """Encrypts the connections between parents."""
    streams: SecureStream | None = None
    """Encrypts the streams between workers."""
    hub: Hub | None = None
    """None: nodes connect directly."""
    versions: str = ""
    """Numbers of the signed lists of members and of revoked certificates."""
    members: str = ""
    """The nodes and their certificates."""


def make_security(cluster: ClusterSettings) -> Security:
    """Return how a node's connections are encrypted and relayed, from its settings and credentials.

    Raises:
        InputError: the credentials cannot be used.
    """
    if not cluster.encrypted:
        return Security()
    assert cluster.credentials is not None
    credentials = read_credentials(Path(cluster.credentials), cluster.node_rank, cluster.num_nodes)
    tls = Tls(credentials)
    hub = None
    if cluster.hub is not None:
        is_node_0 = len(credentials.members) == cluster.num_nodes  # no hub is listed
        hub = Hub(*cluster.hub_address, tls, 0 if is_node_0 else cluster.num_nodes)
    return Security(tls, StreamTls(credentials), hub, credentials.numbers, str(credentials.members))
