"""Limits of app=serve: connections, seconds until a request is complete, seconds of work."""

import asyncio
import ctypes
import logging
import threading
from collections.abc import Callable
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

logger = logging.getLogger(__name__)

SECONDS = 10.0
"""Within which a request is sent, and within which it is answered."""
MAX_CONNECTIONS = 500
"""Half of the files that a process may usually have open."""
MAX_BYTES = 1_000_000
"""Largest body of a request and most cells of its new nodes, which take ten times its memory."""
MAX_ITEMS = 1_000
"""Most ids, pairs, new nodes or new edges of a request, or links of /top (ids times k)."""


class TimedProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """HTTP connections with limits of their number and of the time for a header.

    A connection ends where no whole header arrives within `timeout` seconds, and where there are
    MAX_CONNECTIONS already.
    """

    timeout = SECONDS
    was_full = False
    """Whether the server's last new connection was one too many."""
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Close the connection if there are MAX_CONNECTIONS.

        Else wait for a request, for a limited time.
        """
        super().connection_made(transport)
        server, is_full = type(self), len(self.connections) > MAX_CONNECTIONS
        if is_full and not server.was_full:  # not a line for each
            logger.warning("new connections are closed: there are %d already", MAX_CONNECTIONS)
        server.was_full = is_full
        if is_full:
            transport.close()
        else:
            self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._waiting is not None:
            self._waiting.cancel()

    def _wait(self) -> None:
        """Close the connection unless its next header is complete in time."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(self.timeout, self._end_waiting, self.cycle)

    def _end_waiting(self, cycle: Any) -> None:
        if self.cycle is cycle and not self.transport.is_closing():
            self.transport.close()


class LateWork:
    """Work in a thread, which can be ended from another one."""

    def __init__(self, work: Callable[[], bytes]) -> None:
        self._work, self._lock = work, threading.Lock()
        self._thread: int | None = None
        self._ended = False

    def __call__(self) -> bytes:
        """Do the work and return its result.

        TimeoutError where `end` was called. Raises what it raises.
        """
        with self._lock:
            if self._ended:
                raise TimeoutError
            self._thread = threading.get_ident()
        try:
            return self._work()
        except StopIteration as error:  # a future cannot hold it, so nobody would get an answer
            raise RuntimeError("StopIteration") from error
        finally:
            with self._lock:
                _raise_in(self._thread, None)  # not in the next work of this thread
                self._thread = None

    def end(self) -> None:
        """Raise TimeoutError in the thread at its next step in Python."""
        with self._lock:
            self._ended = True
            if self._thread is not None:
                _raise_in(self._thread, TimeoutError)


def _raise_in(thread: int | None, error: type[BaseException] | None) -> None:
    """Raise an exception in another thread; None takes back one that was not raised yet."""
    if thread is not None:
        raised = None if error is None else ctypes.py_object(error)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


class BodyLimit:
    """ASGI middleware that refuses larger bodies with 413, and slow ones with 408.

    All others are read as JSON, whatever type they name: curl names a form's without being asked.
    """

    def __init__(self, app: ASGIApp, timeout: float, version: Callable[[], str]) -> None:
        self.app, self.timeout, self.version = app, timeout, version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = self._refuse(scope)
        body = b""
        if refused is None:
            try:
                async with asyncio.timeout(self.timeout):
                    body, refused = await self._read(receive)
            except TimeoutError:
                refused = self._error(408, f"the body took longer than {self.timeout:g} s")
        if refused is not None:
            await refused(scope, receive, send)
            return
        headers = [header for header in scope["headers"] if header[0] != b"content-type"]
        scope["headers"] = [*headers, (b"content-type", b"application/json")]  # the only type
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, send)

    def _refuse(self, scope: Scope) -> Response | None:
        """Return the response to a body whose announced length is too large; None to any other."""
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        is_large = lengths and lengths[0].isdigit() and int(lengths[0]) > MAX_BYTES
        return self._too_large() if is_large else None

    async def _read(self, receive: Receive) -> tuple[bytes, Response | None]:
        """Return the body, or b"" and the response to one that is too large."""
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > MAX_BYTES:
                return b"", self._too_large()
            if not message.get("more_body"):
                return bytes(body), None

    def _too_large(self) -> Response:
        return self._error(
            413, f"the body is larger than {MAX_BYTES:,} bytes; send several requests"
        )

    def _error(self, status: int, text: str) -> Response:
        content = {"error": text, "model": self.version()}
        return JSONResponse(content, status, headers={"connection": "close"})
