"""Bodies of pages of a run, made while they are sent: lines in a JSON object, or records as ndjson.

A page may have 16 MiB of text, several times as much as JSON. It is read, encoded and sent in
pieces. The next piece is read when the connection has taken the one before, so a client that does
not read costs two pieces and no snapshot.

Lines are sent as `{"logs": "…", "after": …}`. A page of one piece is an ordinary reply with a
length. The text is the first value; values that are known only at its end follow. The pieces are
the lines of one page, each once, in order, linked by the run's cursors. A page that breaks off ends
the connection within the object.

Records are sent as one JSON object each, as `/query` has them. The last object is
`{"stats": {…}}`, or `{"error": {…}}` if the reply broke off; a reply without either is truncated.
`complete` is false if metadata of the records could not be read: times, levels, connectors and
attributes; `missing` names them. The records are all there. It is false, too, if nodes do not
answer that may have newer records; `silent` names those.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote

import orjson
from fastapi.responses import Response, StreamingResponse
from isal import isal_zlib

from logstore.batch import RunKey
from logstore.errors import TailraceError
from service.http.errors import classify
from service.http.node import NodeApi
from service.http.text import shown
from service.query.output import Ndjson
from service.runs.pages import Page
from service.runs.parts import RecordPart
from service.runs.records import RecordPage

TEXT_BYTES: Final = 512 << 10
MAX_BYTES: Final = 16 << 20
"""The most bytes of text that a page has, however many lines were asked for."""
_JSON: Final = "application/json"
_GZIP: Final = 16 + isal_zlib.MAX_WBITS

More = Callable[[str | None, int, int], Awaitable[Page]]
"""What follows a cursor: at most so many lines and so many bytes."""

Rest = Callable[[Page, Page], Mapping[str, Any]]
"""What stands behind the text, of the page's first piece and its last."""

NDJSON: Final = "application/x-ndjson"
RECORD_BYTES: Final = 256 << 10
_WHOLE_BYTES: Final = 512 << 10  # each piece costs a search
_SHOWN: Final = 20

Stats = Callable[[Page, Page], Mapping[str, Any]]
"""What stands at the end of a page, of its first piece and its last."""

Order = Literal["arrival", "ulid"]
ORDER_HELP: Final = (
    "`arrival`, or `ulid`: the order of the producers' ids. Cursors of one are not those of the"
    " other."
)


SILENT: Final = "tailrace-silent"
DAMAGED: Final = "tailrace-damaged"
STORE: Final = "tailrace-store"


def silence(nodes: Iterable[str], *, held: bool = False) -> dict[str, str]:
    """Headers that name nodes that did not answer, and the store if it is of lines `held`."""
    names = ", ".join(sorted(set(nodes)))
    return ({SILENT: names} if names else {}) | ({STORE: "silent"} if held else {})


def header_names(names: Iterable[str]) -> str:
    """Names as the value of a header, in which some characters are not allowed."""
    return ", ".join([quote(name, safe=" !#$&'()*+,/:;=?@[]") for name in names])


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


class Compressed:
    """The lines as `Plain` has them, as base64 of gzip."""

    def __init__(self) -> None:
        self._gzip = isal_zlib.compressobj(1, isal_zlib.DEFLATED, _GZIP)
        self._newline = b""
        self._rest = b""

    def add(self, text: bytes) -> bytes:
        lines = self._newline + shown(text).encode()
        self._newline = lines[-1:] if lines.endswith(b"\n") else b""
        compressed = self._rest + self._gzip.compress(lines.removesuffix(b"\n"))
        whole = len(compressed) - len(compressed) % 3
        self._rest = compressed[whole:]
        return base64.b64encode(compressed[:whole])

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
    joinable: bool = False,
) -> Response:
    """The page that begins with `first`, its text under `name`; 206 if the store is silent.

    A `joinable` text ends with a newline if another page follows, so that pages can be put one
    behind the other as they are.
    """

    def end(last: Page) -> bytes:
        newline = b"\\n" if joinable and last.after is not None else b""
        return encoder.end() + newline + b'",' + orjson.dumps(rest(first, last))[1:]

    begun = b'{%b:"' % orjson.dumps(name) + encoder.add(first.text)
    if not first.missing:
        return Response(begun + end(first), 206 if first.held else 200, headers, _JSON)
    pieces = _text_pieces(more, first, begun, end, encoder)
    return StreamingResponse(pieces, media_type=_JSON, headers=headers)


async def _text_pieces(
    more: More, first: Page, begun: bytes, end: Callable[[Page], bytes], encoder: Encoder
) -> AsyncIterator[bytes]:
    size, last = len(first.text), first
    yield begun
    del begun
    while last.missing and size < MAX_BYTES:
        most = min(TEXT_BYTES, MAX_BYTES - size)
        last = await more(last.after, last.missing, most)
        size += len(last.text)
        yield encoder.add(last.text)
    yield end(last)


def wants_ndjson(asked: str | None, accept: str | None) -> bool:
    """Whether ndjson is wanted, by `format`, else by the `Accept` header."""
    if asked is not None:
        return asked == "ndjson"
    types = [part.split(";")[0].strip().lower() for part in (accept or "").split(",")]
    return NDJSON in types


class _Lines:
    """Records as lines of JSON, and the metadata that could not be read for them."""

    def __init__(self, node: NodeApi, key: RunKey) -> None:
        self._node = node
        self._key = key
        self._output = Ndjson()
        self._missing: dict[str, None] = {}
        self._records = 0

    async def of(self, parts: Sequence[RecordPart]) -> bytes:
        if not parts:
            return b""
        found = await self._node.run_logs.records.records(self._key, parts)
        self._missing |= dict.fromkeys(found.missing)
        self._records += found.batch.num_rows
        # Off the event loop: 20 ms for half a MiB.
        return await asyncio.to_thread(lambda: b"".join(self._output.records(found.batch)))

    @property
    def complete(self) -> bool:
        return not self._missing

    def end(self, more: Mapping[str, Any]) -> bytes:
        missing = list(self._missing)[:_SHOWN]
        complete = self.complete and not more.get("silent") and not more.get("store")
        return self._output.end(
            {"complete": complete, "records": self._records, "missing": missing, **more}
        )

    def error(self, error: TailraceError) -> bytes:
        _, kind = classify(error)
        problem = {"type": kind, "detail": str(error), "hint": error.hint}
        return self._output.error(problem) or b""


async def record_page(
    node: NodeApi, key: RunKey, first: RecordPage, stats: Stats, *, by_ulid: bool
) -> Response:
    """The page that begins with `first`; `stats` gives the object at its end.

    Raises as reading does.
    """
    lines, held = _Lines(node, key), first.page.held
    begun = await lines.of(first.parts)
    status = 200 if lines.complete and not first.page.silent and not held else 206
    if not first.page.missing:
        body = begun + lines.end(stats(first.page, first.page))
        return Response(body, status, silence((), held=held), NDJSON)
    pieces = _record_pieces(node, key, first, begun, lines, stats, by_ulid)
    return StreamingResponse(pieces, status_code=status, media_type=NDJSON)


async def _record_pieces(
    node: NodeApi,
    key: RunKey,
    first: RecordPage,
    begun: bytes,
    lines: _Lines,
    stats: Stats,
    by_ulid: bool,
) -> AsyncIterator[bytes]:
    page, size = first.page, sum([len(part.text) for part in first.parts])
    yield begun
    del begun
    try:
        while page.missing and size < MAX_BYTES:
            found = await node.run_logs.records.page(
                key,
                after=page.after,
                limit=page.missing,
                by_ulid=by_ulid,
                max_bytes=min(RECORD_BYTES, MAX_BYTES - size),
                stored=True,
            )
            page = found.page
            size += sum([len(part.text) for part in found.parts])
            yield await lines.of(found.parts)
    except TailraceError as error:
        yield lines.error(error)
        return
    yield lines.end(stats(first.page, page))


async def whole_run(
    node: NodeApi,
    key: RunKey,
    *,
    by_ulid: bool,
    silent: Sequence[str] = (),
    held: bool = False,
) -> tuple[int, AsyncIterator[bytes]]:
    """The status, and all records of the run in its present state; or those that are `held`.

    `silent` are nodes that did not answer, whose newest records are not there. Raises as reading
    does.
    """
    lines, records = _Lines(node, key), node.run_logs.records
    pieces = records.whole(key, by_ulid=by_ulid, max_bytes=_WHOLE_BYTES, held=held)
    begun = await lines.of(await anext(pieces, ()))
    rest: dict[str, Any] = {"silent": sorted(silent)} if silent else {}
    rest |= {"store": "silent"} if held else {}
    return (200 if lines.complete and not rest else 206), _rest(pieces, begun, lines, rest)


async def _rest(
    pieces: AsyncIterator[Sequence[RecordPart]],
    begun: bytes,
    lines: _Lines,
    rest: Mapping[str, Any],
) -> AsyncIterator[bytes]:
    yield begun
    del begun
    try:
        async for parts in pieces:
            if text := await lines.of(parts):
                yield text
    except TailraceError as error:
        yield lines.error(error)
        return
    yield lines.end(rest)


async def whole_text(node: NodeApi, key: RunKey, *, held: bool = False) -> AsyncIterator[bytes]:
    """The text of all records, or of those that are `held`, in order of ULID.

    Raises as reading does.
    """
    records = node.run_logs.records
    async for parts in records.whole(key, by_ulid=True, max_bytes=RECORD_BYTES, held=held):
        yield b"".join([part.text for part in parts])
