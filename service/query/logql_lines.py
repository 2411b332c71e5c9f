"""The stages of LogQL that a search cannot do, on the lines that it found.

A line has the labels of its record and those that a parser found in it. Parsers, filters and
formats follow Loki's, with these differences: `__error_details__` has other words, and JSON that is
broken in its middle gives no labels at all.

Each stage takes time that is linear in the length of the line, and patterns are RE2's.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from tailrace.logstore.search.conditions import (
    DETECTED_LEVEL,
    EXACT_TIME,
    EXTRACTED,
    PIPELINE,
    RUN,
    SERVICE,
    UNKNOWN_LEVEL,
    attribute_label,
    label_name,
)
from tailrace.logstore.search.logql import (
    DETAILS_LABEL,
    ERROR_LABEL,
    JoinedFilters,
    JsonStage,
    LabelMatcher,
    LabelPredicate,
    LineFilter,
    LineFormat,
    LogfmtStage,
    QuantityFilter,
    SelectLabels,
    Stage,
    bytes_of,
    compiled,
    duration_ns,
)

_NANOSECONDS: Final = 1_000
Attribute: TypeAlias = tuple[str, str | None]


class LogLine:
    """A line with its labels: those of its record (`base`), and those that a parser `parsed`."""

    __slots__ = ("base", "details", "error", "line", "parsed", "ts_ns", "ts_us")

    def __init__(
        self, ts_us: int, line: str, base: Mapping[str, str], ts_ns: int | None = None
    ) -> None:
        self.ts_us = ts_us
        self.ts_ns = ts_us * _NANOSECONDS if ts_ns is None else ts_ns
        self.line = line
        self.base = base
        self.parsed: dict[str, str] = {}
        self.error = self.details = ""

    def get(self, name: str) -> str | None:
        """Returns the value of a label, None without it."""
        if name == ERROR_LABEL:
            return self.error or None
        if name == DETAILS_LABEL:
            return self.details or None
        value = self.parsed.get(name)
        return self.base.get(name) if value is None else value

    def labels(self) -> dict[str, str]:
        """Returns all labels, also those of an error."""
        return {**self.base, **self.parsed, **self.errors()}

    def errors(self) -> dict[str, str]:
        """Returns the labels of an error; empty without one."""
        named = ((ERROR_LABEL, self.error), (DETAILS_LABEL, self.details))
        return {name: text for name, text in named if text}

    def fail(self, kind: str, details: str) -> None:
        """Marks the line; the first error stays."""
        if not self.error:
            self.error, self.details = kind, details

    def found(self, key: str, value: str) -> None:
        """Adds a label that a parser found; one that the record has keeps its name."""
        name = label_name(key)
        if name:
            taken = name + EXTRACTED if name in self.base else name
            self.parsed[taken] = value.replace("\ufffd", " ")


def record_labels(
    fqn: str, run: str, level: str | None, attributes: Sequence[Attribute] | None
) -> dict[str, str]:
    """Returns the labels of a record."""
    found = {SERVICE: fqn, DETECTED_LEVEL: level.lower() if level else UNKNOWN_LEVEL}
    for key, value in attributes or ():
        name = attribute_label(key)
        if value and name:
            found[name] = value
    return found | {PIPELINE: fqn, RUN: run}


class RecordLines:
    """Makes lines of records; records of the same kind share their labels."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], dict[str, str]] = {}

    def lines(self, batch: pa.RecordBatch) -> Iterator[LogLine]:
        """Yields a line for each record of a batch with the columns of a search."""
        names = ("fqn", "run_id", "level", "attributes")
        times = batch.column("ts").cast(pa.int64()).to_pylist()
        columns = [batch.column(name).to_pylist() for name in names]
        messages = batch.column("message").to_pylist()
        for ts, message, *kind in zip(times, messages, *columns, strict=True):
            yield LogLine(ts, message, self.labels(*kind), _exact_time(ts, kind[-1]))

    def labels(
        self, fqn: str, run: str, level: str | None, pairs: Sequence[Attribute] | None
    ) -> Mapping[str, str]:
        """Returns the labels of a record."""
        attributes = tuple(pairs) if pairs else None
        kind = fqn, run, level, attributes
        base = self._known.get(kind)
        if base is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            base = self._known[kind] = record_labels(fqn, run, level, attributes)
        return base


def _exact_time(ts_us: int, pairs: Sequence[Attribute] | None) -> int | None:
    """Returns the nanoseconds of a line whose attributes have them, for the same microsecond."""
    for key, value in pairs or ():
        if key == EXACT_TIME and value and value.isdecimal() and len(value) < 20:
            return int(value) if int(value) // _NANOSECONDS == ts_us else None
    return None


_REMEMBERED: Final = 10_000
LineStage: TypeAlias = Callable[[LogLine], bool]
"""Changes a line; returns whether it stays."""


class LinePipeline:
    """The stages of an expression, one after the other."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = [_made(stage) for stage in stages]

    def keeps(self, line: LogLine) -> bool:
        """Returns whether the line stays; changes it as the stages say."""
        return all(stage(line) for stage in self._stages)


def _made(stage: Stage) -> LineStage:
    match stage:
        case LineFilter():
            return _line_filter(stage)
        case JsonStage():
            return _parse_json
        case LogfmtStage():
            return lambda line: _parse_logfmt(line, stage)
        case LineFormat():
            return lambda line: _format(line, stage)
        case SelectLabels():
            return lambda line: _select(line, stage)
    return _predicate(stage)


def _line_filter(stage: LineFilter) -> LineStage:
    wanted = stage.operator in ("|=", "|~")
    if "" in stage.texts:
        return lambda _: True
    if stage.operator in ("|=", "!="):
        return lambda line: any(text in line.line for text in stage.texts) is wanted
    patterns = [compiled(text) for text in stage.texts]
    return lambda line: any(p.search(line.line) is not None for p in patterns) is wanted


# --- Filters on labels --------------------------------------------------------------------------


_COMPARED: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def _number_of(text: str) -> float | None:
    return float(text) if len(text) < 400 and _FLOAT.fullmatch(text) else None


_READ: Final[Mapping[str, Callable[[str], float | None]]] = {
    "number": _number_of,
    "duration": duration_ns,
    "bytes": bytes_of,
}


def _predicate(predicate: LabelPredicate) -> LineStage:
    match predicate:
        case LabelMatcher(name):
            return lambda line: predicate.holds(line.get(name) or "")
        case QuantityFilter():
            return lambda line: _compare(line, predicate)
        case JoinedFilters(word, left, right):
            first, second = _predicate(left), _predicate(right)
            if word == "and":
                # Both are looked at, since both may mark the line.
                return lambda line: all([first(line), second(line)])
            return lambda line: first(line) or second(line)


def _compare(line: LogLine, asked: QuantityFilter) -> bool:
    text = line.get(asked.name)
    if text is None:
        return False
    value = _READ[asked.unit](text)
    if value is None:
        line.fail("LabelFilterErr", f"{text[:100]!r} is no {asked.unit}")
        return True
    return _COMPARED[asked.operator](value, asked.value)


# --- Parsers ------------------------------------------------------------------------------------


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_JSON: Final = json.JSONDecoder(
    parse_int=str, parse_float=str, parse_constant=_refuse_constant, strict=False
)
_MOST_NESTED: Final = 100


def _parse_json(line: LogLine) -> bool:
    text = line.line.lstrip(" \t\r\n")
    try:
        if not text.startswith("{"):
            raise ValueError("the line is no JSON object")
        value, _ = _JSON.raw_decode(text)
        _flatten(line, "", value, 0)
    except (ValueError, RecursionError) as error:
        line.fail("JSONParserErr", str(error)[:200])
    return True


def _flatten(line: LogLine, prefix: str, value: Mapping[str, Any], depth: int) -> None:
    for key, inner in value.items():
        name = f"{prefix}_{key}" if prefix and key.strip() else key or prefix
        if isinstance(inner, dict):
            if depth < _MOST_NESTED:
                _flatten(line, name, inner, depth + 1)
        elif isinstance(inner, bool):
            line.found(name, "true" if inner else "false")
        elif isinstance(inner, str):
            line.found(name, inner)


_GAP: Final = re.compile(r"[\x00-\x20]*")
_KEY: Final = re.compile(r'[^\x00-\x20="]*')
_REST: Final = re.compile(r"[^\x00-\x20]*")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def _parse_logfmt(line: LogLine, stage: LogfmtStage) -> bool:
    try:
        for key, value in _pairs(line.line, strict=stage.strict):
            if value or stage.keep_empty:
                line.found(key, value)
    except ValueError as error:
        line.fail("LogfmtParserErr", str(error))
    return True


def _pairs(text: str, *, strict: bool) -> Iterator[tuple[str, str]]:
    """Yields keys and values as Loki's decoder does; skips what is neither, or raises if strict."""
    at = 0
    while True:
        at = _end(_GAP, text, at)
        if at >= len(text):
            return
        key = text[at : (end := _end(_KEY, text, at))]
        sign, at = text[end : end + 1], end
        value: str | None = ""
        if sign == "=" and key:
            at += 1
            if text[at : at + 1] == '"':
                value, at = _quoted(text, at)
            else:
                end = _end(_KEY, text, at)
                value = None if text[end : end + 1] in ("=", '"') else text[at:end]
                at = end
        elif sign in ("=", '"') and sign:
            value = None
        if value is not None:
            yield key, value
            continue
        if strict:
            raise ValueError(f"logfmt syntax error at pos {at + 1}")
        at = _end(_REST, text, at)


def _quoted(text: str, at: int) -> tuple[str | None, int]:
    found = _QUOTED.match(text, at)
    if found is None:
        return None, len(text)
    value = found[1]
    if "\\" not in value:
        return value, found.end()
    try:
        return str(json.loads(f'"{value}"', strict=False)), found.end()
    except ValueError:
        return None, found.end()


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


# --- Lines and labels ---------------------------------------------------------------------------


def _format(line: LogLine, stage: LineFormat) -> bool:
    pieces = []
    for part in stage.parts:
        if isinstance(part, str):
            pieces.append(part)
        else:
            pieces.append(line.line if part.name == "__line__" else line.get(part.name) or "")
    line.line = "".join(pieces)
    return True


def _select(line: LogLine, stage: SelectLabels) -> bool:
    chosen: dict[str, list[LabelMatcher | None]] = {}
    for one in stage.labels:
        name, matcher = (one, None) if isinstance(one, str) else (one.name, one)
        chosen.setdefault(name, []).append(matcher)
    if not stage.keep:
        if ERROR_LABEL in chosen and _is_chosen(line.error, chosen[ERROR_LABEL]):
            line.error = ""
        if DETAILS_LABEL in chosen and _is_chosen(line.details, chosen[DETAILS_LABEL]):
            line.details = ""

    def stays(name: str, value: str) -> bool:
        return (name in chosen and _is_chosen(value, chosen[name])) is stage.keep

    line.base = {name: value for name, value in line.base.items() if stays(name, value)}
    line.parsed = {name: value for name, value in line.parsed.items() if stays(name, value)}
    return True


def _is_chosen(value: str, matchers: Sequence[LabelMatcher | None]) -> bool:
    return any(matcher is None or matcher.holds(value) for matcher in matchers)
