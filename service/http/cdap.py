"""Serves CDAP's verbs for the log of a run: `logs`, `next` and `prev`, as its tools ask for them.

    GET …/logs/{fqn}/{runId}/logs     events of a time range, streamed
    GET …/logs/{fqn}/{runId}/next     at most `max` events after `fromOffset`, oldest first
    GET …/logs/{fqn}/{runId}/prev     at most `max` events before it, oldest first

Without `fromOffset`, `next` and `prev` return the latest events. Events are in the order of ULID,
and an offset is a ULID: it stays valid as long as the run exists. Paging forward and back meets
without a gap. Two things go beyond CDAP. A filter that cannot be parsed is 400 with its position.
A read that fails is an error, where CDAP ends its reply early with 200. If the store does not
answer, events are of the lines that nodes hold, and the status is 206. The header `Tailrace-Silent`
names nodes that did not answer, whose newest events may be missing.

An event is an object of CDAP's shape, or a line of text:

    json    {"log": {"timestamp", "logLevel", "threadName", …}, "offset": "<ULID>"}
    text    {"log": "the message", "offset": "<ULID>"}, or the message alone

A field that a record does not have is taken from its attribute with CDAP's name, else it is empty.
The other attributes are its `mdc`. The offset is the record's ULID.

A filter is written as `loglevel=ERROR AND .origin=plugin OR MDC:user=ann`:

    filter    = condition [("AND" | "OR") filter]
    condition = key "=" value          neither holds a blank
    key       = "loglevel" | "." tag | "MDC:" name

There are no parentheses and no NOT. Both operators have the same precedence and group to the right:
`a AND b OR c` is `a AND (b OR c)`. A condition is equality; levels are compared in any case. A
tag is an attribute of the record, with its dot or without; `.fqn`, `.runId` and `.connectorId` are
the record's own fields. An `MDC` name is an attribute.
"""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import orjson
import pyarrow as pa
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from service.http.api import NodeApi
from service.http.pages import silence
from service.http.targets import BASE, refuse_unknown, run_key
from service.run_log.read_records import RecordPage, encode_place
from service.settings import PageSettings
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.search.conditions import parse_moment

Event = Mapping[str, Any]
"""A record with the fields of `/query`; its attributes are a mapping, or None."""

Matches = Callable[[Event], bool]

_WORD: Final = re.compile(r"\S+")
_OWN: Final = {".fqn": "fqn", ".runId": "run_id", ".connectorId": "connector_id"}
_HINT: Final = "Write key=value, with AND or OR between; keys are loglevel, .tag and MDC:name."

FIELDS: Final = (
    *("timestamp", "logLevel", "threadName", "className", "simpleClassName", "lineNumber"),
    *("message", "stackTrace", "loggerName", "mdc", "isNativeMethod"),
)
_TEXTS: Final = ("threadName", "className", "simpleClassName", "stackTrace", "loggerName")
_NAMED: Final = frozenset((*_TEXTS, "lineNumber", "isNativeMethod"))


def parse_filter(text: str) -> Matches:
    """Compiles a filter; one without a condition matches all events. Raises `InvalidInput`."""
    words = list(_WORD.finditer(text))
    if not words:
        return lambda _: True
    if len(words) % 2 == 0:
        raise _wrong(f"it ends behind {words[-1][0][:80]!r}", words[-1].start())
    matches = _condition(words[-1])
    for number in range(len(words) - 3, -1, -2):
        matches = _joined(_condition(words[number]), words[number + 1], matches)
    return matches


def _joined(first: Matches, operator: re.Match[str], rest: Matches) -> Matches:
    if operator[0] == "AND":
        return lambda event: first(event) and rest(event)
    if operator[0] == "OR":
        return lambda event: first(event) or rest(event)
    raise _wrong(f"{operator[0][:80]!r} is neither AND nor OR", operator.start())


def _condition(word: re.Match[str]) -> Matches:
    key, equals, value = word[0].partition("=")
    if not equals:
        raise _wrong(f"{word[0][:80]!r} is no key=value", word.start())
    if key == "loglevel":
        return lambda event: (event["level"] or "") == value.upper()
    if key in _OWN:
        field = _OWN[key]
        return lambda event: event[field] == value
    if key.startswith(".") and len(key) > 1:
        return lambda event: value in (_attribute(event, key), _attribute(event, key[1:]))
    if key.startswith("MDC:") and len(key) > len("MDC:"):
        name = key.removeprefix("MDC:")
        return lambda event: _attribute(event, name) == value
    raise _wrong(f"there is no key {key[:80]!r}", word.start())


def _attribute(event: Event, name: str) -> str | None:
    attributes: Mapping[str, str] = event["attributes"] or {}
    return attributes.get(name)


def _wrong(what: str, place: int) -> InvalidInput:
    return InvalidInput(f"filter: {what}, at character {place + 1}", field="filter", hint=_HINT)


def events_of(batch: pa.RecordBatch) -> Iterator[Event]:
    """Yields the records one by one; `ts` in milliseconds since the epoch."""
    times = batch.column("ts").cast(pa.int64()).to_pylist()
    names = [name for name in batch.schema.names if name not in ("ts", "attributes")]
    columns = [batch.column(name).to_pylist() for name in names]
    attributes = batch.column("attributes").to_pylist()
    for number, time in enumerate(times):
        event: dict[str, Any] = {
            name: column[number] for name, column in zip(names, columns, strict=True)
        }
        carried = attributes[number]
        yield event | {"ts": time // 1000, "attributes": None if carried is None else dict(carried)}


class EventEncoder:
    """Encodes events as bytes."""

    def __init__(self, *, as_json: bool, escape: bool, suppressed: Container[str]) -> None:
        self._as_json = as_json
        self._escape = escape
        self._suppressed = suppressed

    def with_offset(self, event: Event) -> bytes:
        """Returns the event as an element of an array, with its offset."""
        log = self._log(event) if self._as_json else self._text(event["message"])
        return orjson.dumps({"log": log, "offset": event["ulid"]})

    def line(self, event: Event) -> bytes:
        """Returns the event as a line of text."""
        return f"{self._text(event['message'])}\n".encode()

    def _log(self, event: Event) -> dict[str, Any]:
        said: dict[str, str] = event["attributes"] or {}
        number = said.get("lineNumber", "")
        log: dict[str, Any] = {
            "timestamp": event["ts"],
            "logLevel": event["level"],
            "lineNumber": int(number) if number.isascii() and number.isdigit() else 0,
            "message": self._text(event["message"]),
            "mdc": {name: value for name, value in said.items() if name not in _NAMED},
            "isNativeMethod": said.get("isNativeMethod") == "true",
            **{name: said.get(name, "") for name in _TEXTS},
        }
        return {name: log[name] for name in FIELDS if name not in self._suppressed}

    def _text(self, message: str) -> str:
        if not self._escape:
            return message
        return html.escape(message, quote=False).replace('"', "&quot;")


_MAX: Final = 50
_STEP_LINES: Final = 1000
_STEP_BYTES: Final = 256 << 10
_REPLY_BYTES: Final = 16 << 20
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"
_COMMON: Final = ("filter", "format", "suppress", "escape")
_PAGES: Final = (*_COMMON, "fromOffset", "max")
_RANGE: Final = (*_COMMON, "start", "stop")

_Format = Annotated[Literal["text", "json"], Query(description="Format of the events.")]
_Filter = Annotated[
    str, Query(description="`loglevel=ERROR AND .tag=x OR MDC:name=y`; the last binds closest.")
]
_Escape = Annotated[bool, Query(description="Escape messages for HTML.")]
_Suppress = Annotated[list[str] | None, Query(description=f"Fields to omit: {', '.join(FIELDS)}.")]
_Offset = Annotated[str, Query(description="`offset` of an event; without it, the latest events.")]
_Most = Annotated[int, Query(ge=1, description="Events at most.")]
_ARRAY = {"type": "array", "items": {"type": "object"}}
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events, each as `log` and `offset`.",
        "content": {_JSON: {"schema": _ARRAY}},
    },
    206: {
        "description": "The object store does not answer; the reply has only events that nodes"
        " hold."
    },
}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Lines, or with `format=json` events as `log` and `offset`.",
        "content": {"text/plain": {"schema": {"type": "string"}}, _JSON: {"schema": _ARRAY}},
    },
    206: {
        "description": "The object store does not answer; the reply has only events that nodes"
        " hold."
    },
}


def cdap_routes(node: NodeApi, settings: PageSettings, clock: Clock) -> APIRouter:
    """Returns the routes of the three verbs."""
    router = APIRouter(prefix=BASE, tags=["cdap"])

    @router.get(
        "/{fqn}/{runId}/logs",
        summary="Events of a run in a time range, as CDAP gives them",
        response_class=Response,
        responses=_STREAM,
    )
    async def logs(
        fqn: str,
        runId: str,  # noqa: N803
        request: Request,
        start: Annotated[str, Query(description="Epoch seconds; inclusive.")] = "now-1h",
        stop: Annotated[str, Query(description="Epoch seconds; exclusive.")] = "now",
        filter: _Filter = "",  # noqa: A002
        format: _Format = "text",  # noqa: A002
        suppress: _Suppress = None,
        escape: _Escape = True,
    ) -> Response:
        refuse_unknown(request, _RANGE, repeatable=("suppress",))
        key, now_ms = run_key(fqn, runId), clock.now_ms()
        low = parse_moment(start, now_ms=now_ms, field="start")
        high = parse_moment(stop, now_ms=now_ms, field="stop")
        if high <= low:
            raise InvalidInput(
                "Invalid time range: stop is not after start",
                field="stop",
                hint="Both are seconds since 1970; without them, the last hour.",
            )
        matches, encoder = parse_filter(filter), _encoder(format, escape, suppress)

        def wanted(event: Event) -> bool:
            return low <= event["ts"] < high and matches(event)

        first = await _page(node, key, after=None)
        events, held = _forward(node, key, first), first.page.held
        status, about = 206 if held else 200, silence(first.page.silent, held=held)
        if format == "json":
            return StreamingResponse(_array(events, wanted, encoder), status, about, _JSON)
        return StreamingResponse(_lines(events, wanted, encoder), status, about, _TEXT)

    async def events(
        fqn: str,
        runId: str,  # noqa: N803
        request: Request,
        fromOffset: _Offset = "",  # noqa: N803
        max: _Most = _MAX,  # noqa: A002
        filter: _Filter = "",  # noqa: A002
        format: _Format = "text",  # noqa: A002
        suppress: _Suppress = None,
        escape: _Escape = True,
    ) -> Response:
        refuse_unknown(request, _PAGES, repeatable=("suppress",))
        key, matches = run_key(fqn, runId), parse_filter(filter)
        encoder, most = _encoder(format, escape, suppress), min(max, settings.max_lines)
        if fromOffset and request.url.path.endswith("/next"):
            place = _place(fromOffset)
            return _reply(await _after(node, key, place, most, matches, encoder))
        end = _place(fromOffset) if fromOffset else None
        return _reply(await _before(node, key, end, most, matches, encoder))

    for verb, side, name in (("next", "after", "following"), ("prev", "before", "preceding")):
        router.add_api_route(
            f"/{{fqn}}/{{runId}}/{verb}",
            events,
            methods=["GET"],
            name=name,
            summary=f"Events of a run {side} an offset, as CDAP gives them",
            response_class=Response,
            responses=_EVENTS,
        )
    return router


def _encoder(form: str, escape: bool, suppress: list[str] | None) -> EventEncoder:
    for field in suppress or ():
        if field not in FIELDS:
            raise InvalidInput(
                f"events have no field {field[:80]!r}",
                field="suppress",
                hint=f"Fields are {', '.join(FIELDS)}.",
            )
    return EventEncoder(as_json=form == "json", escape=escape, suppressed=suppress or ())


def _place(offset: str) -> str:
    try:
        return encode_place(int(ulids.parse(offset.upper())))
    except InvalidInput as error:
        raise InvalidInput(
            f"fromOffset is not an offset: {offset[:80]!r}",
            field="fromOffset",
            hint="Pass `offset` of an event, or leave it out for the latest events.",
        ) from error


def _reply(found: _Found) -> Response:
    body, about = b"[%b]" % b",".join(found.events), silence(found.silent, held=found.held)
    return Response(body, 206 if found.held else 200, about, _JSON)


# --- reading ------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """Encoded events, and the nodes that did not answer when they were read.

    `held`: the store did not answer either, and the events are of lines that nodes hold.
    """

    events: list[bytes]
    silent: Sequence[str]
    held: bool


async def _page(node: NodeApi, key: RunKey, *, after: str | None) -> RecordPage:
    return await node.run_logs.records.page(
        key, after=after, limit=_STEP_LINES, by_ulid=True, max_bytes=_STEP_BYTES
    )


async def _events(node: NodeApi, key: RunKey, page: RecordPage) -> list[Event]:
    if not page.parts:
        return []
    return list(events_of((await node.run_logs.records.records(key, page.parts)).batch))


async def _forward(node: NodeApi, key: RunKey, first: RecordPage) -> AsyncIterator[list[Event]]:
    """Yields the events of a page and of all later pages."""
    page = first
    while True:
        yield await _events(node, key, page)
        if page.page.after is None:
            return
        page = await _page(node, key, after=page.page.after)


async def _after(
    node: NodeApi, key: RunKey, place: str, most: int, matches: Matches, encoder: EventEncoder
) -> _Found:
    """Returns the first matching events after the place."""
    found: list[bytes] = []
    size = 0
    first = await _page(node, key, after=place)
    async for events in _forward(node, key, first):
        for event in filter(matches, events):
            found.append(encoder.with_offset(event))
            size += len(found[-1])
            if len(found) == most or size >= _REPLY_BYTES:
                return _Found(found, first.page.silent, first.page.held)
    return _Found(found, first.page.silent, first.page.held)


async def _before(
    node: NodeApi,
    key: RunKey,
    place: str | None,
    most: int,
    matches: Matches,
    encoder: EventEncoder,
) -> _Found:
    """Returns the last matching events before the place, or of the run; oldest first."""
    found: list[bytes] = []
    size, limit, held = 0, _STEP_LINES, False
    while True:
        page = await node.run_logs.records.page(
            key,
            before=place,
            tail=limit if place is None else None,
            limit=limit,
            by_ulid=True,
            max_bytes=_STEP_BYTES if limit > 1 else _REPLY_BYTES,
        )
        if page.page.missing and limit > 1:  # the records next to the place did not fit
            limit = max(limit // 4, 1)
            continue
        held = held or page.page.held
        for event in filter(matches, reversed(await _events(node, key, page))):
            found.append(encoder.with_offset(event))
            size += len(found[-1])
            if len(found) == most or size >= _REPLY_BYTES:
                return _Found(found[::-1], page.page.silent, held)
        place, limit = page.page.before, _STEP_LINES
        if place is None:
            return _Found(found[::-1], page.page.silent, held)


async def _lines(
    events: AsyncIterator[list[Event]], wanted: Callable[[Event], bool], encoder: EventEncoder
) -> AsyncIterator[bytes]:
    async for some in events:
        if text := b"".join([encoder.line(event) for event in some if wanted(event)]):
            yield text


async def _array(
    events: AsyncIterator[list[Event]], wanted: Callable[[Event], bool], encoder: EventEncoder
) -> AsyncIterator[bytes]:
    opening = b"["
    async for some in events:
        if found := [encoder.with_offset(event) for event in some if wanted(event)]:
            yield opening + b",".join(found)
            opening = b","
    yield b"[]" if opening == b"[" else b"]"
