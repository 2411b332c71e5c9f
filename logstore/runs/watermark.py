"""Text marks: up to which segment a node's lines are in their runs' chunks.

`coordination/text/{node}`, a JSON object changed by compare-and-swap: `seq` (all segments
up to it are in chunks, or left out as duplicate, deleted or expired), `pos` (one past the
last line of those), `low` (the lowest segment that is kept), `version` (a fresh ULID).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from logstore import keys
from logstore.errors import Damaged, NotFound, OutcomeUnknown, PreconditionFailed
from logstore.objects.ambiguous import Unclear
from logstore.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class TextMark:
    """A node's mark; all zero if it has none yet."""

    seq: int = 0
    pos: int = 0
    low: int = 0
    version: str = ""


def decode_text_mark(body: bytes) -> TextMark:
    """The mark that `body` holds. Raises `Damaged`."""
    try:
        value = orjson.loads(body)
        mark = TextMark(value["seq"], value["pos"], value["low"], value["version"])
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"not a text mark: {error}") from error
    numbers = (mark.seq, mark.pos, mark.low)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise Damaged(f"not a text mark: its numbers are {numbers}")
    return mark


async def read_text_mark(store: ObjectStore, node: str) -> TextMark:
    """The node's mark. Raises `Damaged`, `StoreUnavailable`."""
    return (await _read(store, node))[0]


async def raise_text_mark(
    store: ObjectStore,
    node: str,
    *,
    fresh_id: Callable[[], str],
    seq: int = 0,
    pos: int = 0,
    low: int = 0,
) -> TextMark:
    """Raises each number that is above the stored one; none ever falls.

    Raises `Damaged`, `StoreUnavailable`, `OutcomeUnknown`.
    """
    unclear = Unclear()
    while True:
        mark, etag = await _read(store, node)
        raised = replace(
            mark, seq=max(mark.seq, seq), pos=max(mark.pos, pos), low=max(mark.low, low)
        )
        if raised == mark:
            return mark
        raised = replace(raised, version=fresh_id())
        body = orjson.dumps(raised)
        try:
            if etag is None:
                await store.put(keys.text_mark(node), body, if_absent=True)
            else:
                await store.put(keys.text_mark(node), body, if_match=etag)
        except PreconditionFailed:
            continue
        except OutcomeUnknown as error:
            unclear.bear(error)
            continue  # the next look says whether it is in
        return raised


async def _read(store: ObjectStore, node: str) -> tuple[TextMark, str | None]:
    try:
        info, body = await store.get(keys.text_mark(node))
    except NotFound:
        return TextMark(), None
    return decode_text_mark(body), info.etag
