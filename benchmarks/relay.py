"""Passes bytes between a client and a service on, and notes when stamped lines are answered.

`stamp` makes a text to write into a line. When the service sends something behind a request that
had stamps in it, each of them has waited since it was made.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from contextlib import suppress
from typing import Self

_STAMP = re.compile(rb"stamp=(\d+\.\d{6})")
_TAIL = 40  # a stamp may be split between two pieces


class Relay:
    """A port before the service's, until the end of the block."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.seconds: list[float] = []
        """How long each stamped line waited for its answer."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def stamp(self) -> str:
        """A text that says when it was made."""
        return f"stamp={time.monotonic():.6f}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            service = socket.create_connection(("127.0.0.1", self._port))
            waiting: list[float] = []
            for pair in ((client, service), (service, client)):
                for one in pair:
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(
                target=self._requests, args=(client, service, waiting), daemon=True
            ).start()
            threading.Thread(
                target=self._answers, args=(service, client, waiting), daemon=True
            ).start()

    def _requests(
        self, client: socket.socket, service: socket.socket, waiting: list[float]
    ) -> None:
        tail = b""
        with suppress(OSError):
            while piece := client.recv(1 << 18):
                seen = tail + piece
                waiting += [float(found[1]) for found in _STAMP.finditer(seen)]
                last = max((found.end() for found in _STAMP.finditer(seen)), default=0)
                tail = seen[max(last, len(seen) - _TAIL) :]
                service.sendall(piece)
        with suppress(OSError):
            service.shutdown(socket.SHUT_WR)

    def _answers(self, service: socket.socket, client: socket.socket, waiting: list[float]) -> None:
        with suppress(OSError):
            while piece := service.recv(1 << 18):
                now = time.monotonic()
                while waiting:
                    self.seconds.append(now - waiting.pop())
                client.sendall(piece)
        with suppress(OSError):
            client.shutdown(socket.SHUT_WR)
