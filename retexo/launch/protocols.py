"""What retexo.sites can add to a node's connections: TLS, and a hub behind firewalls.

Only interfaces; with `Security()` connections are direct and in the clear.
"""

import socket
import ssl
from dataclasses import dataclass
from typing import Any, Protocol

from retexo.comm.transport import StreamSecurity


class CertificateRefused(ConnectionError):
    """A peer's certificate is not the one that it should have."""


class Tls(Protocol):
    """TLS with certificates on both sides, one for each node."""

    def wrap(self, connection: socket.socket, *, accepted: bool) -> ssl.SSLSocket:
        """TLS over a connection, before its handshake.

        Args:
            accepted: whether the other end opened the connection.
        """
        ...

    def node_of(self, connection: ssl.SSLSocket) -> int:
        """The node that the peer's certificate belongs to, after the handshake.

        Raises CertificateRefused for a certificate of no member.
        """
        ...

    def check_node(self, connection: ssl.SSLSocket, node: int) -> None:
        """CertificateRefused unless the peer's certificate belongs to this node."""
        ...


class Listener(Protocol):
    """A listening socket, or a connection to a hub that announces who wants to connect."""

    def fileno(self) -> int: ...

    def setblocking(self, flag: bool, /) -> None: ...

    def accept(self) -> tuple[socket.socket, Any]: ...

    def close(self) -> None: ...


class Hub(Protocol):
    """A process that all nodes can reach, and that joins their connections."""

    @property
    def node(self) -> int:
        """The hub's number: 0 where node 0 is the hub, else the number of nodes."""
        ...

    def serve(self, listener: socket.socket) -> Listener:
        """Be the hub, in a thread; the connections to node 0."""
        ...

    def wait(self, timeout: float) -> Listener:
        """Wait at the hub for connections to this node; OSError where it is not reached."""
        ...

    def reach(self, node: int, timeout: float) -> socket.socket:
        """A connection to another node; OSError where that node does not wait at the hub."""
        ...


@dataclass(frozen=True)
class Security:
    """How a node's connections are encrypted and relayed."""

    tls: Tls | None = None
    """Encrypts the connections between parents."""
    streams: StreamSecurity | None = None
    """Encrypts the streams between workers."""
    hub: Hub | None = None
    """None: nodes connect directly."""
    versions: str = ""
    """Numbers of the signed lists of members and of revoked certificates."""
    members: str = ""
    """The nodes and their certificates."""
