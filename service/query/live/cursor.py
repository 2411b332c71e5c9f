"""The cursor of a live stream over all runs, as text.

    t1.{seen}.{ulid}            behind all records with this ULID
    t1.{seen}.{ulid}.{names}    behind one record: names is the JSON list [fqn, run]

`seen` is a JSON object: for each node the position below which every record was looked at. For a
node whose newest records could not be read again it is `[position, end, ulid, fqn, run]`: from the
position to before the end, records up to that key were given as well. Both JSON texts are written
in base64url without padding.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from logstore import ulid
from logstore.errors import InvalidCursor, InvalidInput
from service.query.cursor import RecordKey

_PREFIX: Final = "t1"
_HIGHEST_NAME: Final = "\U0010ffff"  # no character: no name begins with it


def behind_all(value: int) -> RecordKey:
    """The key behind all records with this ULID."""
    return RecordKey(ulid.encode(value), _HIGHEST_NAME, "")


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """Records below `seen` of their node with a key of at most `last` were given.

    Of a node in `given`, those from there to before a position with a key of at most the one
    there, too: they were given by way of a node that could read them.
    """

    seen: Mapping[str, int]
    last: RecordKey
    given: Mapping[str, tuple[int, RecordKey]] = field(default_factory=dict)

    def at(self, node: str, pos: int) -> StreamCursor:
        """The cursor that has seen the node's records below `pos`."""
        given = self.given
        if node in given and given[node][0] <= pos:
            given = {name: value for name, value in given.items() if name != node}
        return replace(self, seen={**self.seen, node: pos}, given=given)

    def back_to(self, node: str, pos: int) -> StreamCursor:
        """The cursor that has seen the node's records below `pos`, and knows what it was given."""
        given = {node: (self.seen[node], self.last), **self.given}
        return replace(self, seen={**self.seen, node: pos}, given=given)

    def encode(self) -> str:
        """The text that a client passes back."""
        stem = f"{seen_text(self)}.{self.last.ulid}"
        if self.last.fqn == _HIGHEST_NAME:
            return stem
        return f"{stem}.{names_text(self.last.fqn, self.last.run)}"

    @staticmethod
    def decode(text: str, field: str = "after") -> StreamCursor:
        """The cursor that `text` encodes. Raises `InvalidCursor`."""
        try:
            prefix, seen, at, *names = text.split(".")
            if prefix != _PREFIX or len(names) > 1:
                raise ValueError("another kind of cursor")
            value = ulid.parse(at)
            last = RecordKey(str(value), *_names(names[0])) if names else behind_all(int(value))
            return _decoded(_loads(seen), last)
        except (ValueError, TypeError, binascii.Error, InvalidInput) as error:
            raise InvalidCursor(
                f"not a cursor of a live search: {text[:80]!r}",
                field=field,
                hint="Pass the id of an event as it came, or leave it out to begin now.",
            ) from error


def seen_text(cursor: StreamCursor) -> str:
    """The beginning of a cursor's text: all up to the ULID."""
    value: dict[str, Any] = dict(cursor.seen)
    for node, (end, key) in cursor.given.items():
        value[node] = [cursor.seen.get(node, 0), end, *key]
    return f"{_PREFIX}.{_base64(value)}"


def names_text(fqn: str, run: str) -> str:
    """The end of a cursor's text behind one record."""
    return _base64([fqn, run])


def _base64(value: Any) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=")


def _loads(text: str) -> Any:
    return orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def _decoded(value: Any, last: RecordKey) -> StreamCursor:
    if not isinstance(value, dict):
        raise TypeError("positions are an object")
    seen: dict[str, int] = {}
    given: dict[str, tuple[int, RecordKey]] = {}
    for node, place in value.items():
        if isinstance(place, list):
            pos, end, at, fqn, run = place
            if not (isinstance(fqn, str) and isinstance(run, str)):
                raise TypeError("names are strings")
            seen[node], given[node] = (
                _pos(pos),
                (_pos(end), RecordKey(str(ulid.parse(at)), fqn, run)),
            )
        else:
            seen[node] = _pos(place)
    return StreamCursor(seen, last, given)


def _pos(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError("a position is a number")
    return value


def _names(text: str) -> tuple[str, str]:
    fqn, run = _loads(text)
    if not (isinstance(fqn, str) and isinstance(run, str)):
        raise TypeError("names are strings")
    return fqn, run
