"""Accepted connections that have not sent their first message yet.

Anybody can connect to a node's port. So each connection has a time limit, and their number is
limited in all and per address. Above a limit the oldest is closed; a node whose connection is
closed tries again.
"""

import logging
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import connection
from typing import Any, Protocol, TypeVar

from retexo.launch.control_channel import Channel, ChannelClosed, make_printable
from retexo.launch.tls import Tls

logger = logging.getLogger(__name__)

FIRST_MESSAGE_TIMEOUT = 5.0
"""Seconds within which a connection has to send its first message."""
MAX_CONNECTIONS = 64
MAX_CONNECTIONS_PER_ADDRESS = 16
MAX_ACCEPTED_AT_ONCE = 8
"""Less than the limits, so that a connection's first packet is read before it can be closed."""
MAX_WARNINGS = 20
"""Refused connections that are logged one by one."""

Other = TypeVar("Other", Channel, socket.socket)


class Listener(Protocol):
    """A listening socket, or a connection to a hub that announces who wants to connect."""

    def fileno(self) -> int: ...

    def setblocking(self, flag: bool, /) -> None: ...

    def accept(self) -> tuple[socket.socket, Any]: ...

    def close(self) -> None: ...


class AcceptedConnections:
    """The connections of a listener until their first message."""

    def __init__(self, listener: Listener, tls: Tls | None = None) -> None:
        listener.setblocking(False)
        self._listener, self._tls = listener, tls
        self._deadlines: dict[Channel, float] = {}
        """By channel, the oldest first."""
        self._num_rejected = 0

    def wait(
        self, timeout: float, others: Sequence[Other] = ()
    ) -> tuple[list[tuple[Channel, dict[str, Any]]], list[Other]]:
        """Wait until something is received, at most `timeout` seconds.

        Returns:
            The first messages with their channels, which the caller owns from then on; and those of
            `others` that can be read.
        """
        sources: list[Any] = [self._listener, *self._deadlines, *others]
        ready: list[Any] = connection.wait(sources, max(0.0, timeout))
        first = [
            found
            for source in ready
            if source in self._deadlines and (found := self._read(source)) is not None
        ]
        for channel in [
            channel for channel, deadline in self._deadlines.items() if deadline < time.monotonic()
        ]:
            self.reject(channel, "it sent nothing")
        if self._listener in ready:
            self._accept()
        return first, [source for source in ready if source in others]

    def answer(
        self,
        first: Iterable[tuple[Channel, dict[str, Any]]],
        handle: Callable[[Channel, dict[str, Any]], None],
    ) -> None:
        """Call handle(channel, message) for each first message.

        An error closes only its connection.
        """
        for channel, message in first:
            try:
                handle(channel, message)
            except ChannelClosed as error:
                self.reject(channel, str(error))
            except Exception as error:
                self._reject_for(error, channel)

    def reject(self, channel: Channel, why: str, reply: dict[str, Any] | None = None) -> None:
        """Log why, send the reply, by default {"refused": why}, and close the connection."""
        self._num_rejected += 1
        if self._num_rejected <= MAX_WARNINGS:
            last = "; further refusals are not logged" if self._num_rejected == MAX_WARNINGS else ""
            logger.warning(
                "refused a connection from %s: %s%s", channel.peer, make_printable(why), last
            )
        with suppress(ChannelClosed):
            channel.send({"refused": why} if reply is None else reply)
        self._forget(channel)

    def _reject_for(self, error: Exception, channel: Channel) -> None:
        """Close a connection whose message caused an unexpected error in this program."""
        logger.debug("unexpected error in a server loop", exc_info=error)
        why = f"it caused {type(error).__name__}: {error}"
        self.reject(channel, why, {"refused": "not a message of retexo"})

    def close(self) -> None:
        for channel in list(self._deadlines):
            self._forget(channel)

    def _read(self, channel: Channel) -> tuple[Channel, dict[str, Any]] | None:
        """Return a channel with its first message.

        Returns None if there is none yet, or the connection was rejected.
        """
        try:
            messages = channel.receive()
        except ChannelClosed as error:
            self.reject(channel, str(error))
            return None
        except Exception as error:
            self._reject_for(error, channel)
            return None
        if not messages:
            return None
        del self._deadlines[channel]
        channel.put_back(messages[1:])
        return channel, messages[0]

    def _accept(self) -> None:
        """Accept waiting connections; above a limit close the oldest for each."""
        with suppress(OSError):
            for _ in range(MAX_ACCEPTED_AT_ONCE):
                channel = Channel(self._listener.accept()[0], self._tls)
                same = [other for other in self._deadlines if other.peer == channel.peer]
                if len(same) >= MAX_CONNECTIONS_PER_ADDRESS:
                    self._forget(same[0])
                elif len(self._deadlines) >= MAX_CONNECTIONS:
                    self._forget(next(iter(self._deadlines)))
                self._deadlines[channel] = time.monotonic() + FIRST_MESSAGE_TIMEOUT

    def _forget(self, channel: Channel) -> None:
        """Close a connection and drop its time limit."""
        self._deadlines.pop(channel, None)
        channel.close()
