"""CDAP's verbs for the log of a run: `logs`, `next` and `prev`, as its tools ask for them.

    GET …/logs/{fqn}/{runId}/logs     events of a time range, streamed
    GET …/logs/{fqn}/{runId}/next     at most `max` events behind `fromOffset`, oldest first
    GET …/logs/{fqn}/{runId}/prev     at most `max` events before it, oldest first

Without `fromOffset`, `next` and `prev` give the latest events. Events are in the order of ULID, and
an offset is a ULID: it stays valid for as long as the run. Paging forward and back meets without a
gap. Beyond CDAP, a filter that cannot be read is 400 with its place, and a reading that fails is an
error, where CDAP ends its reply early with 200. If the store does not answer, events are of lines
that nodes hold, and the status is 206. The header `Tailrace-Silent` names nodes that did
not answer, whose newest events may be missing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import InvalidInput
from logstore.search.moments import parse_moment
from service.http.cdap_events import FIELDS, Event, EventEncoder, Matches, events_of, parse_filter
from service.http.node import NodeApi
from service.http.page_bodies import silence
from service.http.settings import PageSettings
from service.http.targets import BASE, refuse_unknown, run_key
from service.runs.records import RecordPage
from service.runs.ulid_order import encode_place

_MAX: Final = 50
_STEP_LINES: Final = 1000
_STEP_BYTES: Final = 256 << 10
_REPLY_BYTES: Final = 16 << 20
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"
_COMMON: Final = ("filter", "format", "suppress", "escape")
_PAGES: Final = (*_COMMON, "fromOffset", "max")
_RANGE: Final = (*_COMMON, "start", "stop")

_Format = Annotated[Literal["text", "json"], Query(description="Of the events.")]
_Filter = Annotated[
    str, Query(description="`loglevel=ERROR AND .tag=x OR MDC:name=y`; the last binds closest.")
]
_Escape = Annotated[bool, Query(description="Escape messages for HTML.")]
_Suppress = Annotated[
    list[str] | None, Query(description=f"Fields to leave out: {', '.join(FIELDS)}.")
]
_Offset = Annotated[str, Query(description="`offset` of an event; without it, the latest events.")]
_Most = Annotated[int, Query(ge=1, description="Events at most.")]
_ARRAY = {"type": "array", "items": {"type": "object"}}
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events, each as `log` and `offset`.",
        "content": {_JSON: {"schema": _ARRAY}},
    },
    206: {"description": "The object store does not answer: events that nodes hold."},
}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Lines, or with `format=json` events as `log` and `offset`.",
        "content": {"text/plain": {"schema": {"type": "string"}}, _JSON: {"schema": _ARRAY}},
    },
    206: {"description": "The object store does not answer: events that nodes hold."},
}


def cdap_routes(node: NodeApi, settings: PageSettings, clock: Clock) -> APIRouter:
    """The routes of the three verbs."""
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

    @router.get(
        "/{fqn}/{runId}/next",
        summary="Events of a run behind an offset, as CDAP gives them",
        response_class=Response,
        responses=_EVENTS,
    )
    async def following(
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
        if not fromOffset:
            return _reply(await _before(node, key, None, most, matches, encoder))
        place = _place(fromOffset)
        return _reply(await _after(node, key, place, most, matches, encoder))

    @router.get(
        "/{fqn}/{runId}/prev",
        summary="Events of a run before an offset, as CDAP gives them",
        response_class=Response,
        responses=_EVENTS,
    )
    async def preceding(
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
        place = _place(fromOffset) if fromOffset else None
        return _reply(await _before(node, key, place, most, matches, encoder))

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
            f"fromOffset is no offset: {offset[:80]!r}",
            field="fromOffset",
            hint="Pass `offset` of an event, or leave it out for the latest events.",
        ) from error


def _reply(found: _Found) -> Response:
    body, about = b"[%b]" % b",".join(found.events), silence(found.silent, held=found.held)
    return Response(body, 206 if found.held else 200, about, _JSON)


# --- reading --------------------------------------------------------------------------------


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
    """The events of a page and of all behind it."""
    page = first
    while True:
        yield await _events(node, key, page)
        if page.page.after is None:
            return
        page = await _page(node, key, after=page.page.after)


async def _after(
    node: NodeApi, key: RunKey, place: str, most: int, matches: Matches, encoder: EventEncoder
) -> _Found:
    """The first events behind the place that match."""
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
    """The last matching events before the place, or of the run; oldest first."""
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
        if page.page.missing and limit > 1:  # those next to the place did not fit
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
