"""Serves `GET /logs/{fqn}/{runId}`: a page of a run in OpenMetadata's shape, with more keys.

With `format=ndjson` the reply is the page's records. With `order=ulid` lines or records are in the
order in which producers wrote them. A cursor that this service never issued counts as the
beginning, as in upstream. The two parameters do not exist in upstream and refuse such a cursor.

A page may have 16 MiB of text, and several times as much JSON, so it is read, encoded and sent in
pieces. The next piece is read when the connection has taken the one before. A client that does not
read costs two pieces and no snapshot.

Lines are sent as `{"logs": "…", "after": …}`. A page of one piece is an ordinary reply with a
length. The text is the first value; values that are known only at the end follow. The pieces are
the lines of one page, each once, in order, linked by the run's cursors. If a page breaks off, the
connection ends within the object.

Records are sent as one JSON object each, as in `/query`. The last object is `{"stats": {…}}`, or
`{"error": {…}}` if the reply broke off. A reply without either is truncated. `complete` is false if
metadata of the records (times, levels, connectors, attributes) could not be read; `missing` names
it, and no record is left out. `complete` is also false if nodes that may have newer records do not
answer; `silent` names them.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Header, Query
from fastapi.responses import Response, StreamingResponse
from isal import isal_zlib
from pydantic import BaseModel

from service.http.api import NodeApi
from service.http.errors import classify
from service.http.json_body import shown
from service.http.targets import BASE, run_key
from service.query.output import Ndjson
from service.run_log.cursors import LinePage, NoLines
from service.run_log.lines import RecordPart
from service.run_log.read_records import RecordPage
from service.settings import PageSettings
from service.status.reports import state_without_lines
from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import InvalidCursor, InvalidInput, NotFound, TailraceError

TEXT_BYTES: Final = 512 << 10
MAX_BYTES: Final = 16 << 20
"""The most bytes of text that a page has, whatever the number of requested lines."""
_JSON: Final = "application/json"
_GZIP: Final = 16 + isal_zlib.MAX_WBITS

More = Callable[[str | None, int, int], Awaitable[LinePage]]
"""Reads after a cursor, at most a number of lines and a number of bytes."""

Rest = Callable[[LinePage, LinePage], Mapping[str, Any]]
"""Returns the keys after the text, from the page's first piece and its last."""

NDJSON: Final = "application/x-ndjson"
RECORD_BYTES: Final = 256 << 10
_WHOLE_BYTES: Final = 512 << 10  # large, because each piece costs a search
_SHOWN: Final = 20

Stats = Callable[[LinePage, LinePage], Mapping[str, Any]]
"""Returns the object at a page's end, from its first piece and its last."""

Order = Literal["arrival", "ulid"]
ORDER_HELP: Final = (
    "`arrival`, or `ulid`: the order of the producers' ids. Cursors of one are not those of the"
    " other."
)


SILENT: Final = "tailrace-silent"
DAMAGED: Final = "tailrace-damaged"
STORE: Final = "tailrace-store"


def silence(nodes: Iterable[str], *, held: bool = False, again: bool = False) -> dict[str, str]:
    """Headers that name silent nodes, and the store if the reply has only lines `held` by nodes.

    `again`: the reply begins before lines that the reader was given while the store was silent.
    """
    names = ", ".join(sorted(set(nodes)))
    store = {STORE: "silent"} if held else {STORE: "again"} if again else {}
    return ({SILENT: names} if names else {}) | store


def header_names(names: Iterable[str]) -> str:
    """Makes a header value of names; replaces characters that a header may not have."""
    return ", ".join([quote(name, safe=" !#$&'()*+,/:;=?@[]") for name in names])


class JsonStringEncoder(Protocol):
    """Encodes text that comes in pieces as the inside of a JSON string."""

    def add(self, text: bytes) -> bytes:
        """Takes a piece; returns the bytes that can be sent already."""
        ...

    def end(self) -> bytes:
        """Returns the rest."""
        ...


class Plain:
    """The lines, joined by newlines, without a newline after the last."""

    def __init__(self) -> None:
        self._held = ""

    def add(self, text: bytes) -> bytes:
        lines = self._held + shown(text)
        self._held = "\n" if lines.endswith("\n") else ""
        return orjson.dumps(lines.removesuffix("\n"))[1:-1]

    def end(self) -> bytes:
        return b""


class Compressed:
    """The lines of `Plain` as base64 of gzip."""

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
    first: LinePage,
    name: str,
    rest: Rest,
    *,
    encoder: JsonStringEncoder,
    headers: Mapping[str, str] | None = None,
    joinable: bool = False,
) -> Response:
    """Returns the page that begins with `first`, its text as `name`; 206 if the store is silent.

    A `joinable` text ends with a newline if another page follows, so that clients can concatenate
    pages.
    """

    def end(last: LinePage) -> bytes:
        newline = b"\\n" if joinable and last.after is not None else b""
        return encoder.end() + newline + b'",' + orjson.dumps(rest(first, last))[1:]

    begun = b'{%b:"' % orjson.dumps(name) + encoder.add(first.text)
    if not first.missing:
        return Response(begun + end(first), 206 if first.held else 200, headers, _JSON)
    pieces = _text_pieces(more, first, begun, end, encoder)
    return StreamingResponse(pieces, media_type=_JSON, headers=headers)


async def _text_pieces(
    more: More,
    first: LinePage,
    begun: bytes,
    end: Callable[[LinePage], bytes],
    encoder: JsonStringEncoder,
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
    """Returns true if the client wants ndjson, by `format`, else by the `Accept` header."""
    if asked is not None:
        return asked == "ndjson"
    types = [part.split(";")[0].strip().lower() for part in (accept or "").split(",")]
    return NDJSON in types


class _Lines:
    """Encodes records as lines of JSON and notes the metadata that could not be read for them."""

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
    """Returns the page that begins with `first`; `stats` makes the object at its end.

    Raises the errors of reading.
    """
    lines, held = _Lines(node, key), first.page.held
    begun = await lines.of(first.parts)
    status = 200 if lines.complete and not first.page.silent and not held else 206
    headers = silence((), held=held, again=first.page.again)
    if not first.page.missing:
        body = begun + lines.end(stats(first.page, first.page))
        return Response(body, status, headers, NDJSON)
    pieces = _record_pieces(node, key, first, begun, lines, stats, by_ulid)
    return StreamingResponse(pieces, status_code=status, headers=headers, media_type=NDJSON)


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
    node: NodeApi, key: RunKey, *, by_ulid: bool, silent: Sequence[str] = (), held: bool = False
) -> tuple[int, AsyncIterator[bytes]]:
    """Returns the status and all records of the run in its present state, or those that are `held`.

    `silent` are nodes that did not answer; their newest records are missing. Raises the errors of
    reading.
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
    """Yields the text of all records, or of those that are `held`, in order of ULID.

    Raises the errors of reading.
    """
    records = node.run_logs.records
    async for parts in records.whole(key, by_ulid=True, max_bytes=RECORD_BYTES, held=held):
        yield b"".join([part.text for part in parts])


class LogPage(BaseModel):
    """Lines joined by newlines, without one after the last."""

    logs: str
    after: str | None
    """Where the next page begins; null when there is no more for now."""
    resume: str | None = None
    """Where lines that come later begin, for a page or a live stream; absent if `after` says it,
    if the run is closed, and with `order=ulid`."""
    total: int
    """Upstream's units: lines while the run is active, bytes once it is closed."""
    compressed: bool | None = None
    """True if `logs` is base64 of gzip, because the request said so."""
    streaming: bool | None = None
    """True while the run is active; absent otherwise."""
    totalLines: int  # noqa: N815 -- the wire's spelling
    totalBytes: int  # noqa: N815
    state: str
    silent: list[str] | None = None
    """Nodes that do not answer; the page lacks their newest lines. Absent without any."""
    store: Literal["silent"] | None = None
    """The object store does not answer; the page has only lines that nodes hold. Absent"
      " otherwise."""
    again: Literal[True] | None = None
    """The object store answers, and has lines before some that came while it did not, or the reader
    had some of those before: the page begins where the reader was before that. Drop what pages with
    `store` gave since; absent otherwise."""
    before: str | None
    """Pass it as `before` for the previous page; null at the beginning."""
    line: int | None = None
    """With `at`: the number of the record's first line, from 0 on."""
    firstLine: int | None = None  # noqa: N815
    """With `at`: the number of the page's first line. Neither is there with `order=ulid`."""


_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Lines; or an object per record, and at the end `stats` with the keys of a"
        " page without `logs`.",
        "content": {NDJSON: {"schema": {"type": "string"}}},
    },
    206: {
        "description": "The object store did not answer, and the page has lines that nodes hold"
        " (`store`). Or, of records, not all that is known could be read (`missing`), or nodes did"
        " not answer, whose newest records are not there (`silent`).",
        "content": {NDJSON: {"schema": {"type": "string"}}},
    },
}


def page_routes(node: NodeApi, settings: PageSettings) -> APIRouter:
    """The page route."""
    router = APIRouter(prefix=BASE, tags=["runs"])

    @router.get(
        "/{fqn}/{runId}",
        summary="Lines of a run, page by page",
        response_model=LogPage,
        responses=_RESPONSES,
    )
    async def page(
        fqn: str,
        runId: str,  # noqa: N803
        after: Annotated[str | None, Query(description="Line offset or cursor.")] = None,
        offset: Annotated[str | None, Query(description="Alias of after.")] = None,
        before: Annotated[str | None, Query(description="Page backwards from here.")] = None,
        tail: Annotated[int | None, Query(description="This many of the last lines.", ge=1)] = None,
        at: Annotated[
            str | None, Query(description="The page around the record of this ULID.")
        ] = None,
        limit: Annotated[int, Query(description="Lines at most.", ge=1)] = settings.default_lines,
        compressed: Annotated[
            bool, Query(description="`logs` as base64 of gzip, as OpenMetadata's client reads it.")
        ] = False,
        order: Annotated[Order, Query(description=ORDER_HELP)] = "arrival",
        format: Annotated[  # noqa: A002
            Literal["json", "ndjson"] | None,
            Query(description="`ndjson`: an object per record. Without it, by `Accept`."),
        ] = None,
        accept: Annotated[str | None, Header(include_in_schema=False)] = None,
    ) -> Response:

        def rest(first: LinePage, last: LinePage) -> dict[str, Any]:
            return _rest_of_range(first, last) | ({"compressed": True} if compressed else {})

        key = run_key(fqn, runId)
        start = PageStart(after or offset or None, before or None, tail, _record(at))
        most = min(limit, settings.max_lines)
        by_ulid, ndjson = order == "ulid", wants_ndjson(format, accept)
        if ndjson and compressed:
            raise InvalidInput(
                "compressed is of JSON pages",
                field="compressed",
                hint="Leave it out with format=ndjson.",
            )
        try:
            if ndjson:
                records = await _records(node, key, start, most, settings, by_ulid)
                stats = _rest_of_range if by_ulid else _rest_of_records
                return await record_page(node, key, records, stats, by_ulid=by_ulid)
            if by_ulid:
                found = (await _records(node, key, start, most, settings, True)).as_text()
            else:
                found = await _read(node, key, start, most, settings)
        except NotFound as error:
            if start.at is not None:  # the id of a record proves that a record existed
                raise
            # As upstream: a run may have no line yet, but its pipeline must exist.
            silent = error.silent if isinstance(error, NoLines) else ()
            report = await node.status.get(key)
            if report is None and not silent:
                await must_know(node, key.fqn)
            empty = _EMPTY if report is None else _EMPTY | {"state": state_without_lines(report)}
            return _nothing(empty, silent) if ndjson else _json(empty | named(silent))
        encoder = Compressed() if compressed else Plain()
        more = partial(_more_by_ulid, node, key) if by_ulid else partial(more_lines, node, key)
        headers = silence((), held=found.held, again=found.again)
        return page_response(more, found, "logs", rest, encoder=encoder, headers=headers)

    return router


class PageStart(NamedTuple):
    """The beginning of a page. At most one field is set; without any it is the start of the run."""

    after: str | None
    before: str | None
    tail: int | None
    at: int | None


def _record(at: str | None) -> int | None:
    if not at:
        return None
    try:
        return int(ulid.parse(at.upper()))
    except InvalidInput as error:
        raise InvalidInput(
            f"at is not a ULID: {at[:80]!r}", field="at", hint="Searches give each record's `ulid`."
        ) from error


def _check_one(start: PageStart) -> None:
    if sum(value is not None for value in start) > 1:
        raise InvalidInput(
            "a page begins in one place",
            field="after",
            hint="Give one of after (or offset), before, tail and at.",
        )


async def _records(
    node: NodeApi, key: RunKey, start: PageStart, limit: int, settings: PageSettings, by_ulid: bool
) -> RecordPage:
    """Reads the first piece of a page as records."""
    _check_one(start)
    after, before, tail, at = start
    tail = None if tail is None else min(tail, settings.max_lines)
    return await node.run_logs.records.page(
        key,
        after=after,
        limit=limit if tail is None else tail,
        tail=tail,
        before=before,
        around=at,
        by_ulid=by_ulid,
        max_bytes=RECORD_BYTES,
    )


async def _more_by_ulid(
    node: NodeApi, key: RunKey, after: str | None, limit: int, max_bytes: int
) -> LinePage:
    found = await node.run_logs.records.page(
        key, after=after, limit=limit, by_ulid=True, max_bytes=max_bytes, stored=True
    )
    return found.as_text()


async def more_lines(
    node: NodeApi, key: RunKey, after: str | None, limit: int, max_bytes: int
) -> LinePage:
    """Reads the next piece of a page; the page breaks off without the store.

    Raises the errors of reading.
    """
    return await node.run_logs.reader.page(
        key, after=after, limit=limit, max_bytes=max_bytes, stored=True
    )


async def _read(
    node: NodeApi, key: RunKey, start: PageStart, limit: int, settings: PageSettings
) -> LinePage:
    _check_one(start)
    after, before, tail, at = start
    read = partial(node.run_logs.reader.page, key, max_bytes=TEXT_BYTES)
    if tail is not None:
        tail = min(tail, settings.max_lines)
        return await read(after=None, limit=tail, tail=tail)
    if before is not None:
        return await read(after=None, limit=limit, before=before)
    if at is not None:
        return await read(after=None, limit=limit, around=at)
    return await page_from_start(node, key, after, limit)


async def page_from_start(node: NodeApi, key: RunKey, after: str | None, limit: int) -> LinePage:
    """Reads the first piece of the page after a cursor.

    An unknown cursor is the start, as upstream.

    Raises `NotFound`, `StoreUnavailable`.
    """
    try:
        return await node.run_logs.reader.page(
            key, after=after or None, limit=limit, max_bytes=TEXT_BYTES
        )
    except InvalidCursor:
        return await node.run_logs.reader.page(key, after=None, limit=limit, max_bytes=TEXT_BYTES)


async def must_know(node: NodeApi, fqn: str) -> None:
    """Raises `NotFound` if no run of the pipeline ever sent a line or a status."""
    newest = await node.run_logs.listing.newest(fqn, node.status)
    if newest.run is None and not newest.silent:
        raise NotFound(
            f"no pipeline {fqn!r}", hint="Its first batch or pipelineStatus makes a pipeline."
        )


def total_of(page: LinePage) -> int:
    """Returns the length of the run in upstream's units: bytes once closed, lines before."""
    return page.total_bytes if page.state == "closed" else page.total_lines


def _rest_of_range(first: LinePage, last: LinePage) -> dict[str, Any]:
    value: dict[str, Any] = {
        "after": last.after,
        "total": total_of(last),
        "totalLines": last.total_lines,
        "totalBytes": last.total_bytes,
        "state": last.state,
        "before": first.before,
    }
    if last.resume is not None:
        value["resume"] = last.resume
    if first.again:
        value["again"] = True
    if last.streaming:
        value["streaming"] = True
    if first.record_line is not None and not first.held:
        value |= {"line": first.record_line, "firstLine": first.first_line}
    return value | named([*first.silent, *last.silent], held=last.held)


def _rest_of_records(first: LinePage, last: LinePage) -> dict[str, Any]:
    """Adds the first line, since a page of records may begin earlier, within its record."""
    return _rest_of_range(first, last) | ({} if first.held else {"firstLine": first.first_line})


def named(silent: Iterable[str], *, held: bool = False) -> dict[str, Any]:
    """Names nodes that did not answer, if any, and the store if all lines are `held` by nodes."""
    names = sorted(set(silent))
    store = {"store": "silent"} if held else {}
    return ({"silent": names} if names else {}) | store


def _nothing(empty: Mapping[str, Any], silent: Sequence[str]) -> Response:
    stats: dict[str, Any] = {"complete": not silent, "records": 0, "missing": []}
    stats |= {name: value for name, value in empty.items() if name != "logs"}
    body = orjson.dumps({"stats": stats | named(silent)}) + b"\n"
    return Response(body, status_code=206 if silent else 200, media_type=NDJSON)


def _json(value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


_EMPTY = {
    "logs": "",
    "after": None,
    "total": 0,
    "totalLines": 0,
    "totalBytes": 0,
    "state": "none",
    "before": None,
}
