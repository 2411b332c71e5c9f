"""`GET /logs/{fqn}/{runId}`: a page of a run's lines, in OpenMetadata's shape with extra keys.

With `format=ndjson` the reply is the page's records. With `order=ulid` lines, or records, are in
the order of their producers. A cursor that this service never gave out counts as the beginning, as
in upstream. These two parameters, which upstream does not have, refuse such a cursor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from fastapi import APIRouter, Header, Query
from fastapi.responses import Response
from pydantic import BaseModel

from logstore import ulid
from logstore.batch import RunKey
from logstore.errors import InvalidCursor, InvalidInput, NotFound
from service.http.node import NodeApi
from service.http.page_bodies import (
    NDJSON,
    ORDER_HELP,
    RECORD_BYTES,
    TEXT_BYTES,
    Compressed,
    Order,
    Plain,
    page_response,
    record_page,
    silence,
    wants_ndjson,
)
from service.http.settings import PageSettings
from service.http.targets import BASE, run_key
from service.runs.outcomes import state_without_lines
from service.runs.pages import NoLines, Page
from service.runs.records import RecordPage


class LogPage(BaseModel):
    """Lines joined by newlines, without one behind the last."""

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
    """True while the run is being written to; absent otherwise."""
    totalLines: int  # noqa: N815 -- the wire's spelling
    totalBytes: int  # noqa: N815
    state: str
    silent: list[str] | None = None
    """Nodes that do not answer, whose newest lines are not there; absent if there are none."""
    store: Literal["silent"] | None = None
    """The object store does not answer: all is of lines that nodes hold; absent otherwise."""
    before: str | None
    """Pass it as `before` for the page in front of this one; null at the beginning."""
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
        tail: Annotated[int | None, Query(description="The last so many lines.", ge=1)] = None,
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

        def rest(first: Page, last: Page) -> dict[str, Any]:
            return _rest(first, last) | ({"compressed": True} if compressed else {})

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
                stats = _rest if by_ulid else _rest_of_records
                return await record_page(node, key, records, stats, by_ulid=by_ulid)
            if by_ulid:
                found = (await _records(node, key, start, most, settings, True)).as_text()
            else:
                found = await _read(node, key, start, most, settings)
        except NotFound as error:
            if start.at is not None:  # whoever has the id of a record knows that there was one
                raise
            # As upstream: a reader may come before the first line, but not to no pipeline.
            silent = error.silent if isinstance(error, NoLines) else ()
            report = await node.status.get(key)
            if report is None and not silent:
                await must_know(node, key.fqn)
            empty = _EMPTY if report is None else _EMPTY | {"state": state_without_lines(report)}
            return _nothing(empty, silent) if ndjson else _json(empty | named(silent))
        encoder = Compressed() if compressed else Plain()
        more = partial(_more_by_ulid, node, key) if by_ulid else partial(more_lines, node, key)
        return page_response(
            more, found, "logs", rest, encoder=encoder, headers=silence((), held=found.held)
        )

    return router


class PageStart(NamedTuple):
    """The beginning of a page, given in one of these ways; without any, that of the run."""

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
            f"at is no ULID: {at[:80]!r}", field="at", hint="Searches give each record's `ulid`."
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
    """The first piece of a page as records."""
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
) -> Page:
    found = await node.run_logs.records.page(
        key, after=after, limit=limit, by_ulid=True, max_bytes=max_bytes, stored=True
    )
    return found.as_text()


async def more_lines(
    node: NodeApi, key: RunKey, after: str | None, limit: int, max_bytes: int
) -> Page:
    """The next piece of a page, which breaks off without the store. Raises as reading does."""
    return await node.run_logs.reader.page(
        key, after=after, limit=limit, max_bytes=max_bytes, stored=True
    )


async def _read(
    node: NodeApi, key: RunKey, start: PageStart, limit: int, settings: PageSettings
) -> Page:
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


async def page_from_start(node: NodeApi, key: RunKey, after: str | None, limit: int) -> Page:
    """The first piece of the page after a cursor; an unknown cursor is the start, as upstream.

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


def total_of(page: Page) -> int:
    """The length of the run in upstream's units: bytes once closed, lines before."""
    return page.total_bytes if page.state == "closed" else page.total_lines


def _rest(first: Page, last: Page) -> dict[str, Any]:
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
    if last.streaming:
        value["streaming"] = True
    if first.record_line is not None and not first.held:
        value |= {"line": first.record_line, "firstLine": first.first_line}
    return value | named([*first.silent, *last.silent], held=last.held)


def _rest_of_records(first: Page, last: Page) -> dict[str, Any]:
    """A page of records may begin before the line that was asked for, within its record."""
    return _rest(first, last) | ({} if first.held else {"firstLine": first.first_line})


def named(silent: Iterable[str], *, held: bool = False) -> dict[str, Any]:
    """Nodes that did not answer, if there are any; and the store, if all is of lines `held`."""
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
