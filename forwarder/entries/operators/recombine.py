"""The operator `recombine`: joins a field of entries that follow one another.

What waits to be joined is bounded: in `max_sources`, and in bytes over all of them. Beyond, what
was begun goes out as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forwarder.config.operators import Recombine
from forwarder.entries.entry import Entry, message_of
from forwarder.entries.operators.fields import MISSING, parse_field
from forwarder.entries.stages import Output

_MOST_WAITING: Final = 16
"""How many times the most that is joined may wait, over all sources."""


@dataclass(slots=True)
class _Batch:
    base: Entry
    first: int
    last: int
    texts: list[str]
    size: int
    count: int
    matched: bool


class Recombiner:
    """Joins entries up to one that `is_last_entry`, or before one that `is_first_entry`."""

    def __init__(
        self, operator: Recombine, matches: Callable[[Entry], bool], max_log_size: int
    ) -> None:
        self._operator = operator
        self._matches = matches
        self._field = parse_field(operator.combine_field)
        self._identity = parse_field(operator.source_identifier)
        self._most = operator.max_log_size or max_log_size
        self._between = max(len(operator.combine_with), 1)
        self._batches: dict[str, _Batch] = {}
        self._size = 0

    def feed(self, entry: Entry, out: Output) -> None:
        value = self._field.get(entry)
        identity = self._identity.get(entry)
        name = "" if identity is MISSING else message_of(identity)
        matches = self._matches(entry)
        if matches and self._operator.is_first_entry is not None:
            self._give(name, out)
        if name not in self._batches and len(self._batches) >= self._operator.max_sources:
            self.flush(out)
        self._add(name, entry, value if isinstance(value, str) else None, matches=matches)
        if self._full(name) or (matches and self._operator.is_last_entry is not None):
            self._give(name, out)
        if self._size > _MOST_WAITING * self._most:
            self.flush(out)

    def flush(self, out: Output) -> None:
        for name in sorted(self._batches, key=lambda name: self._batches[name].first):
            self._give(name, out)

    def settles(self, unit: int) -> bool:  # noqa: ARG002
        return not self._batches

    def oldest(self) -> int | None:
        return min((batch.first for batch in self._batches.values()), default=None)

    def _add(self, name: str, entry: Entry, text: str | None, *, matches: bool) -> None:
        batch = self._batches.get(name)
        if batch is None:
            batch = _Batch(entry, entry.first, entry.last, [], len(name), 0, matched=False)
            self._batches[name] = batch
            self._size += len(name)
        elif self._operator.overwrite_with == "newest":
            entry.failed |= batch.base.failed
            batch.base = entry
        batch.last = max(batch.last, entry.last)
        batch.count += 1
        batch.matched |= matches
        if text is None:
            batch.base.failed = True  # it has no such field
        else:
            batch.texts.append(text)
            batch.size += len(text) + self._between
            self._size += len(text) + self._between

    def _full(self, name: str) -> bool:
        batch, operator = self._batches[name], self._operator
        if batch.size > self._most or 0 < operator.max_batch_size <= batch.count:
            return True
        return not batch.matched and 0 < operator.max_unmatched_batch_size <= batch.count

    def _give(self, name: str, out: Output) -> None:
        batch = self._batches.pop(name, None)
        if batch is None:
            return
        self._size -= batch.size
        if batch.texts:
            self._field.set(batch.base, self._operator.combine_with.join(batch.texts))
        batch.base.first, batch.base.last = batch.first, batch.last
        out(batch.base)
