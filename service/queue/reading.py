"""`GET /segments/{id}`: the records of a segment. It takes no lease.

Parquet has a Content-Length, a strong ETag and ranges, so a body that broke off is seen and
can be continued. ndjson and text are made on the way; a break ends the connection without
the last chunk, and `Tailrace-Rows` says how many records there must be, unless a deletion
took some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from service.http.download import without_body
from service.http.ranges import Span, matches, parse_range
from service.query.output import Ndjson, Output, Text
from service.query.route import accepted_format
from service.queue.contents import Contents, Opened
from service.queue.segment import parse_id

PARQUET: Final = "application/vnd.apache.parquet"
_OUTPUTS: Final[Mapping[str, Callable[[], Output]]] = {"ndjson": Ndjson, "text": Text}
_BODIES: Final[dict[str, Any]] = {
    "application/x-ndjson": {"schema": {"type": "string"}},
    "text/plain": {"schema": {"type": "string"}},
    PARQUET: {"schema": {"type": "string", "format": "binary"}},
}


def reading_routes(contents: Callable[[], Contents]) -> APIRouter:
    """The route of a segment's records, for GET and HEAD."""
    routes = APIRouter(prefix="/segments", tags=["segments"])

    @routes.get(
        "/{id}",
        summary="The records of a segment",
        response_class=StreamingResponse,
        responses={
            200: {"description": "All its records but deleted ones.", "content": _BODIES},
            206: {"description": "The bytes of the Parquet file that Range asked for."},
            304: {"description": "If-None-Match names the segment as it is."},
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
        response = await _answer(contents(), opened, chosen, request.headers)
        return without_body(response) if request.method == "HEAD" else response

    return routes


async def _answer(
    contents: Contents, opened: Opened, chosen: str, headers: Mapping[str, str]
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


def _span(headers: Mapping[str, str], size: int, tag: str) -> Span | None:
    condition = headers.get("if-range")
    if condition is not None and condition.strip() != tag:
        return None
    return parse_range(headers.get("range"), size)
