"""A page of lines as a JSON object that is made while it is sent: `{"logs": "…", "after": …}`.

A page may have 16 MiB of text, several times as much as JSON. It is read, encoded and sent in
pieces of about 512 KiB. The next piece is read when the connection has taken the one before, so a
client that does not read costs two pieces and no snapshot. A page of one piece is an ordinary
reply with a length. The text is the first value; values that are known only at its end follow.

Invariants: the pieces are the lines of one page, each once, in order, linked by the
run's cursors. A page that breaks off ends the connection within the object.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import orjson
from fastapi.responses import Response, StreamingResponse
from isal import isal_zlib

from service.http.text import shown
from service.runs.pages import Page

PIECE_BYTES: Final = 512 << 10
MAX_BYTES: Final = 16 << 20
"""Of the text of a page, whatever it has of lines."""
_JSON: Final = "application/json"
_GZIP: Final = 16 + isal_zlib.MAX_WBITS

More = Callable[[str | None, int, int], Awaitable[Page]]
"""What follows a cursor: at most so many lines and so many bytes."""

Rest = Callable[[Page, Page], Mapping[str, Any]]
"""What stands behind the text, of the page's first piece and its last."""


class Encoder(Protocol):
    """Encodes text that comes in pieces as the inside of a JSON string."""

    def add(self, text: bytes) -> bytes:
        """Takes a piece; returns what can be sent already."""
        ...

    def end(self) -> bytes:
        """Returns the rest."""
        ...


class Plain:
    """The lines, joined by newlines, without one behind the last."""

    def __init__(self) -> None:
        self._held = ""

    def add(self, text: bytes) -> bytes:
        lines = self._held + shown(text)
        self._held = "\n" if lines.endswith("\n") else ""
        return orjson.dumps(lines.removesuffix("\n"))[1:-1]

    def end(self) -> bytes:
        return b""


class Packed:
    """As `Plain`, but as base64 of gzip."""

    def __init__(self) -> None:
        self._gzip = isal_zlib.compressobj(1, isal_zlib.DEFLATED, _GZIP)
        self._newline = b""
        self._rest = b""

    def add(self, text: bytes) -> bytes:
        lines = self._newline + shown(text).encode()
        self._newline = lines[-1:] if lines.endswith(b"\n") else b""
        packed = self._rest + self._gzip.compress(lines.removesuffix(b"\n"))
        whole = len(packed) - len(packed) % 3
        self._rest = packed[whole:]
        return base64.b64encode(packed[:whole])

    def end(self) -> bytes:
        return base64.b64encode(self._rest + self._gzip.flush())


def page_response(
    more: More,
    first: Page,
    name: str,
    rest: Rest,
    *,
    encoder: Encoder,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The page that begins with `first`, its text under `name`."""
    begun = b'{%b:"' % orjson.dumps(name) + encoder.add(first.text)
    if not first.missing:
        body = begun + encoder.end() + _behind(rest(first, first))
        return Response(body, media_type=_JSON, headers=headers)
    pieces = _pieces(more, first, begun, rest, encoder)
    return StreamingResponse(pieces, media_type=_JSON, headers=headers)


async def _pieces(
    more: More, first: Page, begun: bytes, rest: Rest, encoder: Encoder
) -> AsyncIterator[bytes]:
    size, last = len(first.text), first
    yield begun
    del begun
    while last.missing and size < MAX_BYTES:
        most = min(PIECE_BYTES, MAX_BYTES - size)
        last = await more(last.after, last.missing, most)
        size += len(last.text)
        yield encoder.add(last.text)
    yield encoder.end() + _behind(rest(first, last))


def _behind(rest: Mapping[str, Any]) -> bytes:
    return b'",' + orjson.dumps(rest)[1:]
