"""HTTP/1.1 messages as raw bytes: where a head ends, and how long a body is.

    start line CRLF (name ":" value CRLF)* CRLF body

A body is as long as `Content-Length` says, or ends with its last chunk, or (a response
only) with the connection. Bytes are never changed; chunked bodies keep their chunk marks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

PIECE_BYTES = 1 << 16
_NO_BODY = frozenset({204, 304})


class BrokenMessage(Exception):
    """The peer ended, or sent what is no HTTP/1.1."""


@dataclass(frozen=True)
class Head:
    """A message's bytes up to its empty line, and its headers under lower-case names."""

    raw: bytes
    start: str
    headers: tuple[tuple[str, str], ...]

    def value(self, name: str) -> str | None:
        """Of the first header with this lower-case name."""
        return next((value for known, value in self.headers if known == name), None)

    def request_line(self) -> tuple[str, str]:
        """Method and target."""
        parts = self.start.split(" ")
        if len(parts) != 3:
            raise BrokenMessage(self.start)
        return parts[0], parts[1]

    def status(self) -> int:
        """Of a response."""
        parts = self.start.split(" ", 2)
        if len(parts) < 2 or not parts[1].isdigit():
            raise BrokenMessage(self.start)
        return int(parts[1])

    @property
    def closes(self) -> bool:
        """Whether the sender ends the connection behind this message."""
        return (self.value("connection") or "").lower() == "close"


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next head, None if the peer ended before it. Raises `BrokenMessage`."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise BrokenMessage("it ended within a head") from error
    except asyncio.LimitOverrunError as error:
        raise BrokenMessage("a head without end") from error
    start, *lines = raw[:-4].decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Head(raw, start, tuple((name.lower(), value.strip()) for name, _, value in pairs))


async def body_of(reader: asyncio.StreamReader, head: Head) -> AsyncIterator[bytes]:
    """The raw body behind a request's head, in pieces. Raises `BrokenMessage`."""
    if _chunked(head):
        async for piece in _chunks(reader):
            yield piece
    else:
        async for piece in _exactly(reader, int(head.value("content-length") or 0)):
            yield piece


async def response_body(
    reader: asyncio.StreamReader, head: Head, *, method: str
) -> AsyncIterator[bytes]:
    """The raw body behind a response's head, in pieces. Raises `BrokenMessage`."""
    if method == "HEAD" or head.status() in _NO_BODY:
        return
    if _chunked(head) or head.value("content-length") is not None:
        async for piece in body_of(reader, head):
            yield piece
        return
    while piece := await reader.read(PIECE_BYTES):
        yield piece


def ends_with_connection(head: Head, *, method: str) -> bool:
    """Whether only the end of the connection tells that a response is whole."""
    if head.closes:
        return True
    if method == "HEAD" or head.status() in _NO_BODY:
        return False
    return not _chunked(head) and head.value("content-length") is None


def _chunked(head: Head) -> bool:
    return "chunked" in (head.value("transfer-encoding") or "").lower()


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size:
        piece = await reader.read(min(size, PIECE_BYTES))
        if not piece:
            raise BrokenMessage("it ended within a body")
        size -= len(piece)
        yield piece


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    size = -1
    while size:
        line = await _line(reader)
        yield line
        size = int(line.split(b";")[0], 16)
        async for piece in _exactly(reader, size + 2 if size else 0):
            yield piece
    while (trailer := await _line(reader)) != b"\r\n":
        yield trailer
    yield b"\r\n"


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise BrokenMessage("it ended within a chunk's mark") from error
