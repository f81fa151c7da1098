"""TLS 1.3 between nodes, by their credentials: over the control links of the parents and the workers' streams."""

import socket
import ssl
import time

from retexo.comm.transport import PeerLost
from retexo.sites.credentials import Credentials


class Refused(ConnectionError):
    """The certificate of a peer is not that of the member that it has to be."""


class Tls:
    """Both kinds of connections."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._contexts = {
            accepted: credentials.context(accepted=accepted) for accepted in (False, True)
        }

    def over(self, connection: socket.socket, *, accepted: bool) -> ssl.SSLSocket:
        """TLS over a connection; the caller does the handshake, and then asks `node_of`."""
        return self._contexts[accepted].wrap_socket(
            connection, server_side=accepted, do_handshake_on_connect=False
        )

    def node_of(self, connection: ssl.SSLSocket) -> int:
        """The node that the peer's certificate stands for; Refused for a certificate of no member."""
        node = self._credentials.node_of(connection.getpeercert(binary_form=True))
        if node is None:
            raise Refused("its certificate is by the authority, but not in members.json")
        return node

    def check_node(self, connection: ssl.SSLSocket, node: int) -> None:
        """Refused unless the peer's certificate is that of this node."""
        found, members = self.node_of(connection), self._credentials.members
        if found != node:
            expected = f"{members[node].name}, node {node}"
            raise Refused(
                f"it has the certificate of {members[found].name}, node {found}, not of {expected}"
            )


def secure_stream(
    connection: socket.socket, tls: Tls, node: int, timeout: float, *, accepted: bool
) -> ssl.SSLSocket:
    """A worker's stream to a worker of another node, encrypted within `timeout` seconds; else PeerLost."""
    deadline = time.monotonic() + timeout
    stream = tls.over(connection, accepted=accepted)
    try:
        stream.settimeout(timeout)
        stream.do_handshake()
        tls.check_node(stream, node)
        # Each side hears that it was accepted, before anything of the run is sent.
        stream.settimeout(max(0.1, deadline - time.monotonic()))
        stream.sendall(b"\1")
        if stream.recv(1) != b"\1":
            raise Refused("it closed the connection")
    except OSError as error:
        stream.close()
        raise PeerLost(f"no TLS with a worker of node {node}: {error}") from error
    return stream
