"""Sends hostile requests over many connections at once, and judges the replies."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from typing import Final

from service.doors.routes import OPERATIONS
from tests.fuzz.hostile import Hostile, Shot

REPLY_SECONDS: Final = 60.0
_UNREAD_SECONDS: Final = 0.2
_STATUS: Final = re.compile(rb"HTTP/1\.1 ([0-9]{3})")
_DRIP_SECONDS: Final = 0.02
AWAY: Final = frozenset(
    {"node-not-ready", "unavailable", "store-unavailable", "outcome-unknown", "journal-full"}
)
"""Of the problems with 5xx, those that are no defect."""


class Attack:
    """Shots of `hostile` from `threads` senders, and `slow` connections that send byte by byte."""

    def __init__(
        self, port: int, hostile: Hostile, *, seconds: float, threads: int, slow: int
    ) -> None:
        self._port = port
        self._hostile = hostile
        self._lock = threading.Lock()
        self._until = time.monotonic() + seconds
        self._threads = [threading.Thread(target=self._send) for _ in range(threads)]
        self._threads.append(threading.Thread(target=lambda: self._drip(slow)))
        self.shots = 0
        self.statuses: Counter[int] = Counter()
        self.defects: list[str] = []

    def run(self) -> None:
        """Returns when the time is over and all replies are there."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        while time.monotonic() < self._until:
            with self._lock:
                shot = self._hostile.shot()
                self.shots += 1
            try:
                found = fire(self._port, shot)
            except TimeoutError:
                self.defects.append(f"{shot.name}: no reply in {REPLY_SECONDS:g} s")
                continue
            for status, body in found:
                self.statuses[status] += 1
                # Doors say it in the shapes of their protocols, and a reply to HEAD has no body.
                bare = shot.is_head or any(f" {path} " in shot.name for path in OPERATIONS)
                away = (bare and status == 503) or _kind(body) in AWAY
                if status >= 500 and not away:
                    self.defects.append(f"{shot.name}: {status} {_kind(body)}: {body[:500]!r}")

    def _drip(self, count: int) -> None:
        with ExitStack() as stack:
            sending = [
                (stack.enter_context(_connected(self._port)), memoryview(self._hostile.drip()))
                for _ in range(count)
            ]
            at = 0
            while time.monotonic() < self._until:
                for connection, data in sending:
                    with suppress(OSError):
                        connection.send(data[at : at + 1])
                at += 1
                time.sleep(_DRIP_SECONDS)


def fire(port: int, shot: Shot) -> list[tuple[int, bytes]]:
    """The status and the body of each reply, as far as they came.

    Raises `TimeoutError` if nothing comes and the connection stays.
    """
    received = bytearray()
    replies: list[tuple[int, bytes]] = []
    with _connected(port) as connection:
        sending = threading.Thread(target=_sent, args=(connection, shot))
        sending.start()
        try:
            if shot.cut or shot.unread:
                sending.join()
                if shot.cut:
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_WR)
                else:
                    connection.settimeout(_UNREAD_SECONDS)
            while len(replies) < shot.replies:
                piece = connection.recv(1 << 18)
                if not piece:
                    break
                received += piece
                replies += _taken(received, bare=shot.is_head)
        except TimeoutError:
            if not shot.unread:
                raise
        except OSError:  # it was reset: after a refusal nothing more is read
            pass
        finally:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            sending.join()
    if begun := _STATUS.match(received):  # a reply that was not read to its end
        replies.append((int(begun[1]), bytes(received)))
    return replies


def _sent(connection: socket.socket, shot: Shot) -> None:
    with suppress(OSError):  # it was refused before its end
        for piece in shot.pieces:
            connection.sendall(piece)


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=REPLY_SECONDS)


def _taken(received: bytearray, *, bare: bool) -> list[tuple[int, bytes]]:
    """The whole replies at the beginning, which are taken out."""
    found = []
    while (reply := _first(received, bare=bare)) is not None:
        status, begin, end, after = reply
        if status != 100:
            found.append((status, bytes(received[begin:end])))
        del received[:after]
    return found


def _first(received: bytearray, *, bare: bool) -> tuple[int, int, int, int] | None:
    """Status, begin and end of the body, and the end of the first reply; None: not there yet."""
    head, sign, _ = bytes(received[: 1 << 16]).partition(b"\r\n\r\n")
    if not sign:
        return None
    status, begin = int(head[9:12]), len(head) + 4
    headers = dict(
        line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
    )
    if status in (100, 204, 304) or bare:
        return status, begin, begin, begin
    if b"content-length" in headers:
        end = begin + int(headers[b"content-length"])
        return (status, begin, end, end) if len(received) >= end else None
    end = received.find(b"0\r\n\r\n", begin)
    return None if end < 0 else (status, begin, end, end + 5)


def _kind(body: bytes) -> str:
    try:
        return str(json.loads(body)["type"])
    except (ValueError, KeyError, TypeError):
        return "no problem document"
