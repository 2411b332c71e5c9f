"""The place of a reader who was given lines that nodes hold, while the object store was silent.

What the store has of the run was not known then, so nothing is said of lines in it. The place has
where the reader really was (`before`), the lines that it was given since by their positions
(`seen`), and their number. Once the store answers it is settled (`cursors.settled`): if the lines
given are exactly those that follow `before`, the reader goes on behind them. If the store has other
lines between, it goes on at `before`, and is given some lines again rather than none of the others.

It is opaque to clients: `h1.` and base64url of the JSON [before, seen, lines]. Pages give it as a
number, as they give cursors.
"""

from __future__ import annotations

import base64
from typing import NamedTuple

import orjson

from logstore.errors import InvalidCursor
from logstore.position import Cursor

PREFIX = "h1."


class HeldPlace(NamedTuple):
    """`before`: a cursor, a line number, or None for the beginning; `lines` were given behind."""

    before: Cursor | int | None
    seen: Cursor
    lines: int

    def encode(self) -> str:
        """The text that a client passes back."""
        before = self.before.encode() if isinstance(self.before, Cursor) else self.before
        body = orjson.dumps([before, self.seen.encode(), self.lines])
        return PREFIX + base64.urlsafe_b64encode(body).decode().rstrip("=")

    @staticmethod
    def decode(text: str) -> HeldPlace:
        """The place that `text` encodes. Raises `InvalidCursor`."""
        try:
            body = text.removeprefix(PREFIX)
            value = orjson.loads(base64.b64decode(body + "=" * (-len(body) % 4), b"-_", True))
            before, seen, lines = value
            if not isinstance(lines, int) or not isinstance(seen, str) or lines < 0:
                raise ValueError(text)
            if isinstance(before, str):
                before = Cursor.decode(before)
            elif not (before is None or (isinstance(before, int) and before >= 0)):
                raise ValueError(text)
            return HeldPlace(before, Cursor.decode(seen), lines)
        except (ValueError, TypeError) as error:
            raise InvalidCursor(f"not a cursor: {text[:80]!r}", field="cursor") from error


def given(where: HeldPlace | Cursor | int | None, seen: Cursor, lines: int) -> HeldPlace:
    """The place of a reader at `where` that was given so many more lines, and has seen `seen`."""
    if isinstance(where, HeldPlace):
        return HeldPlace(where.before, where.seen.joined(seen), where.lines + lines)
    return HeldPlace(where, seen, lines)
