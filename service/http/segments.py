"""Serves `/segments/…`: consumer groups for programs that have nothing but HTTP.

`POST /segments/next` leases a segment. `GET` is an alias for one more version, and must not be
cached; a HEAD of it is refused. A consumer that disconnects while it waits gets no lease.

`GET /segments/{id}` returns the records of a segment. It takes no lease.

Parquet has a Content-Length, a strong ETag and ranges, so a client notices a body that broke off
and can continue it. ndjson and text are generated while they are sent. If they break off, the
connection ends without the last chunk. `Tailrace-Rows` is the expected number of records, unless a
deletion removed some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

import xxhash
from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from service.http.authorization import require_all, visible
from service.http.download import ByteRange, matches, parse_range, without_body
from service.http.errors import HttpError
from service.http.query import accepted_format, unless_gone
from service.http.segment_bodies import (
    DeletionPage,
    Done,
    Forgotten,
    GroupDetails,
    GroupList,
    NextSegment,
    Renewed,
    Retried,
    SegmentPage,
    deletion_page,
    given_segment,
    group_details,
    group_row,
    renewed,
    segment_row,
)
from service.query.output import Ndjson, ResultEncoder, Text
from service.queue.catalog import parse_id
from service.queue.contents import Contents, OpenedSegment
from service.queue.queue import SegmentQueue
from tailrace.coordination.groups import GroupStart
from tailrace.logstore.errors import InvalidInput

PARQUET: Final = "application/vnd.apache.parquet"
_OUTPUTS: Final[Mapping[str, Callable[[], ResultEncoder]]] = {"ndjson": Ndjson, "text": Text}
_MAX_DELETIONS: Final = 10_000
_BODIES: Final[dict[str, Any]] = {
    "application/x-ndjson": {"schema": {"type": "string"}},
    "text/plain": {"schema": {"type": "string"}},
    PARQUET: {"schema": {"type": "string", "format": "binary"}},
}


def reading_routes(contents: Callable[[], Contents]) -> APIRouter:
    """Returns the route of a segment's records, for GET and HEAD."""
    routes = APIRouter(prefix="/segments", tags=["segments"])

    @routes.get(
        "/deletions",
        summary="Deleted lines, which a consumer must remove",
        response_model=DeletionPage,
        responses={304: {"description": "The page is unchanged since If-None-Match."}},
    )
    async def deletions(
        request: Request,
        after: Annotated[str | None, Query(description="`next` of the previous page.")] = None,
        limit: Annotated[int, Query(ge=1, le=_MAX_DELETIONS)] = _MAX_DELETIONS,
    ) -> Response:
        names, found = visible(request), await contents().deleted()
        if names is not None:
            found = [one for one in found if names.hold(one[0])]
        page = deletion_page(found, after, limit)
        body = page.model_dump_json().encode()
        tag = f'"{xxhash.xxh3_128_hexdigest(body)}"'
        headers = {"etag": tag, "cache-control": "no-cache"}
        if matches(request.headers.get("if-none-match"), [tag]):
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type="application/json")

    @routes.get(
        "/{id}",
        summary="The records of a segment",
        response_class=StreamingResponse,
        responses={
            200: {"description": "All its records but deleted ones.", "content": _BODIES},
            206: {"description": "The bytes of the Parquet file that Range asked for."},
            304: {"description": "The segment is unchanged since If-None-Match."},
            416: {"description": "The range begins past the end."},
        },
    )
    @routes.head("/{id}", include_in_schema=False)
    async def read(
        request: Request,
        id: str,  # noqa: A002
        format: Annotated[  # noqa: A002
            Literal["parquet", "ndjson", "text"] | None,
            Query(description="Without it, by `Accept`; ndjson if that names none."),
        ] = None,
    ) -> Response:
        name = parse_id(id)
        chosen = format or accepted_format(request.headers.get("accept", ""))
        opened = await contents().open(name)
        require_all(request, {run.key.fqn for run in opened.footer.runs}, f"the segment {id}")
        response = await _answer(contents(), opened, chosen, request.headers)
        return without_body(response) if request.method == "HEAD" else response

    return routes


async def _answer(
    contents: Contents, opened: OpenedSegment, chosen: str, headers: Mapping[str, str]
) -> Response:
    tag = f'"{opened.etag}"' if chosen == "parquet" else f'"{opened.etag}-{chosen}"'
    common = {"etag": tag, "vary": "Accept", "cache-control": "no-cache"}
    if not opened.deleted:
        common["tailrace-rows"] = str(opened.footer.rows)
    if matches(headers.get("if-none-match"), [tag]):
        return Response(status_code=304, headers=common)
    if chosen != "parquet":
        output = _OUTPUTS[chosen]()
        await opened.stored.check()
        records = contents.records(opened, output)
        return StreamingResponse(records, headers=common, media_type=output.media_type)
    made = await contents.rewritten(opened) if opened.deleted else None
    size = opened.info.size if made is None else len(made.body)
    span = _span(headers, size, tag)
    common["accept-ranges"] = "bytes"
    if span is not None:
        common["content-range"] = f"bytes {span.first}-{span.last}/{size}"
    first, length = (0, size) if span is None else (span.first, span.size)
    status = 200 if span is None else 206
    stored = made.part(first, length) if made else contents.stored(opened, first, length)
    common["content-length"] = str(length)
    return StreamingResponse(stored, status, headers=common, media_type=PARQUET)


def _span(headers: Mapping[str, str], size: int, tag: str) -> ByteRange | None:
    condition = headers.get("if-range")
    if condition is not None and condition.strip() != tag:
        return None
    return parse_range(headers.get("range"), size)


_NO_STORE: Final = {"cache-control": "no-store"}
_REASON_CHARACTERS: Final = 1000
_PAGE: Final = 100
_LEASE: Final = "Lease the oldest segment that the group has not consumed"
_LEASED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "A lease.", "model": NextSegment},
    204: {"description": "No segment came within `wait`."},
    409: {"description": "`group-evicted`: its place is lost until somebody resets it."},
    429: {"description": "`over-quota`: too many groups, or too many new ones of this address."},
}
_MAX_PAGE: Final = 1000

Group = Annotated[str, Query(description="The consumer group.")]
Epoch = Annotated[int, Query(description="Epoch of the lease.")]


def queue_routes(queue: Callable[[], SegmentQueue]) -> APIRouter:
    """Returns the routes of consumers; they call `queue` at each request.

    A node may start after its app.
    """
    routes = APIRouter(prefix="/segments", tags=["segments"])

    @routes.post("/next", summary=_LEASE, response_class=Response, responses=_LEASED)
    @routes.get(
        "/next",
        summary=f"{_LEASE}: alias of POST",
        response_class=Response,
        responses=_LEASED,
        deprecated=True,
    )
    async def next_segment(
        request: Request,
        group: Group,
        wait: Annotated[float, Query(ge=0, description="Seconds to wait for a segment.")] = 0,
        lease_seconds: Annotated[
            float | None,
            Query(gt=0, description="Seconds of the lease; default: `queue.lease_seconds`."),
        ] = None,
        start: Annotated[
            GroupStart, Query(description="Where a new group begins.")
        ] = GroupStart.OLDEST,
    ) -> Response:
        current = queue()
        seconds = _lease_seconds(current, lease_seconds)
        asked = current.next(
            group,
            wait_seconds=min(wait, current.settings.max_wait_seconds),
            lease_seconds=seconds,
            start=start,
            peer=request.client.host if request.client else "",
        )
        given = await unless_gone(asked, request.receive)
        if given is None:
            return Response(status_code=204, headers=_NO_STORE)
        found = given_segment(group, given, seconds)
        return Response(found.model_dump_json(), headers=_NO_STORE, media_type="application/json")

    @routes.head("/next", include_in_schema=False)
    async def next_head() -> Response:
        raise HttpError(405, "HEAD would lease a segment: use POST")

    @routes.get("", summary="State of every segment and group", response_model=SegmentPage)
    async def segments(
        after: Annotated[str | None, Query(description="Id; the page begins after it.")] = None,
        limit: Annotated[int, Query(ge=1, le=_MAX_PAGE, description="Segments at most.")] = _PAGE,
        groups: Annotated[
            bool, Query(description="Whether to include the state of each segment for each group.")
        ] = True,
    ) -> SegmentPage:
        return await page_of(queue(), after, limit, groups=groups)

    @routes.post("/{id}/commit", summary="Commit a segment", response_model=Done)
    async def commit(id: str, group: Group, epoch: Epoch) -> Done:  # noqa: A002
        name = parse_id(id)
        await queue().commit(group, name, epoch)
        return Done(id=name.id, group=group, epoch=epoch, message="Segment committed")

    @routes.post("/{id}/failed", summary="Return a segment", response_model=Done)
    async def failed(
        id: str,  # noqa: A002
        group: Group,
        epoch: Epoch,
        reason: Annotated[
            str, Query(max_length=_REASON_CHARACTERS, description="The reason.")
        ] = "",
    ) -> Done:
        name = parse_id(id)
        await queue().fail(group, name, epoch, reason)
        return Done(id=name.id, group=group, epoch=epoch, message="Segment given back")

    @routes.post("/{id}/renew", summary="Renew the lease of a segment", response_model=Renewed)
    async def renew(
        id: str,  # noqa: A002
        group: Group,
        epoch: Epoch,
        lease_seconds: Annotated[
            float | None,
            Query(gt=0, description="Seconds from now; default: `queue.lease_seconds`."),
        ] = None,
    ) -> Renewed:
        current, name = queue(), parse_id(id)
        seconds = _lease_seconds(current, lease_seconds)
        return renewed(group, await current.renew(group, name, epoch, seconds))

    return routes


def group_routes(queue: Callable[[], SegmentQueue]) -> APIRouter:
    """Returns the routes of operators who look after groups."""
    routes = APIRouter(prefix="/segments/groups", tags=["segments"])

    @routes.get("", summary="All consumer groups", response_model=GroupList)
    async def groups() -> dict[str, Any]:
        current = queue()
        found = await current.report()
        rows = [group_row(g, current.catalog, current.now_ms()) for g in found]
        return {"groups": rows, "unreadable": sorted(current.unreadable)}

    @routes.get("/{group}", summary="A consumer group", response_model=GroupDetails)
    async def group(group: str) -> GroupDetails:
        current = queue()
        await current.catalog.within(current.settings.poll_seconds / 2)
        found = await current.group(group)
        return group_details(found, current.catalog, current.now_ms())

    @routes.post(
        "/{group}/reset",
        summary="Restart a group at the oldest segment that is kept, or with new segments only",
        response_model=GroupDetails,
    )
    async def reset(
        group: str, to: Annotated[GroupStart, Query(description="Where the group continues.")]
    ) -> GroupDetails:
        current = queue()
        found = await current.reset(group, to)
        return group_details(found, current.catalog, current.now_ms())

    @routes.post("/{group}/retry", summary="Retry failed segments", response_model=Retried)
    async def retry(
        group: str,
        segment: Annotated[str | None, Query(description="Its id; without it, all.")] = None,
    ) -> dict[str, Any]:
        chosen = await queue().retry(group, None if segment is None else [parse_id(segment)])
        return {"group": group, "retried": [name.id for name in chosen]}

    @routes.delete("/{group}", summary="Forget a group", response_model=Forgotten)
    async def forget(group: str) -> dict[str, Any]:
        await queue().forget(group)
        return {"group": group, "message": "Group forgotten"}

    return routes


async def page_of(
    queue: SegmentQueue, after: str | None, limit: int, *, groups: bool = True
) -> SegmentPage:
    """Returns groups, unless they are left out, and segments after an id, by node and number."""
    known = await queue.report() if groups else []
    catalog = queue.catalog
    await catalog.within(queue.settings.poll_seconds / 2)
    page, more = catalog.page(None if after is None else parse_id(after), limit)
    return SegmentPage(
        groups=[group_row(group, catalog, queue.now_ms()) for group in known],
        segments=[
            segment_row(name, listed, catalog.is_quarantined(name), known) for name, listed in page
        ],
        next=page[-1][0].id if more else None,
        waiting=sorted(catalog.waiting.values()),
    )


def _lease_seconds(queue: SegmentQueue, asked: float | None) -> float:
    if asked is not None and asked > queue.settings.max_lease_seconds:
        raise InvalidInput(
            f"lease_seconds is {asked:g}, at most {queue.settings.max_lease_seconds:g} are given",
            field="lease_seconds",
            hint="Renew the lease while the work goes on.",
        )
    return queue.settings.default_lease_seconds if asked is None else asked
