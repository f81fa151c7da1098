"""Links between nodes whose connection broke are taken up again, while the worker computes or waits.

A worker's parent opens and accepts the connections (retexo/launch/take_up.py), and hands them over by a pair of
sockets, the door. Both ends then show that they know the run, and say how many bytes they have.
"""

import hmac
import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from secrets import token_bytes

from retexo.comm.connections import Link
from retexo.comm.transport import PeerLost

logger = logging.getLogger(__name__)

DOOR = struct.Struct("<i?")
"""What goes through the door: a peer, from the worker to ask for a connection, and from the parent with one; and
whether this node opened it. Who did so speaks first, so that nothing comes before a worker has it."""
COUNT = struct.Struct("<Q")
NONCE_BYTES = 32
SILENT, RENEWED = "nothing came for a while", "the other end opened a new connection"
"""Why a connection was given up that may have been whole."""
Secure = Callable[[int, socket.socket, float, bool], socket.socket]
"""TLS over a new connection to a peer, within so many seconds, which the other one opened or not; by the same
certificate as before."""


class Repairs:
    """Of the links of a worker."""

    def __init__(
        self,
        rank: int,
        links: Mapping[int, Link],
        door: socket.socket,
        secret: str,
        timeout: float,
        secure: Secure,
    ) -> None:
        """secret: only nodes of this run know it. timeout: seconds that a link may be broken."""
        self._rank, self._links, self._door = rank, links, door
        self._secret, self._timeout, self._secure = secret.encode(), timeout, secure
        self._turns = {peer: threading.Lock() for peer in links}
        self._asked = dict.fromkeys(links, 0.0)
        self.bell, self._ring = socket.socketpair()
        """Can be read once a link was taken up."""
        self.closing = False
        """Others may close their ends, which are no breaks any more."""
        self._ended = False
        threading.Thread(target=self._keep, daemon=True).start()

    def check(self, waiting: Sequence[Link]) -> None:
        """Of links that are waited for, whether they can still be; PeerLost where one was broken for too long."""
        now = time.monotonic()
        for link in waiting:
            link.acknowledge()
            if link.broken_since is None and now - link.heard > self._timeout / 2:
                link.lose(SILENT)  # maybe cut, and nobody was told: a new connection shows it
                self.ask(link)
            elif link.broken_since is not None and now - link.broken_since > self._timeout:
                raise PeerLost(
                    f"rank {link.peer}: the connection broke ({link.why}), and was not taken up again within "
                    f"distributed.heartbeat_timeout={self._timeout:g} s"
                )

    def end(self) -> None:
        self._ended = True
        for each in (self._door, self._ring, self.bell):
            each.close()

    @property
    def interval(self) -> float:
        """Seconds between two looks at the links."""
        return self._timeout / 40

    def ask(self, link: Link) -> None:
        """Have the parent open a new connection, if it is this end's to do so; again in a while, if that failed."""
        now = time.monotonic()
        if self._turns[link.peer].locked() or now < self._asked[link.peer] + self.interval:
            return
        self._asked[link.peer] = now
        with suppress(OSError):
            self._door.send(DOOR.pack(link.peer, False), socket.MSG_DONTWAIT)

    def _keep(self) -> None:
        """Look for what the worker does not see while it computes."""
        hung_up: set[socket.socket] = set()
        while not self._ended:
            poll, at = select.poll(), {}
            with suppress(OSError, ValueError):  # descriptors are closed elsewhere
                poll.register(self._door, select.POLLIN)
                for link in self._links.values():
                    if link.broken_since is not None or link.stream in hung_up:
                        self.ask(link)
                    elif not self.closing:
                        at[link.descriptor] = link.stream
                        poll.register(link.descriptor, select.POLLRDHUP)
                ready = dict(poll.poll(1000 * self.interval))
                hung_up |= {at[descriptor] for descriptor in ready if descriptor in at}
                if self._door.fileno() in ready and not self._accept():
                    return

    def _accept(self) -> bool:
        """Whether the parent is still there."""
        content, descriptors, *_ = socket.recv_fds(self._door, DOOR.size, 1)
        for descriptor in descriptors:
            connection = socket.socket(fileno=descriptor)
            peer, opened = DOOR.unpack(content)
            threading.Thread(
                target=self._take_up, args=(self._links[peer], connection, opened), daemon=True
            ).start()
        return bool(content)

    def _take_up(self, link: Link, connection: socket.socket, opened: bool) -> None:
        """One connection after the other: the last one stays."""
        with self._turns[link.peer]:
            try:
                connection = self._secure(link.peer, connection, self._timeout / 2, not opened)
                connection.settimeout(self._timeout / 2)
                self._prove(link.peer, connection, opened)
                connection.sendall(COUNT.pack(link.lose(RENEWED)))
                again = link.take_up(connection, COUNT.unpack(_receive(connection, COUNT.size))[0])
            except (OSError, PeerLost) as error:
                connection.close()
                logger.warning(
                    "a connection in place of that to rank %d was not taken: %s", link.peer, error
                )
                return
        if again or link.why not in (SILENT, RENEWED):
            logger.warning(
                "the link to rank %d was taken up again (%s): %d bytes anew",
                link.peer,
                link.why,
                again,
            )
        with suppress(OSError):
            self._ring.send(b"\0", socket.MSG_DONTWAIT)

    def _prove(self, peer: int, connection: socket.socket, opened: bool) -> None:
        """Show that one is this rank of this run, and have the other end do so; ConnectionError where it does not.

        Both draw a number that is used once: what was sent another time proves nothing.
        """
        own, theirs = token_bytes(NONCE_BYTES), b"" if opened else _receive(connection, NONCE_BYTES)
        connection.sendall(own)
        theirs = theirs or _receive(connection, NONCE_BYTES)

        def proof(sender: int, receiver: int, fresh: bytes) -> bytes:
            return hmac.digest(self._secret, b"%d %d " % (sender, receiver) + fresh, "sha256")

        connection.sendall(proof(self._rank, peer, own + theirs))
        if not hmac.compare_digest(
            _receive(connection, NONCE_BYTES), proof(peer, self._rank, theirs + own)
        ):
            raise ConnectionError(f"it does not know this run, or is not rank {peer}")


def _receive(connection: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        piece = connection.recv(count - len(content))
        if not piece:
            raise ConnectionError("it closed the connection")
        content += piece
    return content
