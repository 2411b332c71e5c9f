"""One client connection: requests one after another, each with its fault or without.

A request's body is read whole before anything is passed on: only then can it be cut in the
middle, sent twice, or answered without the server. Responses pass in pieces.

A client that went away does not take its request back: what stalls is passed on later all
the same, as a request that is in a server's queue would be.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from tests.faults.answers import refusal
from tests.faults.http1 import (
    BrokenMessage,
    Head,
    body_of,
    ends_with_connection,
    read_head,
    response_body,
)
from tests.faults.kinds import Kind
from tests.faults.requests import Request
from tests.faults.schedule import Schedule

_LEAVE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REFUSALS = frozenset({Kind.INTERNAL_ERROR, Kind.SLOW_DOWN, Kind.CONFLICT, Kind.ERROR_IN_200})
_GONE = (ConnectionError, BrokenMessage, OSError)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Exchange:
    """A client, and the one connection to the server that serves it."""

    def __init__(self, client: Streams, upstream: tuple[str, int], schedule: Schedule) -> None:
        self._reader, self._writer = client
        self._address = upstream
        self._schedule = schedule
        self._upstream: Streams | None = None

    async def run(self) -> None:
        """Until either side ends."""
        try:
            while (head := await read_head(self._reader)) is not None:
                request = Request.of(head)
                if not await self._one(request, self._schedule.next(request)) or head.closes:
                    break
        except _GONE:
            pass
        finally:
            self._leave_upstream()
            self._writer.close()

    async def _one(self, request: Request, kind: Kind | None) -> bool:
        """Whether the connection goes on."""
        if kind in _REFUSALS:
            return await self._refuse(request, kind)
        if kind is Kind.RESET:
            return self._reset()
        raw = request.head.raw + await self._body(request)
        if kind is Kind.DELAY:
            await asyncio.sleep(self._schedule.delay_seconds)
        elif kind is Kind.STALL:
            await asyncio.sleep(self._schedule.stall_seconds)
        elif kind is Kind.CUT_REQUEST:
            return await self._cut(request, raw)
        elif kind is Kind.RETRIED:
            await self._swallow(request, raw)
        elif kind in (Kind.DROPPED, Kind.ERROR_AFTER):
            await self._swallow(request, raw)
            if kind is Kind.DROPPED:
                return False
            return await self._send(refusal(kind, request, b""))
        return await self._relay(request, raw, cut=kind is Kind.CUT_RESPONSE)

    # -- what the client sees

    async def _refuse(self, request: Request, kind: Kind) -> bool:
        """An answer that the server never gave.

        A client that waits for leave to send its body gets the answer instead of the leave,
        and the connection ends.
        """
        if request.expects_leave:
            await self._send(refusal(kind, request, b"", closing=True))
            return False
        return await self._send(refusal(kind, request, await self._body(request)))

    def _reset(self) -> bool:
        connection: socket.socket = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        return False

    async def _send(self, data: bytes) -> bool:
        self._writer.write(data)
        await self._writer.drain()
        return True

    async def _body(self, request: Request) -> bytes:
        if request.expects_leave:
            await self._send(_LEAVE)
        return b"".join([piece async for piece in body_of(self._reader, request.head)])

    # -- what the server sees

    async def _cut(self, request: Request, raw: bytes) -> bool:
        """Half of the body arrives; of a request without one, half of the head."""
        _, upstream = await self._connected()
        size = len(request.head.raw)
        upstream.write(raw[: size // 2 if len(raw) == size else (size + len(raw)) // 2])
        await upstream.drain()
        self._leave_upstream()
        return self._reset()

    async def _swallow(self, request: Request, raw: bytes) -> None:
        """Has it done, and takes the whole answer: S3 copies and completes behind a 200."""
        head, reader = await self._answered(raw)
        async for _ in response_body(reader, head, method=request.method):
            pass
        self._after(head, request)

    async def _relay(self, request: Request, raw: bytes, *, cut: bool) -> bool:
        head, reader = await self._answered(raw)
        body = response_body(reader, head, method=request.method)
        if cut:
            first = await anext(body, b"")
            await self._send(head.raw + first[: len(first) // 2] if first else _half(head.raw))
            return False
        self._writer.write(head.raw)
        async for piece in body:
            await self._send(piece)
        await self._writer.drain()
        return self._after(head, request)

    async def _answered(self, raw: bytes) -> tuple[Head, asyncio.StreamReader]:
        reader, writer = await self._connected()
        writer.write(raw)
        await writer.drain()
        while (head := await read_head(reader)) is not None:
            if head.status() >= 200:
                return head, reader
        raise BrokenMessage("the server ended without an answer")

    def _after(self, head: Head, request: Request) -> bool:
        """Whether both connections go on behind a response."""
        if ends_with_connection(head, method=request.method):
            self._leave_upstream()
            return False
        return True

    async def _connected(self) -> Streams:
        if self._upstream is None or self._upstream[0].at_eof():
            self._leave_upstream()
            self._upstream = await asyncio.open_connection(*self._address)
        return self._upstream

    def _leave_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream[1].close()
            self._upstream = None


def _half(raw: bytes) -> bytes:
    return raw[: len(raw) // 2]
