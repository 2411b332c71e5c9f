"""Makes the stages of operators from their configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from forwarder.config.operators import (
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
from forwarder.entries.entry import Entry
from forwarder.entries.operators.container import Parser, Parts
from forwarder.entries.operators.expression import holds, parse_expression
from forwarder.entries.operators.fields import MISSING, parse_field
from forwarder.entries.operators.recombine import Recombiner
from forwarder.entries.operators.severity import level_mapping, level_parser
from forwarder.entries.operators.times import time_parser
from forwarder.entries.stages import Each, Stage
from forwarder.model import FileFacts

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

    return [make, lambda _: Parts(operator.max_log_size, last_states=last_states)]


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
