"""Connections between nodes that broke are opened again for as long as the run lasts (distributed.backend=sockets).

Of two nodes the one that opened a connection does so again: for its own link to the other node, and for the streams of
its workers, who ask by their doors (retexo.comm.repair).
"""

import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from retexo.comm.repair import DOOR
from retexo.errors import TrainingError
from retexo.launch.accepted_connections import HubLost, Listener, PendingConnections
from retexo.launch.control_channel import Channel, Disconnected
from retexo.sites.hub import HubListener
from retexo.sites.tls import Tls

logger = logging.getLogger(__name__)

Key = tuple[int, ...]
"""A connection between two nodes: the number of the one that opens it; of a stream, the ranks of its ends, too."""


class Reopening:
    """Of a node; in a thread, until `end`."""

    def __init__(
        self,
        listener: Listener,
        tls: Tls | None,
        dial: Callable[[int, Key], Channel],
        key_of: Callable[[Mapping[str, Any]], Key],
        keys_of: Callable[[int], set[Key]],
        own: int,
        node_of: Callable[[int], int],
    ) -> None:
        """dial: opens a connection to a node. key_of: which one comes in, () for none of this run.

        keys_of: those with a node. node_of: the node of a rank.
        """
        self._listener, self._keys_of = listener, keys_of
        self._pending = PendingConnections(listener, tls)
        self._dial, self._key_of, self._own, self._node_of = dial, key_of, own, node_of
        self._doors: dict[socket.socket, int] = {}
        """Of the workers, by rank."""
        self.links: SimpleQueue[tuple[int, Channel]] = SimpleQueue()
        """New ones to other nodes."""
        self.bell, self._ring = socket.socketpair()
        """Can be read when there are such."""
        self._dialling: set[tuple[int, Key]] = set()
        self._used: set[str] = set()
        """What was drawn for the connections that were taken."""
        self._ended = False
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self, doors: Mapping[int, socket.socket]) -> None:
        self._doors = {door: rank for rank, door in doors.items()}
        self._thread.start()

    def end(self) -> None:
        self._ended = True
        if self._thread.is_alive():
            self._thread.join()

    def ask(self, node: int, *ranks: int) -> None:
        """Open the link to a node anew, or the stream of these two ranks, if it is this node's to do so."""
        for key in self._keys_of(node):
            if key[0] == self._own and {*key[1:]} == {*ranks} and (node, key) not in self._dialling:
                self._dialling.add((node, key))
                threading.Thread(target=self._open, args=(node, key), daemon=True).start()

    def _open(self, node: int, key: Key) -> None:
        try:
            self._arrived(node, key, self._dial(node, key))
        except (OSError, TrainingError) as error:
            logger.info("node %d was not reached again: %s", node, error)
        finally:
            self._dialling.discard((node, key))

    def _arrived(self, node: int, key: Key, channel: Channel) -> None:
        if len(key) == 1:
            self.links.put((node, channel))
            self._ring.send(b"\0")
            return
        for door, rank in list(self._doors.items()):  # another thread may drop one
            if rank in key[1:]:
                (peer,) = {*key[1:]} - {rank}
                stream = channel.detach()
                with suppress(OSError):  # this worker has ended
                    socket.send_fds(door, [DOOR.pack(peer, key[0] == self._own)], [stream.fileno()])
                stream.close()

    def _serve(self) -> None:
        while not self._ended:
            try:
                first, ready = self._pending.wait(0.2, list(self._doors))
            except HubLost:
                assert isinstance(self._listener, HubListener)
                with suppress(OSError):
                    self._listener.renew()
                continue
            self._pending.answer(first, self._admit)
            for door in ready:
                request = b""
                with suppress(OSError):  # this worker has ended
                    request = door.recv(DOOR.size)
                if request:
                    peer, _ = DOOR.unpack(request)
                    self.ask(self._node_of(peer), self._doors[door], peer)
                else:
                    del self._doors[door]
        self._pending.close()

    def _admit(self, channel: Channel, message: Mapping[str, Any]) -> None:
        key, fresh = self._key_of(message), str(message.get("fresh", ""))
        known = bool(key) and key[0] != self._own and (len(key) == 3 or channel.speaks_for(key[0]))
        if not known or not fresh or fresh in self._used:
            self._pending.reject(channel, "not a node of this run, or what one has said before")
            return
        self._used.add(fresh)
        channel.send({"again": True})
        self._arrived(key[0], key, channel)


def dialled(channel: Channel, hello: Mapping[str, Any], timeout: float) -> Channel:
    """A connection whose other end has taken it for what `hello` says; Disconnected where it has not."""
    channel.send(dict(hello))
    if "again" not in channel.receive_one(timeout):
        channel.close()
        raise Disconnected("it was turned away")
    return channel
