"""An entry on its way from units of the file to a record of the body."""

from __future__ import annotations

from typing import Any

import orjson

from forwarder.entries.codec import clean

MOST_LEVEL = 32
"""The service takes no longer level."""
_MOST_MICROSECONDS = 253_402_300_799_999_999
_MOST_KNOWN = 1000


class Entry:
    """Made of the units `first` to `last` of the range that is packed."""

    __slots__ = (
        "attributes", "body", "failed", "first", "last", "level", "resource", "size", "ts",
    )  # fmt: skip

    def __init__(self, body: Any, first: int, last: int, size: int = 0) -> None:
        self.body = body
        """Text, or what an operator parsed it to."""
        self.first = first
        self.last = last
        self.size = size
        """Bytes of the units, about: a group ends when it has as many as an entry may have."""
        self.attributes: dict[str, Any] = {}
        self.resource: dict[str, Any] = {}
        self.ts: int | None = None
        """Microseconds since 1970."""
        self.level: str | None = None
        self.failed = False
        """An operator could not parse it."""


def message_of(body: Any) -> str:
    """The record's message: text as it is, and what was parsed as JSON."""
    return body if isinstance(body, str) else encode(body).decode()


def encode(value: Any) -> bytes:
    """JSON; what is no character is U+FFFD, and numbers beyond 64 bits are text."""
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError):
        return orjson.dumps(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)[0]
    if isinstance(value, dict):
        return {clean(str(name))[0]: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | float) else str(value)


class Encoder:
    """Makes lines of ndjson of entries; `shared` are attributes of all of them.

    `replaced` counts characters of messages that became U+FFFD.
    """

    def __init__(self, shared: dict[str, str]) -> None:
        self._shared = shared
        self._known: dict[Any, bytes] = {}
        self.replaced = 0

    def row(self, entry: Entry, own: dict[str, str] | None = None) -> bytes:
        """The record; `own` are attributes that are this record's only."""
        body = entry.body
        try:
            message = orjson.dumps(body if type(body) is str else message_of(body))
        except (TypeError, ValueError):
            text, replaced = clean(message_of(body))
            message, self.replaced = orjson.dumps(text), self.replaced + replaced
        head = self.head(entry) if own is None else self._attributes(entry, own)
        if entry.level:
            head = b'"level":%b,%b' % (encode(entry.level[:MOST_LEVEL]), head)
        if entry.ts is not None and 0 <= entry.ts <= _MOST_MICROSECONDS:
            head = b'"ts":%d.%06d,%b' % (entry.ts // 1_000_000, entry.ts % 1_000_000, head)
        return b'{%b"message":%b}\n' % (head, message)

    def head(self, entry: Entry) -> bytes:
        """The attributes; few kinds of them are encoded once."""
        attributes = entry.attributes
        if len(attributes) > 1:
            return self._attributes(entry, {})
        # Resources are of the file: one object for all of its entries.
        key = (id(entry.resource) if entry.resource else 0, *attributes.items())
        try:
            known = self._known.get(key)
        except TypeError:  # a value that is a list or an object
            return self._attributes(entry, {})
        if known is None:
            known = self._attributes(entry, {})
            if len(self._known) < _MOST_KNOWN:
                self._known[key] = known
        return known

    def _attributes(self, entry: Entry, own: dict[str, str]) -> bytes:
        merged = {**self._shared, **own, **entry.resource, **entry.attributes}
        return b'"attributes":%b,' % encode(merged) if merged else b""
