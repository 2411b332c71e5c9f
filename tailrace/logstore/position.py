"""Positions and cursors: how far a reader has read.

A **position** is a place in one node's journal: (node, file ULID, `pos`), where `pos`
is the node-wide running number of a line. The file's ULID distinguishes two folders
of which one is a copy of the other, so that both continue from the same number.

A **cursor** holds, per node, the last position seen, and no line of a node that it does not name
was seen. Where several nodes are on the store it also has the ULIDs of the last records that were
seen of each node's newest batches: a batch that a client sent to another node again is known by
them, even if the node that had it first is away, and however much came of the others meanwhile.

Where a run's log was sorted so that positions do not say which lines lie before others, a cursor
within it also has a line number: all lines of the log before that one were seen as well.

It is opaque to clients: `c4.` and base64url, so it is never mistaken for a line number, of

    length of the JSON | JSON [{node: [file, pos]}, [node, …]] | for each of these nodes its ULIDs

ULIDs are their number, then for each, in the order in which they were seen: its time as the
difference to the one before it (zigzag), the 55 bits of its batch in seven bytes, and the number of
its record. All numbers are LEB128. With a line number it is `c5.`, and the line number comes first.
Cursors of earlier versions, `c3.` with JSON alone, `c2.`
without ULIDs and `c1.`, are still read. One with `c1.` need not name every node: all lines before
the last line seen count as seen too.

Pages of a run give a cursor as a decimal number, because OpenMetadata's page compares the place of
its next page to the length of the run. The whole part is the number of the next line at the moment
of the page, for readers that count; this service ignores it. The fraction is a `1`, which keeps it
below the next whole number, and then the cursor's bytes: five digits for two, three for a last one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from tailrace.logstore import ulid as ulids
from tailrace.logstore.errors import InvalidCursor, InvalidInput

_WITH_LINE = "c5."
_PRESENT = "c4."
_WITH_TEXTS = "c3."
_WITHOUT_ULIDS = "c2."
_PARTIAL = "c1."
_PREFIXES = (_WITH_LINE, _PRESENT, _WITH_TEXTS, _WITHOUT_ULIDS, _PARTIAL)
_PREFIX_LENGTH = 3
_NUMBERED = re.compile(r"[0-9]{1,18}\.1([0-9]+)", re.ASCII)
_PAIR_DIGITS, _LAST_DIGITS = 5, 3
MOST_NEWEST = 32
"""ULIDs of one node."""
MOST_OF_ALL = 96
"""ULIDs of all nodes: past that, those have fewer that have most."""
MOST_NODES = 16
"""Of whose batches it has ULIDs."""
_BATCH_BYTES = 7
_BATCH_BITS = ulids.RANDOM_BITS - ulids.LINE_BITS
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
    newest batch last; the one with the highest ULID that was seen is always among them. All lines
    of the log before `line` were seen, too. A cursor that is not `complete` (of an earlier version)
    has seen more than it names.
    """

    positions: Mapping[str, Position] = field(default_factory=dict)
    newest: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    complete: bool = True
    line: int = 0

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
        line = max(self.line, other.line)
        return replace(self, positions={**self.positions, **later}, newest=newest, line=line)

    def encode(self) -> str:
        """The text that a client passes back."""
        positions = {node: [p.file, p.pos] for node, p in self.positions.items()}
        if not self.complete:
            return encode_cursor(_PARTIAL, positions)
        head = orjson.dumps([positions, list(self.newest)])
        body = bytearray(_number(len(head)) + head)
        for found in self.newest.values():
            _pack(body, found)
        if self.line:
            return _WITH_LINE + base64url(_number(self.line) + body)
        return _PRESENT + base64url(body)

    def encode_numbered(self, line: int) -> str:
        """The same text as a decimal number that follows the line number `line`."""
        return as_number(self.encode(), line)

    @staticmethod
    def decode(text: str) -> Cursor:
        """The cursor that `text` encodes, as a number or not. Raises `InvalidCursor`."""
        text = without_number(text)
        if not text.startswith(_PREFIXES):
            raise InvalidCursor(f"not a cursor: {text[:80]!r}", field="cursor")
        try:
            body = _body_of(text)
            newest: Mapping[str, Sequence[int]] = {}
            line = 0
            if text.startswith((_WITH_LINE, _PRESENT)):
                rest = _Body(body)
                if text.startswith(_WITH_LINE):
                    line = rest.number(50)
                value, newest = _unpacked(rest)
            else:
                value = orjson.loads(body)
                if text.startswith(_WITH_TEXTS):
                    value, newest = value[0], _of_texts(value[1])
            positions = {str(node): _position(entry) for node, entry in value.items()}
            complete = not text.startswith(_PARTIAL)
            return Cursor(positions, _bounded(newest), complete, line)
        except (ValueError, TypeError, LookupError, AttributeError, InvalidInput) as error:
            raise InvalidCursor(f"not a cursor: {text[:80]!r}", field="cursor") from error


def as_number(text: str, line: int) -> str:
    """A place, its kind in three characters and base64url, as a number that follows `line`."""
    return f"{line}.1{_digits(text[:_PREFIX_LENGTH].encode() + _body_of(text))}"


def without_number(text: str) -> str:
    """The text of which `as_number` made a number; any other text as it is."""
    numbered = _NUMBERED.fullmatch(text)
    return text if numbered is None else _text_of_digits(numbered[1])


def encode_cursor(kind: str, value: Any) -> str:
    """The text of any cursor: its kind, such as `q1.`, and base64url of the value's JSON."""
    return kind + base64url(orjson.dumps(value))


def decode_cursor(kind: str, text: str) -> Any:
    """The value of a cursor of this kind. Raises `ValueError`."""
    if not text.startswith(kind):
        raise ValueError("another kind of cursor")
    return orjson.loads(_of_base64url(text[len(kind) :]))


def base64url(value: bytes | bytearray) -> str:
    """Bytes as base64url without padding."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def _body_of(text: str) -> bytes:
    return _of_base64url(text[_PREFIX_LENGTH:])


def _of_base64url(body: str) -> bytes:
    return base64.b64decode(body + "=" * (-len(body) % 4), b"-_", validate=True)


def _digits(value: bytes) -> str:
    pairs = [f"{value[at] << 8 | value[at + 1]:05}" for at in range(0, len(value) - 1, 2)]
    return "".join([*pairs, f"{value[-1]:03}" if len(value) % 2 else ""])


def _text_of_digits(digits: str) -> str:
    """The text of a cursor, or a text that is none."""
    try:
        whole = len(digits) - len(digits) % _PAIR_DIGITS
        steps = range(0, whole, _PAIR_DIGITS)
        value = b"".join([int(digits[at : at + _PAIR_DIGITS]).to_bytes(2, "big") for at in steps])
        if len(digits) - whole == _LAST_DIGITS:
            value += int(digits[whole:]).to_bytes(1, "big")
        return value[:_PREFIX_LENGTH].decode("ascii") + base64url(value[_PREFIX_LENGTH:])
    except (OverflowError, UnicodeDecodeError):
        return digits


def _number(value: int) -> bytes:
    """LEB128."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _pack(body: bytearray, found: Sequence[int]) -> None:
    body += _number(len(found))
    before = 0
    for ulid in found:
        time = ulids.time_ms(ulid)
        step = time - before
        batch = ulid >> ulids.LINE_BITS & (1 << _BATCH_BITS) - 1
        body += _number(2 * step if step >= 0 else -2 * step - 1)
        body += batch.to_bytes(_BATCH_BYTES, "big") + _number(ulid - ulids.batch_of(ulid))
        before = time


class _Body:
    """Bytes that are read from their beginning. Raises `LookupError` at their end."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def number(self, bits: int) -> int:
        """A number of LEB128. Raises `ValueError` if it needs more bits."""
        value = shift = 0
        while True:
            byte = self._body[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if value >> bits:
                raise ValueError("a number is too large")
            if byte <= 0x7F:
                return value

    def bytes(self, count: int) -> bytes:
        """So many bytes."""
        found = self._body[self._at : self._at + count]
        self._at += count
        if len(found) < count:
            raise LookupError("bytes are missing")
        return found

    def end(self) -> None:
        """Raises `ValueError` if something is left."""
        if self._at < len(self._body):
            raise ValueError("bytes are left")


def _unpacked(rest: _Body) -> tuple[Any, dict[str, list[int]]]:
    """The positions as JSON, and the ULIDs of nodes."""
    positions, nodes = orjson.loads(rest.bytes(rest.number(32)))
    newest = {str(node): _ulids(rest) for node in nodes}
    rest.end()
    return positions, newest


def _ulids(body: _Body) -> list[int]:
    found, time = [], 0
    for _ in range(body.number(16)):
        step = body.number(50)
        time += -(step + 1) // 2 if step & 1 else step // 2
        batch = int.from_bytes(body.bytes(_BATCH_BYTES), "big")
        record = body.number(ulids.LINE_BITS)
        if not 0 <= time <= ulids.MAX_TIME_MS or batch >> _BATCH_BITS:
            raise ValueError("not a ULID")
        found.append(time << ulids.RANDOM_BITS | batch << ulids.LINE_BITS | record)
    return found


def _of_texts(found: dict[str, list[str]] | list[str]) -> dict[str, list[int]]:
    """ULIDs as an earlier version has written them; a list is of one before that."""
    if isinstance(found, list):
        found = {_NO_NODE: found} if found else {}
    return {str(node): [int(ulids.parse(text)) for text in texts] for node, texts in found.items()}


def _joined(
    first: Mapping[str, Sequence[int]], then: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """The newest of each node."""
    return _bounded({n: _of_both(first.get(n, ()), then.get(n, ())) for n in {**first, **then}})


def _of_both(first: Sequence[int], then: Sequence[int]) -> list[int]:
    """Each batch once, with the last of its records."""
    found: dict[int, int] = {}
    for ulid in [*first, *then]:
        batch = ulids.batch_of(ulid)
        found[batch] = max(ulid, found.pop(batch, 0))
    return list(found.values())


def _bounded(found: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """The newest and the highest of each node; of many nodes those with the highest."""
    if len(found) > MOST_NODES:
        kept = sorted(found, key=lambda node: max(found[node], default=0))[-MOST_NODES:]
        found = {node: found[node] for node in found if node in kept}
    most = MOST_NEWEST
    while sum([min(len(each), most) for each in found.values()]) > MOST_OF_ALL:
        most -= 1
    return {node: _last(each, most) for node, each in found.items()}


def _last(found: Sequence[int], most: int) -> tuple[int, ...]:
    """The newest of them, among which is the highest."""
    if len(found) <= most:
        return tuple(found)
    kept, highest = found[-most:], max(found)
    return tuple(kept) if highest in kept else (highest, *kept[1:])


def _position(entry: Any) -> Position:
    file, pos = entry
    if not isinstance(file, str) or not isinstance(pos, int) or pos < 0:
        raise ValueError("a position is a file and a number")
    return Position(file, pos)
