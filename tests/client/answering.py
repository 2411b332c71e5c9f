"""A server that answers with what a test gives it, or hangs, and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Given(NamedTuple):
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


def _reports_no_outcome(asked: Asked) -> bool:
    if "/pipelineStatus" not in asked.path:
        return False
    states = (b'"pipelineState": "running"', b'"pipelineState": null')
    return asked.method == "GET" or any(state in asked.body for state in states)


@contextmanager
def answering(answer: Callable[[Asked], Given]) -> Iterator[str]:
    """Its address. Reports without an outcome are taken, and not given to `answer`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, self.rfile.read(length))
            given = Given(200, {}) if _reports_no_outcome(asked) else answer(asked)
            self.send_response(given.status)
            for name, value in given.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(given.body)))
            self.end_headers()
            self.wfile.write(given.body)

        do_GET = do_POST = do_PUT = _answer  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
