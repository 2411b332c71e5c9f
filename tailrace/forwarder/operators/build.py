"""Makes the stages of operators from their configuration, and joins entries (`recombine`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tailrace.forwarder.config.source import (
    Container,
    JsonParser,
    Move,
    Operator,
    Recombine,
    RegexParser,
    Severity,
    SeverityParser,
    TimeParser,
    Timestamp,
)
from tailrace.forwarder.entries.entry import Each, Entry, Output, Stage, message_of
from tailrace.forwarder.model import FileFacts
from tailrace.forwarder.operators.container import ContainerLines, Parser
from tailrace.forwarder.operators.expression import (
    MISSING,
    holds,
    level_mapping,
    level_parser,
    parse_expression,
    parse_field,
)
from tailrace.forwarder.operators.times import time_parser

# The operator `recombine`: joins a field of entries that follow one another.
#
# Entries that wait are bounded: by `max_sources`, and in bytes over all of them. Beyond that, the
# unfinished entry is sent as it is.


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


StageMaker = Callable[[FileFacts], Stage]
Act = Callable[[Entry], bool]
"""Changes an entry, and says whether it could."""


def is_container(operators: Sequence[Operator]) -> bool:
    """Whether lines are a container's, so that what joins lines comes behind the parser."""
    return bool(operators) and isinstance(operators[0], Container)


def stages_of(
    operators: Sequence[Operator], *, max_log_size: int, last_states: bool = False
) -> list[StageMaker]:
    """The stages in their order; a container's parser is two."""
    made: list[StageMaker] = []
    for operator in operators:
        if isinstance(operator, Container):
            made += _container(operator, last_states=last_states)
        elif isinstance(operator, Recombine):
            made.append(_recombine(operator, max_log_size))
        else:
            made.append(_each(operator, _act(operator)))
    return made


def _container(operator: Container, *, last_states: bool) -> list[StageMaker]:
    # Of a path, and so of a file: the parser is made for each range.
    level = _level(operator.severity) if operator.severity is not None else None

    def make(file: FileFacts) -> Stage:
        parse = Parser(operator, file.path)
        return Each(_guarded(operator, parse if level is None else _both(parse, level)))

    return [make, lambda _: ContainerLines(operator.max_log_size, last_states=last_states)]


def _recombine(operator: Recombine, max_log_size: int) -> StageMaker:
    expression = parse_expression(operator.is_first_entry or operator.is_last_entry)
    return lambda _: Recombiner(operator, lambda entry: holds(expression, entry), max_log_size)


def _each(operator: Operator, act: Act) -> StageMaker:
    change = _guarded(operator, act)
    return lambda _: Each(change)


def _guarded(operator: Operator, act: Act) -> Callable[[Entry], Entry | None]:
    """The operator with its `if` and `on_error`."""
    condition = parse_expression(operator.if_) if operator.if_ is not None else None
    drop = operator.on_error.startswith("drop")

    def change(entry: Entry) -> Entry | None:
        if condition is not None and not holds(condition, entry):
            return entry
        if not act(entry):
            if drop:
                return None
            entry.failed = True
        return entry

    return change


def _act(operator: Operator) -> Act:
    if isinstance(operator, SeverityParser):
        return _level(operator)
    if isinstance(operator, TimeParser):
        return _time(operator)
    if isinstance(operator, Move):
        return _move(operator)
    assert isinstance(operator, JsonParser | RegexParser)
    act = _parse(operator)
    if operator.timestamp is not None:
        act = _both(act, _time(operator.timestamp))
    if operator.severity is not None:
        act = _both(act, _level(operator.severity))
    return act


def _move(operator: Move) -> Act:
    source, target = parse_field(operator.from_), parse_field(operator.to)

    def act(entry: Entry) -> bool:
        value = source.take(entry)
        if value is MISSING:
            return False
        target.set(entry, value)
        return True

    return act


def _both(first: Act, second: Act) -> Act:
    return lambda entry: first(entry) and second(entry)


def _parse(operator: JsonParser | RegexParser) -> Act:
    taken, put = parse_field(operator.parse_from).getter(), parse_field(operator.parse_to)
    parse = _regex(operator) if isinstance(operator, RegexParser) else _json

    def act(entry: Entry) -> bool:
        value = taken(entry)
        parsed = parse(value) if isinstance(value, str) else None
        if parsed is None:
            return False
        put.set(entry, parsed)
        return True

    return act


def _json(text: str) -> Mapping[str, Any] | None:
    try:
        value = orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return None
    return value if isinstance(value, dict) else None


def _regex(operator: RegexParser) -> Callable[[str], Mapping[str, Any] | None]:
    search = operator.regex.search

    def parse(text: str) -> Mapping[str, Any] | None:
        found = search(text)
        return None if found is None else found.groupdict("")

    return parse


def _time(config: Timestamp) -> Act:
    taken = parse_field(config.parse_from).getter()
    parse = time_parser(
        config.layout_type, config.layout, config.location, config.time_zone_locations
    )

    def act(entry: Entry) -> bool:
        value = taken(entry)
        moment = None if value is MISSING else parse(value)
        if moment is None:
            return False
        entry.ts = moment
        return True

    return act


def _level(config: Severity) -> Act:
    taken = parse_field(config.parse_from).getter()
    parse = level_parser(level_mapping(config.preset, config.mapping))

    def act(entry: Entry) -> bool:
        value = taken(entry)
        level = None if value is MISSING else parse(value)
        if level is None:
            return False
        entry.level = level or entry.level
        return True

    return act
