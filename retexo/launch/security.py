"""How the connections of a node are encrypted and relayed."""

from pathlib import Path
from types import ModuleType

from partitioning.errors import InputError
from retexo.launch.hub import Hub
from retexo.launch.tls import Tls
from retexo.settings.cluster_settings import ClusterSettings


def make_security(cluster: ClusterSettings) -> tuple[Tls | None, Hub | None]:
    """Return what encrypts and what relays a node's connections, from its settings and credentials.

    Either is None where the settings ask for none; the credentials' files are read.

    Raises:
        InputError: the credentials cannot be used.
    """
    if not cluster.encrypted:
        return None, None
    tls: Tls = import_certificates().read_credentials(
        Path(str(cluster.distributed.credentials)), cluster.node_rank, cluster.num_nodes
    )
    if cluster.distributed.hub is None:
        return tls, None
    is_node_0 = len(tls.members) == cluster.num_nodes  # no hub is listed
    return tls, Hub(*cluster.distributed.hub_address, tls, 0 if is_node_0 else cluster.num_nodes)


def import_certificates() -> ModuleType:
    """Import what reads certificates; InputError if `cryptography` is not installed."""
    try:
        from retexo.launch import certificates
    except ImportError as error:
        raise InputError(
            "credentials and gradient.secure need cryptography: pip install -e '.[sites]' -c"
            " constraints.txt"
        ) from error
    return certificates
