"""HTTP servers whose answers a test decides."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Reads whole requests, answers JSON and logs nothing."""

    def read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, value: Any, **how: Any) -> None:
        self.send(json.dumps(value).encode(), **how)

    def send(self, body: bytes, *, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


class Server(ThreadingHTTPServer):
    request_queue_size = 64  # with 5 a connection of many waits a second, all of a patience


@contextmanager
def running(server: HTTPServer) -> Iterator[None]:
    """The server answers in a thread until the end of the block."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def answering(handler: type[Handler]) -> Iterator[str]:
    """The URL of a server whose requests a handler answers."""
    server = Server(("127.0.0.1", 0), handler)
    with running(server):
        yield f"http://127.0.0.1:{server.server_port}"
