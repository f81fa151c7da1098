"""TLS 1.3 between nodes, with their credentials: parents' links and workers' streams."""

import socket
import ssl
import time
from dataclasses import dataclass

from retexo.comm.transport import PeerLost
from retexo.launch.certificates import Credentials


class CertificateRefused(ConnectionError):
    """A peer's certificate is not the one that it should have."""


class Tls:
    """TLS with certificates on both sides, with the credentials of a node."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._contexts = {
            accepted: credentials.context(accepted=accepted) for accepted in (False, True)
        }

    def wrap(self, connection: socket.socket, *, accepted: bool) -> ssl.SSLSocket:
        """Return a TLS stream over a connection, before its handshake.

        accepted: whether the other end opened the connection.
        """
        return self._contexts[accepted].wrap_socket(
            connection, server_side=accepted, do_handshake_on_connect=False
        )

    def node_of(self, connection: ssl.SSLSocket) -> int:
        """Return the node that the peer's certificate belongs to, after the handshake.

        Raises:
            CertificateRefused: the certificate is no member's.
        """
        node = self._credentials.node_of(connection.getpeercert(binary_form=True))
        if node is None:
            raise CertificateRefused("its certificate is signed, but not in members.json")
        return node

    def check_node(self, connection: ssl.SSLSocket, node: int) -> None:
        """Raise CertificateRefused unless the peer's certificate belongs to `node`."""
        found, members = self.node_of(connection), self._credentials.members
        if found != node:
            expected = f"{members[node].name}, node {node}"
            raise CertificateRefused(
                f"it has the certificate of {members[found].name}, node {found}, not of {expected}"
            )


@dataclass(frozen=True)
class StreamTls:
    """Encrypts streams between workers with the credentials of a node (SecureStream)."""

    credentials: Credentials

    def __call__(
        self, stream: socket.socket, node: int, timeout: float, accepted: bool
    ) -> ssl.SSLSocket:
        """Encrypt a stream to a worker of `node`, see secure_stream."""
        return secure_stream(stream, Tls(self.credentials), node, timeout, accepted=accepted)


def secure_stream(
    connection: socket.socket, tls: Tls, node: int, timeout: float, *, accepted: bool
) -> ssl.SSLSocket:
    """Encrypt a worker's connection to a worker of another node, within `timeout` seconds.

    Args:
        connection: open, nothing sent so far; closed if this fails.
        tls: with the credentials of this node.
        node: the other worker's, which its certificate has to belong to.
        timeout: seconds.
        accepted: whether the other end opened the connection; this end is then the server.

    Raises:
        PeerLost: the handshake failed, or the certificate belongs to another node.
    """
    deadline = time.monotonic() + timeout
    stream = tls.wrap(connection, accepted=accepted)
    try:
        stream.settimeout(timeout)
        stream.do_handshake()
        tls.check_node(stream, node)
        # Each side learns that it was accepted before anything of the run is sent.
        stream.settimeout(max(0.1, deadline - time.monotonic()))
        stream.sendall(b"\1")
        if stream.recv(1) != b"\1":
            raise CertificateRefused("it closed the connection")
    except OSError as error:
        stream.close()
        raise PeerLost(f"no TLS with a worker of node {node}: {error}") from error
    return stream
