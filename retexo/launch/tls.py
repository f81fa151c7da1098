"""TLS 1.3 between nodes, with certificates on both sides: parents' links and workers' streams."""

import socket
import ssl
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from partitioning.errors import require_packages
from retexo.comm.transport import PeerLost
from retexo.settings.cluster_settings import ClusterSettings


@dataclass(frozen=True)
class Tls:
    """TLS with the credentials of a node (launch/certificates.py, which has checked them)."""

    folder: Path
    members: tuple[str, ...]
    """Names of the sites, by node. The certificate of a site has its name."""
    lists: str
    """The members and the list of revoked certificates; equal at all nodes."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the contexts, which a worker makes anew."""
        return Tls, (self.folder, self.members, self.lists)

    @cached_property
    def _contexts(self) -> dict[bool, ssl.SSLContext]:
        """By whether the other end opened the connection."""
        return {accepted: self.make_context(accepted=accepted) for accepted in (False, True)}

    def make_context(self, *, accepted: bool) -> ssl.SSLContext:
        """Return a context for TLS 1.3; `node_of` then identifies the peer.

        Reads the credentials' files again, so that a new list of revoked certificates counts;
        OSError (SSLError) if they cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if accepted else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # node_of compares the name
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF | ssl.VERIFY_X509_STRICT
        context.load_cert_chain(self.folder / "certificate.pem", self.folder / "key.pem")
        for name in ("authority.pem", "revoked.pem"):
            context.load_verify_locations(self.folder / name)
        if accepted:
            context.num_tickets = 0  # no session resumption: each connection checks certificates
        return context

    def wrap(self, connection: socket.socket, *, accepted: bool) -> ssl.SSLSocket:
        """Return a TLS stream over a connection, before its handshake.

        accepted: whether the other end opened the connection.
        """
        return self._contexts[accepted].wrap_socket(
            connection, server_side=accepted, do_handshake_on_connect=False
        )

    def node_of(self, connection: ssl.SSLSocket) -> int:
        """Return the node that the peer's certificate names, after the handshake.

        Raises:
            SSLCertVerificationError: the certificate names no member, or several.
        """
        subject: Any = (connection.getpeercert() or {}).get("subjectAltName", ())
        names = [value for kind, value in subject if kind == "DNS"]
        nodes = [node for node, member in enumerate(self.members) if member in names]
        if len(nodes) != 1:
            raise ssl.SSLCertVerificationError(
                1,
                f"its certificate is signed, but {', '.join(names) or 'its site'} is not in"
                " members.json",
            )
        return nodes[0]

    def shake_hands(self, connection: ssl.SSLSocket, node: int, timeout: float) -> None:
        """Do the handshake within `timeout` seconds, which becomes the connection's timeout.

        Raises:
            SSLCertVerificationError: the certificate is not that of `node`.
            OSError: the handshake failed.
        """
        connection.settimeout(timeout)
        connection.do_handshake()
        actual = self.node_of(connection)
        if actual != node:
            raise ssl.SSLCertVerificationError(
                1,
                f"it has the certificate of {self.members[actual]}, node {actual}, not of"
                f" {self.members[node]}, node {node}",
            )

    def secure_stream(
        self, connection: socket.socket, node: int, timeout: float, accepted: bool
    ) -> ssl.SSLSocket:
        """Encrypt a worker's connection to a worker of another node (SecureStream).

        Args:
            connection: open, nothing sent so far; closed if this fails.
            node: the other worker's, which its certificate has to name.
            timeout: seconds.
            accepted: whether the other end opened the connection; this end is then the server.

        Raises:
            PeerLost: the handshake failed, or the certificate belongs to another node.
        """
        deadline = time.monotonic() + timeout
        stream = self.wrap(connection, accepted=accepted)
        try:
            self.shake_hands(stream, node, timeout)
            # Each side learns that it was accepted before anything of the run is sent.
            stream.settimeout(max(0.1, deadline - time.monotonic()))
            stream.sendall(b"\1")
            if stream.recv(1) != b"\1":
                raise ConnectionError("it closed the connection")
        except OSError as error:
            stream.close()
            raise PeerLost(f"no TLS with a worker of node {node}: {error}") from error
        return stream


def read_tls(cluster: ClusterSettings) -> Tls | None:
    """Return the TLS of this node's credentials; None if its connections are not encrypted.

    Raises:
        InputError: the credentials cannot be used, or `cryptography` is not installed.
    """
    if not cluster.encrypted:
        return None
    folder = Path(str(cluster.distributed.credentials))
    tls: Tls = import_certificates().read_credentials(folder, cluster.node_rank, cluster.num_nodes)
    return tls


def import_certificates() -> ModuleType:
    """Import retexo.launch.certificates; InputError if `cryptography` is not installed."""
    require_packages("distributed.credentials", "sites", "cryptography")
    from retexo.launch import certificates

    return certificates
