"""Positions and cursors: how far a reader has read.

A **position** is a place in one node's journal: (node, file ULID, `pos`), where `pos`
is the node-wide running number of a line. The file's ULID distinguishes two folders
of which one is a copy of the other, so that both continue from the same number.

A **cursor** holds, per node, the last position seen. It is opaque to clients:
`c2.` and base64url of a JSON object, so it is never mistaken for a line number. A cursor with
`c1.` need not name every node: all lines before the last line seen count as seen too.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from logstore.errors import InvalidCursor

_COMPLETE = "c2."
_PARTIAL = "c1."


@dataclass(frozen=True, slots=True)
class Position:
    """The last line seen of a node: its running number, and the journal file it stood in."""

    file: str
    pos: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """Per node the last position seen. An empty cursor has seen nothing.

    A `complete` cursor has seen no line of a node that it does not name.
    """

    positions: Mapping[str, Position] = field(default_factory=dict)
    complete: bool = False

    def seen(self, node: str) -> int:
        """The highest `pos` of `node` that was seen, -1 if none was."""
        position = self.positions.get(node)
        return -1 if position is None else position.pos

    def advanced(self, node: str, position: Position) -> Cursor:
        """This cursor after seeing `position` of `node`."""
        return replace(self, positions={**self.positions, node: position})

    def joined(self, other: Cursor) -> Cursor:
        """This cursor after seeing all that `other` has seen."""
        later = {n: p for n, p in other.positions.items() if p.pos > self.seen(n)}
        return replace(self, positions={**self.positions, **later})

    def encode(self) -> str:
        """The text that a client passes back."""
        value = {node: [p.file, p.pos] for node, p in self.positions.items()}
        prefix = _COMPLETE if self.complete else _PARTIAL
        return prefix + base64.urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=")

    @staticmethod
    def decode(text: str) -> Cursor:
        """The cursor that `text` encodes. Raises `InvalidCursor`."""
        if not text.startswith((_COMPLETE, _PARTIAL)):
            raise InvalidCursor(f"not a cursor: {text[:80]!r}", field="cursor")
        body = text[len(_COMPLETE) :]
        try:
            value = orjson.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
            positions = {str(node): _position(entry) for node, entry in value.items()}
            return Cursor(positions, complete=text.startswith(_COMPLETE))
        except (ValueError, TypeError, AttributeError, binascii.Error) as error:
            raise InvalidCursor(f"not a cursor: {text[:80]!r}", field="cursor") from error


def _position(entry: Any) -> Position:
    file, pos = entry
    if not isinstance(file, str) or not isinstance(pos, int) or pos < 0:
        raise ValueError("a position is a file and a number")
    return Position(file, pos)
