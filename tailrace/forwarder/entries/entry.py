"""An entry on its way from units of the file to a record, and the stages that change it.

`Entry` is made of units, stages of a `Chain` change or join entries, and `EntryEncoder` makes
ndjson of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import orjson

from tailrace.forwarder.entries.splitting import clean

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
    """The record's message: text unchanged, and parsed values as JSON."""
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


class EntryEncoder:
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


# Stages: operators that change one entry, and stages that join several.
#
# A stage that joins holds entries back. A range may end where no stage holds anything that came
# before: `Chain.border` says up to which unit that is so.


Output = Callable[[Entry], None]


class Stage(Protocol):
    """One step; it lives for one range."""

    def feed(self, entry: Entry, out: Output) -> None:
        """Takes an entry, and gives what is complete."""

    def flush(self, out: Output) -> None:
        """Gives what it holds: the range ends here."""

    def oldest(self) -> int | None:
        """The first unit that it holds something of, or None."""

    def settles(self, unit: int) -> bool:
        """Whether it holds nothing, or one entry before this unit that could end there."""


class Each:
    """A step that changes entries one by one; it returns None for an entry that it drops."""

    def __init__(self, change: Callable[[Entry], Entry | None]) -> None:
        self.change = change

    def feed(self, entry: Entry, out: Output) -> None:
        self.into(out)(entry)

    def into(self, out: Output) -> Output:
        """The step with where its entries go."""
        change = self.change

        def feed(entry: Entry) -> None:
            changed = change(entry)
            if changed is not None:
                out(changed)

        return feed

    def flush(self, out: Output) -> None:
        """Holds nothing."""

    def oldest(self) -> int | None:
        return None

    def settles(self, unit: int) -> bool:  # noqa: ARG002
        return True


class Chain:
    """Stages one after the other; `entries` is the output of the last one."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self._joining = [stage for stage in stages if not isinstance(stage, Each)]
        self.joins = bool(self._joining)
        """Whether a stage may hold entries back."""
        self.entries: list[Entry] = []
        self.newest = -1
        """The last unit of all that came out."""
        outputs: list[Output] = [self._take if self.joins else self.entries.append]
        for stage in reversed(stages):
            outputs.append(_into(stage, outputs[-1]))
        self._outputs = outputs[::-1]
        self.feed: Output = self._outputs[0]
        """Sends an entry through."""

    @property
    def changes(self) -> list[Callable[[Entry], Entry | None]]:
        """What its stages do with an entry, if none of them joins any."""
        return [] if self.joins else [s.change for s in self._stages if isinstance(s, Each)]

    def flush(self) -> None:
        """Sends entries that stages hold through the later stages."""
        for stage, out in zip(self._stages, self._outputs[1:], strict=True):
            stage.flush(out)

    def settles(self, unit: int) -> bool:
        """Whether a unit that nothing joins has nothing to do with what stages hold."""
        return all(stage.settles(unit) for stage in self._joining)

    def border(self, after: int) -> int | None:
        """The unit before which the range may end, if those up to `after` were fed; or None."""
        oldest = after + 1
        for stage in self._joining:
            held = stage.oldest()
            if held is not None and held < oldest:
                oldest = held
        return oldest if oldest > self.newest else None

    def _take(self, entry: Entry) -> None:
        self.entries.append(entry)
        if entry.last > self.newest:
            self.newest = entry.last


def _into(stage: Stage, out: Output) -> Output:
    if isinstance(stage, Each):
        return stage.into(out)
    return lambda entry: stage.feed(entry, out)
