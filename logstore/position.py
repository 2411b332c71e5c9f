"""Positions and cursors: how far a reader has read.

A **position** is a place in one node's journal: (node, file ULID, `pos`), where `pos`
is the node-wide running number of a line. The file's ULID distinguishes two folders
of which one is a copy of the other, so that both continue from the same number.

A **cursor** holds, per node, the last position seen, and no line of a node that it does not name
was seen. Where several nodes are on the store it also has the ULIDs of the last records that were
seen of each node's newest batches: a batch that a client sent to another node again is known by
them, even if the node that had it first is away, and however much came of the others meanwhile.

It is opaque to clients: `c3.` and base64url of a JSON list, so it is never mistaken for a line
number. Cursors of earlier versions, `c3.` with ULIDs of no node, `c2.` without ULIDs and `c1.`, are
still read. One with `c1.` need not name every node: all lines before the last line seen count as
seen too.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from logstore import ulid as ulids
from logstore.errors import InvalidCursor, InvalidInput

_PRESENT = "c3."
_WITHOUT_ULIDS = "c2."
_PARTIAL = "c1."
_PREFIXES = (_PRESENT, _WITHOUT_ULIDS, _PARTIAL)
MOST_NEWEST = 8
"""Of one node."""
MOST_NODES = 4
"""Of whose batches it has ULIDs."""
_NO_NODE = ""


@dataclass(frozen=True, slots=True)
class Position:
    """The last line seen of a node: its running number, and the journal file it stood in."""

    file: str
    pos: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """Per node the last position seen. An empty cursor has seen nothing.

    `newest` are ULIDs by node, of each of its newest batches that of the last record seen, the
    newest batch last; the one with the highest ULID that was seen is always among them. A cursor
    that is not `complete` (of an earlier version) has seen more than it names.
    """

    positions: Mapping[str, Position] = field(default_factory=dict)
    newest: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    complete: bool = True

    @property
    def last_records(self) -> tuple[int, ...]:
        """The ULIDs of all nodes in `newest`."""
        return tuple([ulid for found in self.newest.values() for ulid in found])

    def seen(self, node: str) -> int:
        """The highest `pos` of `node` that was seen, -1 if none was."""
        position = self.positions.get(node)
        return -1 if position is None else position.pos

    def advanced(self, node: str, position: Position, newest: Sequence[int] = ()) -> Cursor:
        """This cursor after seeing `position` of `node`, and these records as the last ones."""
        return replace(
            self,
            positions={**self.positions, node: position},
            newest=_joined(self.newest, {node: newest}) if newest else self.newest,
        )

    def joined(self, other: Cursor) -> Cursor:
        """This cursor after seeing all that `other` has seen."""
        later = {n: p for n, p in other.positions.items() if p.pos > self.seen(n)}
        newest = _joined(self.newest, other.newest)
        return replace(self, positions={**self.positions, **later}, newest=newest)

    def encode(self) -> str:
        """The text that a client passes back."""
        value = {node: [p.file, p.pos] for node, p in self.positions.items()}
        if not self.complete:
            return _PARTIAL + _base64(value)
        newest = {node: [ulids.encode(u) for u in found] for node, found in self.newest.items()}
        return _PRESENT + _base64([value, newest])

    @staticmethod
    def decode(text: str) -> Cursor:
        """The cursor that `text` encodes. Raises `InvalidCursor`."""
        if not text.startswith(_PREFIXES):
            raise InvalidCursor(f"not a cursor: {text[:80]!r}", field="cursor")
        body = text[len(_PRESENT) :]
        try:
            value = orjson.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
            newest: dict[str, list[str]] | list[str] = {}
            if text.startswith(_PRESENT):
                value, newest = value
            positions = {str(node): _position(entry) for node, entry in value.items()}
            return Cursor(positions, _newest(newest), complete=not text.startswith(_PARTIAL))
        except (ValueError, TypeError, AttributeError, binascii.Error, InvalidInput) as error:
            raise InvalidCursor(f"not a cursor: {text[:80]!r}", field="cursor") from error


def _base64(value: Any) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=")


def _newest(found: dict[str, list[str]] | list[str]) -> dict[str, tuple[int, ...]]:
    """What `encode` has written; a list is of an earlier version."""
    if isinstance(found, list):
        found = {_NO_NODE: found} if found else {}
    return {
        str(node): tuple([int(ulids.parse(text)) for text in texts[-MOST_NEWEST:]])
        for node, texts in list(found.items())[-MOST_NODES:]
    }


def _joined(
    first: Mapping[str, Sequence[int]], then: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """The newest of each node; of many nodes those with the highest."""
    found = {n: _joined_of_node(first.get(n, ()), then.get(n, ())) for n in {**first, **then}}
    kept = sorted(found, key=lambda node: max(found[node], default=0))[-MOST_NODES:]
    return {node: found[node] for node in found if node in kept}


def _joined_of_node(first: Sequence[int], then: Sequence[int]) -> tuple[int, ...]:
    """The newest of both and the highest, each batch once, with the last of its records."""
    found: dict[int, int] = {}
    for ulid in [*first, *then]:
        batch = ulids.batch_of(ulid)
        found[batch] = max(ulid, found.pop(batch, 0))
    kept = list(found.values())[-MOST_NEWEST:]
    highest = max(found.values(), default=0)
    if found and highest not in kept:
        kept[0] = highest
    return tuple(kept)


def _position(entry: Any) -> Position:
    file, pos = entry
    if not isinstance(file, str) or not isinstance(pos, int) or pos < 0:
        raise ValueError("a position is a file and a number")
    return Position(file, pos)
