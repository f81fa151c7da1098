"""An HTTP server on loopback that can break off, refuse, and continue a file; a proxy that cuts."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """What the server has, how it misbehaves, and what was asked of it."""

    files: dict[str, bytes]
    """By path, with its slash."""
    breaks: list[int] = field(default_factory=list)
    """One entry for each of the next answers: so many bytes, then the connection ends."""
    statuses: list[int] = field(default_factory=list)
    """One entry for each of the next answers, which have no content."""
    version: str = '"1"'
    """The ETag; empty: none, and no answer continues a file."""
    announce: bool = True
    piece_seconds: float = 0.0
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and Range of each request."""
    url: str = ""


@contextlib.contextmanager
def serve(files: dict[str, bytes]) -> Iterator[Served]:
    """Serve files by path until the end of the block."""
    served = Served(files)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            content = served.files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.send_header("ETag", served.version)
            self.end_headers()

        def do_GET(self) -> None:
            byte_range = self.headers.get("Range", "")
            served.asked.append((self.path, byte_range))
            content = served.files.get(self.path)
            status = (
                served.statuses.pop(0) if served.statuses else 200 if content is not None else 404
            )
            if status != 200 or content is None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            begin = 0
            if byte_range and self.headers.get("If-Range") == served.version:
                begin = int(byte_range.removeprefix("bytes=").rstrip("-"))
                self.send_response(206)
                self.send_header(
                    "Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}"
                )
            else:
                self.send_response(200)
            if served.version:
                self.send_header("ETag", served.version)
            if served.announce:
                self.send_header("Content-Length", str(len(content) - begin))
            self.end_headers()
            end = served.breaks.pop(0) if served.breaks else len(content)
            self._send(content[begin : begin + end])
            self.close_connection = True

        def _send(self, content: bytes) -> None:
            if not served.piece_seconds:
                self.wfile.write(content)
                return
            for byte in content:
                with contextlib.suppress(OSError):
                    self.wfile.write(bytes([byte]))
                time.sleep(served.piece_seconds)

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class Proxy:
    """Passes connections on to a server; each ends after so many bytes of one direction."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.cuts: list[int] = []
        """For the next answers longer than that: where the connection ends."""
        self.cuts_of_requests: list[int] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self.listener.accept()[0]
                server = self._dial()
                for pair, cuts in (
                    ((client, server), self.cuts_of_requests),
                    ((server, client), self.cuts),
                ):
                    threading.Thread(target=self._pump, args=(*pair, cuts), daemon=True).start()

    def _dial(self) -> socket.socket:
        """Connect to the server, for which a client may be too early."""
        deadline = time.monotonic() + 10
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.target))
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _pump(self, source: socket.socket, sink: socket.socket, cuts: list[int]) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while piece := source.recv(4096):
                passed += len(piece)
                if cuts and passed > cuts[0]:
                    cuts.pop(0)
                    break
                sink.sendall(piece)
        for stream in (source, sink):
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)
