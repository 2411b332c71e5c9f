"""The cursor of a live stream over all runs, as text.

    t1.{seen}.{ulid}            behind all records with this ULID
    t1.{seen}.{ulid}.{names}    behind one record: names is the JSON list [fqn, run]

`seen` is a JSON object: for each node the position below which every record was looked at. Both
JSON texts are written in base64url without padding.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
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
    """Records below `seen` of their node with a key of at most `last` were given."""

    seen: Mapping[str, int]
    last: RecordKey

    def encode(self) -> str:
        """The text that a client passes back."""
        stem = f"{seen_text(self.seen)}.{self.last.ulid}"
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
            return StreamCursor(_seen(seen), last)
        except (ValueError, TypeError, binascii.Error, InvalidInput) as error:
            raise InvalidCursor(
                f"not a cursor of a live search: {text[:80]!r}",
                field=field,
                hint="Pass the id of an event as it came, or leave it out to begin now.",
            ) from error


def seen_text(seen: Mapping[str, int]) -> str:
    """The beginning of a cursor's text: all up to the ULID."""
    return f"{_PREFIX}.{_base64(dict(seen))}"


def names_text(fqn: str, run: str) -> str:
    """The end of a cursor's text behind one record."""
    return _base64([fqn, run])


def _base64(value: Any) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=")


def _loads(text: str) -> Any:
    return orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def _seen(text: str) -> dict[str, int]:
    value = _loads(text)
    if not isinstance(value, dict):
        raise TypeError("positions are an object")
    for pos in value.values():
        if type(pos) is not int or not 0 <= pos < 1 << 62:
            raise ValueError("a position is a number")
    return value


def _names(text: str) -> tuple[str, str]:
    fqn, run = _loads(text)
    if not (isinstance(fqn, str) and isinstance(run, str)):
        raise TypeError("names are strings")
    return fqn, run
