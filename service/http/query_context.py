"""`GET /query?context=N`: hits with the records around them, as ndjson or text.

    ndjson   {…, "group":0, "hit":true}     a record, as without context
             …                              the records of a group stand together, oldest first
             {"stats": {…}}                 as without; `context` counts the records around hits
    text     message                        with a line `--` between two groups, as grep has it

All of it is there before the first byte is sent: there are at most 100 hits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
from fastapi import Request
from starlette.responses import Response

from logstore.errors import InvalidInput
from service.http.search_response import unless_gone
from service.query.context import MAX_AROUND, MAX_HITS, Around, Context, Group, context_request
from service.query.engine import QueryEngine
from service.query.output import lines
from service.query.request import CONTEXT_PARAMETERS, QueryRequest

_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": MAX_AROUND}
CONTEXT: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "context": (
        f"Each hit with so many records of its run around it; then `limit` is at most {MAX_HITS}.",
        _NUMBER,
    ),
    "context_before": ("So many before it; else as `context` says.", _NUMBER),
    "context_after": ("So many behind it; else as `context` says.", _NUMBER),
}
_MEDIA_TYPES: Final = {"ndjson": "application/x-ndjson", "text": "text/plain; charset=utf-8"}


def around(parameters: Mapping[str, str]) -> Around | None:
    """The context that is asked for, None without any. Raises `InvalidInput`."""
    both, before, behind = (_count(parameters, name) for name in CONTEXT_PARAMETERS)
    if (both, before, behind) == (None, None, None):
        return None
    return Around(
        before if before is not None else both or 0, behind if behind is not None else both or 0
    )


async def context_response(
    engine: QueryEngine, asked: QueryRequest, wanted: Around, form: str, request: Request
) -> Response:
    """The groups of hits. Raises as a search does."""
    if form not in _MEDIA_TYPES:
        raise InvalidInput(
            f"there is no context with format {form}",
            field="format",
            hint=f"Write one of {', '.join(_MEDIA_TYPES)}, or leave the context out.",
        )
    context = Context(engine, context_request(asked), wanted)
    groups = await unless_gone(context.groups(), request.receive)
    if groups is None:
        return Response(status_code=204)
    stats = context.stats
    body = _ndjson(groups, stats) if form == "ndjson" else _text(groups)
    return Response(
        body,
        200 if stats["complete"] else 206,
        {"tailrace-complete": str(stats["complete"]).lower()},
        _MEDIA_TYPES[form],
    )


def _count(parameters: Mapping[str, str], name: str) -> int | None:
    text = parameters.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= MAX_AROUND):
        raise InvalidInput(
            f"{name} is {text[:80]!r}",
            field=name,
            hint=f"Write a whole number from 0 to {MAX_AROUND}.",
        )
    return int(text)


def _ndjson(groups: Sequence[Group], stats: Mapping[str, Any]) -> bytes:
    marked = [_marked(number, group) for number, group in enumerate(groups)]
    return b"".join([*marked, orjson.dumps({"stats": stats}), b"\n"])


def _marked(number: int, group: Group) -> bytes:
    objects = b"".join([lines(batch) for batch in _batches(group)]).split(b"\n")[:-1]
    return b"".join(
        [
            b'%b,"group":%d,"hit":%b}\n' % (text[:-1], number, b"true" if hit else b"false")
            for text, hit in zip(objects, group.hits, strict=True)
        ]
    )


def _text(groups: Sequence[Group]) -> bytes:
    pieces = ["".join(f"{m}\n" for m in g.records.column("message").to_pylist()) for g in groups]
    return "--\n".join(pieces).encode()


def _batches(group: Group) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = group.records.combine_chunks().to_batches()
    return batches
