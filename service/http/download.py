"""Serves `GET /logs/{fqn}/{runId}/download`: the whole text of a run, open or closed.

Stored bytes have a strong ETag and can be requested by ranges. The total of an open run is not
known, so its Content-Range ends in `*`. If the text breaks off, the connection ends, so that no
client takes a part for the whole.

Ranges and validators follow RFC 9110. One range is served; a request for several ranges gets the
whole text, which the RFC allows.

The header `Tailrace-Silent` names nodes that did not answer which lines they have of an open run.
If the store does not answer, the status is 206 and `Tailrace-Store: silent` says that the text has
only the lines that nodes hold. If the store stops answering later, the text breaks off.

`format=ndjson` and `order=ulid` are generated while they are sent, without ranges and ETags.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from isal import isal_zlib

from service.http.api import NodeApi
from service.http.errors import HttpError
from service.http.pages import (
    NDJSON,
    ORDER_HELP,
    Order,
    silence,
    wants_ndjson,
    whole_run,
    whole_text,
)
from service.http.targets import BASE, run_key
from service.run_log.read_text import LogSize
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound, Unavailable

_RANGE = re.compile(r"bytes\s*=\s*(\d*)\s*-\s*(\d*)", re.IGNORECASE)
_MAX_DIGITS = 18

_GZIP = 16 + isal_zlib.MAX_WBITS
_TYPE = "text/plain; charset=utf-8"
_STRING = {"schema": {"type": "string"}}
_BYTES = {"content": {"text/plain": _STRING, NDJSON: _STRING}}


class ByteRange(NamedTuple):
    """Bytes from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """Parses the Range header for a text of `size` bytes; None: send all.

    Raises `HttpError` 416 if the range begins past the end.
    """
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None:
        return None
    first, last = match.groups()
    if not (first or last) or max(len(first), len(last)) > _MAX_DIGITS:
        return None
    if not first:
        span = ByteRange(max(0, size - int(last)), size - 1)
        return _satisfiable(span, size, empty=int(last) == 0)
    if last and int(last) < int(first):
        return None
    return _satisfiable(ByteRange(int(first), min(int(last or size), size - 1)), size)


def _satisfiable(span: ByteRange, size: int, *, empty: bool = False) -> ByteRange:
    if empty or span.first >= size:
        raise HttpError(
            416,
            f"the range begins past the end of {size} bytes",
            headers=[("content-range", f"bytes */{size}")],
        )
    return span


def matches(header: str | None, etags: list[str]) -> bool:
    """Returns true if an If-None-Match or If-Range header names one of the (quoted) ETags."""
    if header is None:
        return False
    given = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in given or any(tag in given for tag in etags)


def accepts_gzip(header: str | None) -> bool:
    """Returns true if Accept-Encoding names gzip with a weight other than zero."""
    for part in (header or "").lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() in ("gzip", "x-gzip"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class _Validators(NamedTuple):
    """The ETags of the present text, plain and compressed."""

    plain: str | None
    gzip: str | None


def download_routes(node: NodeApi) -> APIRouter:
    """Returns the route of a run's whole text."""
    router = APIRouter(prefix=BASE, tags=["runs"])

    @router.get(
        "/{fqn}/{runId}/download",
        summary="The whole text of a run",
        response_class=StreamingResponse,
        responses={
            200: {"description": "All lines.", **_BYTES},
            206: {
                "description": "The bytes that Range asked for. With `Tailrace-Store: silent`"
                " the object store does not answer, and the text has only lines"
                " that nodes hold.",
                **_BYTES,
            },
            304: {"description": "The text is unchanged since If-None-Match."},
            416: {"description": "The range begins past the end."},
        },
    )
    @router.head("/{fqn}/{runId}/download", include_in_schema=False)
    async def download(
        fqn: str,
        runId: str,  # noqa: N803
        request: Request,
        order: Annotated[Order, Query(description=ORDER_HELP)] = "arrival",
        format: Annotated[  # noqa: A002
            Literal["text", "ndjson"] | None,
            Query(description="`ndjson`: an object per record. Without it, by `Accept`."),
        ] = None,
    ) -> Response:
        key = run_key(fqn, runId)
        size = await node.run_logs.reader.size(key)
        must_exist(key, size)
        held, status = size.held, 206 if size.held else 200
        if wants_ndjson(format, request.headers.get("accept")):
            silent = size.silent
            response = await _records(node, key, order == "ulid", request, silent, held=held)
        elif order == "ulid":
            text = whole_text(node, key, held=held)
            response = _streamed(text, key, _TYPE, request.headers, status)
        else:
            response = answer(node, key, size, request.headers)
        response.headers.update(silence(size.silent, held=held))
        return without_body(response) if request.method == "HEAD" else response

    return router


def must_exist(key: RunKey, size: LogSize) -> None:
    """Raises `NotFound` for a run without lines, `Unavailable` if a silent node may have some."""
    if size.state not in ("none", "deleted"):
        return
    if size.state == "none" and size.silent:
        raise not_said(f"no run {key.run!r} of {key.fqn!r} is known", size.silent)
    raise NotFound(f"no run {key.run!r} of {key.fqn!r}")


def not_said(what: str, silent: Iterable[str]) -> Unavailable:
    """Returns the error for missing information that silent nodes might have."""
    return Unavailable(
        f"{what}, and these nodes do not answer: {', '.join(sorted(silent))}",
        hint="Try again when they do, or let them go (tailrace leases forget-node).",
    )


async def _records(
    node: NodeApi,
    key: RunKey,
    by_ulid: bool,
    request: Request,
    silent: Sequence[str],
    *,
    held: bool,
) -> Response:
    if request.method == "HEAD":
        return _streamed(_nothing(), key, NDJSON, request.headers, 206 if held else 200)
    status, lines = await whole_run(node, key, by_ulid=by_ulid, silent=silent, held=held)
    return _streamed(lines, key, NDJSON, request.headers, status)


async def _nothing() -> AsyncIterator[bytes]:
    for piece in list[bytes]():
        yield piece


def _streamed(
    pieces: AsyncIterator[bytes],
    key: RunKey,
    media_type: str,
    headers: Mapping[str, str],
    status: int = 200,
) -> Response:
    """Returns a response without ranges and validators: its bytes are made for this reply."""
    common = {"vary": "Accept-Encoding", "cache-control": "no-cache"}
    suffix = "ndjson" if media_type == NDJSON else "txt"
    common["content-disposition"] = f'attachment; filename="{_file_name(key, suffix)}"'
    if accepts_gzip(headers.get("accept-encoding")):
        common["content-encoding"] = "gzip"
        pieces = _compressed(pieces)
    return StreamingResponse(pieces, status_code=status, headers=common, media_type=media_type)


def answer(node: NodeApi, key: RunKey, size: LogSize, headers: Mapping[str, str]) -> Response:
    """Returns the reply for the request's headers: the whole text, a part, compressed text, or 304.

    If the store does not answer, the status is 206 and the text has the lines that nodes hold.
    """
    if size.held:
        return _streamed(node.run_logs.reader.held_text(key), key, _TYPE, headers, 206)
    whole = size.stored_bytes == size.total_bytes
    tags = _validators(size.etag)
    common = {"accept-ranges": "bytes", "vary": "Accept-Encoding", "cache-control": "no-cache"}
    if whole and tags.plain and tags.gzip:
        if matches(headers.get("if-none-match"), [tags.plain, tags.gzip]):
            return Response(status_code=304, headers={**common, "etag": tags.plain})
        common["etag"] = tags.plain
    span = _span(headers, size, tags)
    if span is not None and tags.plain is not None:
        total = str(size.total_bytes) if whole and not size.silent else "*"
        common["etag"] = tags.plain
        return _part(node, key, size, span, total, common)
    common["content-disposition"] = f'attachment; filename="{_file_name(key, "txt")}"'
    text = node.run_logs.reader.download(key, measured=size)
    if accepts_gzip(headers.get("accept-encoding")):
        if "etag" in common and tags.gzip:
            common["etag"] = tags.gzip
        common["content-encoding"] = "gzip"
        return StreamingResponse(_compressed(text), headers=common, media_type=_TYPE)
    if whole:
        common["content-length"] = str(size.total_bytes)
    return StreamingResponse(text, headers=common, media_type=_TYPE)


def without_body(response: Response) -> Response:
    """Returns the same status and headers without reading the text."""
    head = Response(status_code=response.status_code)
    head.raw_headers = response.raw_headers
    return head


def _validators(etag: str | None) -> _Validators:
    if etag is None:
        return _Validators(None, None)
    bare = etag.strip('"')
    return _Validators(f'"{bare}"', f'"{bare}-gzip"')


def _span(headers: Mapping[str, str], size: LogSize, tags: _Validators) -> ByteRange | None:
    wanted = headers.get("range")
    if wanted is None or tags.plain is None or not size.stored_bytes:
        return None
    condition = headers.get("if-range")
    if condition is not None and condition.strip() != tags.plain:
        return None
    return parse_range(wanted, size.stored_bytes)


def _part(
    node: NodeApi, key: RunKey, size: LogSize, span: ByteRange, total: str, common: dict[str, str]
) -> StreamingResponse:
    return StreamingResponse(
        node.run_logs.reader.download(key, offset=span.first, size=span.size, measured=size),
        status_code=206,
        headers={
            **common,
            "content-range": f"bytes {span.first}-{span.last}/{total}",
            "content-length": str(span.size),
        },
        media_type=_TYPE,
    )


async def _compressed(text: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    stream = isal_zlib.compressobj(1, isal_zlib.DEFLATED, _GZIP)
    async for piece in text:
        compressed = await asyncio.to_thread(stream.compress, piece)
        if compressed:
            yield compressed
    yield stream.flush()


def _file_name(key: RunKey, suffix: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", f"{key.fqn}_{key.run}")[:150] + f".{suffix}"
