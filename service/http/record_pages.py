"""Runs as ndjson: pages and whole runs, one JSON object per record, as `/query` has them.

The last object is `{"stats": {…}}`, or `{"error": {…}}` if the reply broke off; a reply without
either is truncated. `complete` is false if metadata of the records could not be read:
times, levels, connectors and attributes; `missing` names them. The records are all there.

Records are read, encoded and sent in pieces, the next when the connection has taken the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Literal

from fastapi.responses import Response, StreamingResponse

from logstore.batch import RunKey
from logstore.errors import TailraceError
from service.http.errors import classify
from service.http.node import NodeApi
from service.http.paging import MAX_BYTES
from service.query.output import Ndjson
from service.runs.pages import Page
from service.runs.parts import RecordPart
from service.runs.records import RecordPage

NDJSON: Final = "application/x-ndjson"
PIECE_BYTES: Final = 256 << 10
_WHOLE_BYTES: Final = 512 << 10  # each piece costs a search
_SHOWN: Final = 20

Stats = Callable[[Page, Page], Mapping[str, Any]]
"""What stands at the end of a page, of its first piece and its last."""

Order = Literal["arrival", "ulid"]
ORDER_HELP: Final = (
    "`arrival`, or `ulid`: the order of the producers' ids. Cursors of one are not those of the"
    " other."
)


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
        return self._output.end(
            {"complete": self.complete, "records": self._records, "missing": missing, **more}
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
    lines = _Lines(node, key)
    begun = await lines.of(first.parts)
    status = 200 if lines.complete else 206
    if not first.page.missing:
        body = begun + lines.end(stats(first.page, first.page))
        return Response(body, status_code=status, media_type=NDJSON)
    pieces = _pieces(node, key, first, begun, lines, stats, by_ulid)
    return StreamingResponse(pieces, status_code=status, media_type=NDJSON)


async def _pieces(
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
                max_bytes=min(PIECE_BYTES, MAX_BYTES - size),
            )
            page = found.page
            size += sum([len(part.text) for part in found.parts])
            yield await lines.of(found.parts)
    except TailraceError as error:
        yield lines.error(error)
        return
    yield lines.end(stats(first.page, page))


async def whole_run(
    node: NodeApi, key: RunKey, *, by_ulid: bool
) -> tuple[int, AsyncIterator[bytes]]:
    """The status, and all records of the run in its present state. Raises as reading does."""
    lines = _Lines(node, key)
    pieces = node.run_logs.records.whole(key, by_ulid=by_ulid, max_bytes=_WHOLE_BYTES)
    begun = await lines.of(await anext(pieces, ()))
    return (200 if lines.complete else 206), _rest(pieces, begun, lines)


async def _rest(
    pieces: AsyncIterator[Sequence[RecordPart]], begun: bytes, lines: _Lines
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
    yield lines.end({})


async def whole_text(node: NodeApi, key: RunKey) -> AsyncIterator[bytes]:
    """The text of all records in order of ULID. Raises as reading does."""
    async for parts in node.run_logs.records.whole(key, by_ulid=True, max_bytes=PIECE_BYTES):
        yield b"".join([part.text for part in parts])
