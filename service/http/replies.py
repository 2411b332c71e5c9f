"""Limits the long replies in progress, so that the sum of their memory is bounded.

A reply of lines or records is made in pieces, and holds two of them while its client does not
read: `PLACE_BYTES`. Only as many have a place as fit into `server.reply_bytes`. The next request
waits for its turn; after `_PATIENCE_SECONDS` without a place it gets 503. Replies that nobody
reads delay others only briefly: while a request waits, replies whose clients received next to
nothing for `_STILL_SECONDS` are cut off, the oldest first and only as many as wait.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from logstore.errors import Unavailable

PLACE_BYTES: Final = 1 << 20
CONNECTION: Final = "tailrace.connection"
"""Where a request's scope has its `Reader`, if there is one."""
_PATIENCE_SECONDS: Final = 10.0
_STILL_SECONDS: Final = 1.0
_LEAST_BYTES: Final = 4 << 10
# Of Linux's `struct tcp_info`, since 4.1.
_INFO_BYTES: Final = 128
_BYTES_ACKED: Final = struct.Struct("=Q")
_BYTES_ACKED_AT: Final = 120


class Reader(Protocol):
    """The connection that receives a reply."""

    @property
    def taken(self) -> int | None:
        """Bytes that its client has received so far; None: nothing waits to be read."""
        ...

    def cut_off(self) -> None:
        """Closes the connection now, and drops what was not read."""
        ...


class Replies:
    """Places for replies of `limit_bytes` in all, at least one."""

    def __init__(self, limit_bytes: int) -> None:
        self._places = asyncio.Semaphore(max(1, limit_bytes // PLACE_BYTES))
        self._readers: dict[Reader, int | None] = {}
        self._look: asyncio.TimerHandle | None = None
        self.waiting = 0

    @asynccontextmanager
    async def place(self, reader: Reader | None) -> AsyncIterator[None]:
        """A place while the block runs. Raises `Unavailable` if none becomes free in time."""
        await self._enter()
        try:
            if reader is not None:
                self._readers[reader] = None
            yield
        finally:
            if reader is not None:
                self._readers.pop(reader, None)
            self._places.release()

    def limited(self, app: ASGIApp) -> ASGIApp:
        """An app whose every reply has a place until it is sent."""

        async def placed(scope: Scope, receive: Receive, send: Send) -> None:
            async with self.place(scope.get(CONNECTION)):
                await app(scope, receive, send)

        return placed

    async def _enter(self) -> None:
        self.waiting += 1
        try:
            if self._places.locked() and self._look is None:
                self._mark()
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._places.acquire()
        except TimeoutError as error:
            raise Unavailable(
                "as many replies are being read as there is memory for",
                hint="Try again in a moment, or raise server.reply_bytes.",
            ) from error
        finally:
            self.waiting -= 1

    def _mark(self) -> None:
        for reader in self._readers:
            self._readers[reader] = reader.taken
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(_STILL_SECONDS, self._let_go)

    def _let_go(self) -> None:
        self._look = None
        if not self.waiting:
            return
        still = [r for r, before in self._readers.items() if _stands_still(before, r.taken)]
        for reader in still[: self.waiting]:
            reader.cut_off()
        self._mark()


def acknowledged(connection: socket.socket) -> int:
    """Bytes of a TCP connection that the other end has acknowledged.

    The size of the transport's buffer tells less: it changes only when a third of the kernel's
    buffer is free, which is many seconds of a slow line.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return int(_BYTES_ACKED.unpack_from(info, _BYTES_ACKED_AT)[0])


def _stands_still(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now - before < _LEAST_BYTES
