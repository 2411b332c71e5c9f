"""A real HTTP server that keeps what is posted to it, and may refuse some of it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Request(NamedTuple):
    """One that came: its headers in lower case, its body, unpacked, and the answer's status."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int


class Receiver:
    """Answers with the statuses that it is given, then with what `judge` says of a body."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.judge: Callable[[bytes], int] = lambda _: 200
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[Receiver]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                if receiver.answers:
                    status, more, answer = receiver.answers.pop(0)
                else:
                    status, more, answer = receiver.judge(body), {}, b"{}"
                receiver.requests.append(Request(self.path, headers, body, status))
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                with suppress(OSError):  # whoever asked was killed
                    self.end_headers()
                    self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
