"""Answers LogQL from a search: conditions for the engine, then stages, order and limit.

What the language of searches can say goes into the condition: selectors, line filters until the
line is replaced, and filters on labels until a parser adds some. The remaining stages run on the
lines that the search finds. Loki orders lines by their own time, and a search by ULID. So a search
keeps the first lines by time that it has seen, and leaves out ranges of the table whose times come
later than all of them.

The time of a query bounds the own time of lines, from `start_ns` to before `end_ns`.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from service.query.logql_lines import LinePipeline, LogLine, RecordLines
from service.query.request import QueryRequest, UlidRange
from service.query.search import Search
from service.query.sql import Scans, Statement
from tailrace.logstore.search.conditions import (
    EXACT_TIME,
    All,
    AnyOf,
    Attribute,
    Column,
    Compares,
    Condition,
    Contains,
    Exists,
    Is,
    Matches,
    Not,
    OneOf,
    StartsWith,
    field_of_label,
    required,
)
from tailrace.logstore.search.logql import (
    DETAILS_LABEL,
    ERROR_LABEL,
    JoinedFilters,
    LabelMatcher,
    LabelPredicate,
    LineFilter,
    LineFormat,
    LogExpression,
    SelectLabels,
    Stage,
)

_TS: Final = Column("ts")
_WORDS: Final = re.compile(r"[\w /:@%,;-]+(?:\|[\w /:@%,;-]+)*")
_PART: Final = re.compile(r"(\.\*)?([\w /:@%,;-]+)\.\*")
_ANY_CASE: Final = re.compile(r"\(\?i\)([A-Za-z0-9_ /:@%,;=-]+)")
_US: Final = 1_000


# --- Conditions ---------------------------------------------------------------------------------


def matcher_condition(matcher: LabelMatcher) -> Condition:
    """Returns the condition of a matcher on labels that a record has from its beginning."""
    if matcher.operator in ("!=", "!~"):
        opposite = "=" if matcher.operator == "!=" else "=~"
        return Not(matcher_condition(replace(matcher, operator=opposite)))
    field = field_of_label(matcher.name)
    held: Condition
    if matcher.operator == "=":
        held = Is(matcher.value, field)
    elif matcher.value == ".*":
        return All(())
    elif matcher.value == ".+":
        held = All((Exists(field), Not(Is("", field))))
    elif _WORDS.fullmatch(matcher.value):
        held = OneOf(tuple(matcher.value.split("|")), field)
    elif part := _PART.fullmatch(matcher.value):
        held = (Contains if part[1] else StartsWith)(part[2], field)
    else:
        held = Matches(rf"\A(?s:{matcher.value})\z", field)
    return AnyOf((Not(Exists(field)), held)) if matcher.holds("") else held


def selected(
    matchers: Iterable[LabelMatcher], stages: Sequence[Stage] = ()
) -> tuple[All, tuple[Stage, ...]]:
    """Returns what a search can decide of an expression, and the stages that remain."""
    conditions = [matcher_condition(matcher) for matcher in matchers]
    rest: list[Stage] = []
    line_is_own = labels_are_own = True
    for stage in stages:
        if line_is_own and isinstance(stage, LineFilter):
            conditions += _line_condition(stage)
            continue
        if labels_are_own and isinstance(stage, LabelMatcher | JoinedFilters):
            decided = _decided(stage)
            if decided is not None:
                conditions.append(decided)
                continue
        if not rest and isinstance(stage, SelectLabels) and _drops_errors(stage):
            continue  # without a parser and a number there are none
        rest.append(stage)
        if isinstance(stage, LineFormat):
            line_is_own = False
        elif not isinstance(stage, LineFilter | LabelPredicate):
            labels_are_own = False
    return All(tuple(conditions)), tuple(rest)


def _drops_errors(stage: SelectLabels) -> bool:
    return not stage.keep and set(stage.labels) <= {ERROR_LABEL, DETAILS_LABEL}


def _line_condition(stage: LineFilter) -> list[Condition]:
    if "" in stage.texts:  # Loki takes an empty text for no filter
        return []
    by_pattern = stage.operator in ("|~", "!~")
    held = AnyOf(tuple([_found(t) if by_pattern else Contains(t) for t in stage.texts]))
    return [held if stage.operator in ("|=", "|~") else Not(held)]


def _found(pattern: str) -> Condition:
    """Returns the condition of a pattern; a search for a text costs less."""
    text = _ANY_CASE.fullmatch(pattern)
    return Matches(pattern) if text is None else Contains(text[1], ignore_case=True)


def _decided(predicate: LabelPredicate) -> Condition | None:
    match predicate:
        case LabelMatcher(name) if name not in (ERROR_LABEL, DETAILS_LABEL):
            return matcher_condition(predicate)
        case JoinedFilters(word, left, right):
            first, second = _decided(left), _decided(right)
            if first is None or second is None:
                return None
            return All((first, second)) if word == "and" else AnyOf((first, second))
    return None


def request_between(
    start_ns: int, end_ns: int, condition: Condition | None, *, descending: bool = True
) -> QueryRequest:
    """Returns a search for records whose own time is from `start_ns` to before `end_ns`."""
    start_us, end_us = -(-start_ns // _US), -(-end_ns // _US)
    parts: list[Condition] = [Compares(_TS, ">=", start_us), Compares(_TS, "<", end_us)]
    if condition is not None:
        parts += condition.parts if isinstance(condition, All) else (condition,)
    return QueryRequest(
        condition=All(tuple(parts)),
        fqn=required(condition, "fqn"),
        run=required(condition, "run_id"),
        descending=descending,
        times=(start_us // 1_000, end_us // 1_000),
    )


# --- Lines --------------------------------------------------------------------------------------


def _exact_bounds(start_ns: int, end_ns: int) -> Iterator[Condition]:
    """Yields what bounds within the first and the last microsecond ask of lines.

    Clients page by nanoseconds: logcli asks for the lines before 1 ns after the last one.
    """
    exact = Attribute(EXACT_TIME)
    first, rest = divmod(start_ns, _US)
    if rest:  # the microsecond is left out unless nanoseconds say otherwise
        at = OneOf(tuple([str(first * _US + n) for n in range(rest, _US)]), exact)
        yield AnyOf((Compares(_TS, ">", first), at))
    last, rest = divmod(end_ns, _US)
    if rest:
        at = OneOf(tuple([str(last * _US + n) for n in range(rest)]), exact)
        yield AnyOf((Compares(_TS, "<", last), Not(Exists(exact)), at))


@dataclass(frozen=True, slots=True)
class LinesRequest:
    """At most `limit` lines of an expression, in the order of their own time."""

    search: QueryRequest
    stages: tuple[Stage, ...]
    limit: int

    @staticmethod
    def of(
        expression: LogExpression, start_ns: int, end_ns: int, *, limit: int, descending: bool
    ) -> LinesRequest:
        """Splits the expression into a search and what remains."""
        condition, stages = selected(expression.matchers, expression.stages)
        exact = tuple(_exact_bounds(start_ns, end_ns))
        start_ns -= start_ns % _US
        whole = All((*condition.parts, *exact))
        search = request_between(start_ns, end_ns, whole, descending=descending)
        return LinesRequest(search, stages, limit)


def find_lines(search: Search, asked: LinesRequest) -> list[LogLine]:
    """Returns the lines in order. Blocks; raises as `Search.batches`."""
    first = _FirstLines(asked, search)
    search.skip_range = first.come_before
    made = RecordLines()
    if not asked.stages:

        def summary(statement: Statement, _: UlidRange, scans: Scans, live: str) -> str:
            return statement.by_time(scans, asked.limit, live)

        for batch in search.totals(summary, growing=True):
            first.add(batch, made)
        search.matches = len(first)
        return first.lines()
    with closing(search.batches()) as batches:
        for batch in batches:
            first.add(batch, made)
    return first.lines()


class _FirstLines:
    """The first lines by their own time of those that were added, in the order of the request."""

    def __init__(self, asked: LinesRequest, search: Search) -> None:
        self._limit = asked.limit
        self._sign = 1 if asked.search.descending else -1
        self._pipeline = LinePipeline(asked.stages)
        self._search = search
        self._heap: list[tuple[int, _Rank, LogLine]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, batch: pa.RecordBatch, made: RecordLines) -> None:
        """Adds the records of a batch that the stages keep."""
        ulids = batch.column("ulid").to_pylist()
        for ulid, line in zip(ulids, made.lines(batch), strict=True):
            time = self._sign * line.ts_us
            full = len(self._heap) >= self._limit
            if (full and time < self._heap[0][0]) or not self._pipeline.keeps(line):
                continue
            item = time, _Rank(ulid, descending=self._sign > 0), line
            if full:
                heapq.heappushpop(self._heap, item)
            else:
                heapq.heappush(self._heap, item)

    def come_before(self, time_range: UlidRange) -> bool:
        """Returns true if no record of the range can be one of the first lines."""
        if len(self._heap) < self._limit:
            return False
        times = self._search.own_times(time_range)
        if times is None:
            return False
        low, high = times
        return (high if self._sign > 0 else -low) < self._heap[0][0]

    def lines(self) -> list[LogLine]:
        """Returns the lines in the order of the request."""
        return [line for _, _, line in sorted(self._heap, reverse=True)]


class _Rank:
    """The order of records with the same time: that of their ULIDs, or the opposite."""

    __slots__ = ("_descending", "_ulid")

    def __init__(self, ulid: str, *, descending: bool) -> None:
        self._ulid = ulid
        self._descending = descending

    def __lt__(self, other: _Rank) -> bool:
        return (self._ulid < other._ulid) is self._descending

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rank) and self._ulid == other._ulid

    __hash__ = None  # type: ignore[assignment]
