"""Watermarks: up to which segment a node's lines are in their runs' chunks.

`coordination/text/{node}`, a JSON object changed by compare-and-swap: `seq` (all segments
up to it are in chunks, or left out as duplicate, deleted or expired), `pos` (one past the
last line of those), `low` (the low watermark: the lowest segment that is kept), `version` (a
fresh ULID).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from logstore import keys
from logstore.checked import decode_checked, encode_checked
from logstore.errors import Damaged
from logstore.objects.store import ObjectStore
from logstore.swap import Document, swap


@dataclass(frozen=True, slots=True)
class Watermark:
    """A node's watermark; all numbers are zero if none was stored yet."""

    seq: int = 0
    pos: int = 0
    low: int = 0
    version: str = ""


def decode_watermark(body: bytes) -> Watermark:
    """The watermark that `body` holds. Raises `Damaged`."""
    try:
        value = decode_checked(body)
        mark = Watermark(value["seq"], value["pos"], value["low"], value["version"])
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"not a watermark: {error}") from error
    numbers = (mark.seq, mark.pos, mark.low)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise Damaged(f"not a watermark: its numbers are {numbers}")
    return mark


async def read_watermark(store: ObjectStore, node: str) -> Watermark:
    """The node's watermark. Raises `Damaged`, `StoreUnavailable`."""
    found = await _document(store, node).read()
    return Watermark() if found is None else found.value


async def raise_watermark(
    store: ObjectStore,
    node: str,
    *,
    fresh_id: Callable[[], str],
    seq: int = 0,
    pos: int = 0,
    low: int = 0,
) -> Watermark:
    """Raises each number that is above the stored one; none ever falls.

    Raises `Damaged`, `StoreUnavailable`, `OutcomeUnknown`.
    """

    async def change(found: Watermark | None) -> Watermark | None:
        mark = found or Watermark()
        raised = replace(
            mark, seq=max(mark.seq, seq), pos=max(mark.pos, pos), low=max(mark.low, low)
        )
        return None if raised == mark else replace(raised, version=fresh_id())

    stored = await swap(_document(store, node), change)
    return Watermark() if stored is None else stored.value


def _document(store: ObjectStore, node: str) -> Document[Watermark]:
    return Document(store, keys.watermark(node), decode_watermark, encode_checked)
