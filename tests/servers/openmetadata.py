"""A stand-in for an OpenMetadata server: it knows one token, and records what reaches it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

WHO = "/api/v1/users/loggedInUser"
TOKEN = "Bearer of-the-ingestion-bot"
MARK = "Stand-In"


@dataclass(frozen=True)
class Received:
    """A request; the path and the names of headers (in small letters) as they arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class StandIn(ThreadingHTTPServer):
    """Answers 200 and the header `MARK`; 401 at `WHO` without `TOKEN`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[Received] = []
        self.port = self.server_port

    def take(self) -> list[Received]:
        """What was received since the last call, without questions about the token."""
        taken, self.received = self.received, []
        return [request for request in taken if request.path != WHO]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        assert isinstance(self.server, StandIn)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        self.server.received.append(Received(self.command, self.path, headers, body))
        known = self.path != WHO or headers.get("authorization") == TOKEN
        self.send_response(200 if known else 401)
        self.send_header(MARK, "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """A running one."""
    with StandIn() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
