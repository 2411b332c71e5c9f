"""Numbers of LogQL: lines counted in windows of time, and series of them aggregated.

A query has a number at each step: of the lines in the window (step - range, step]. All windows of a
query are made of small ones whose length divides both range and step, so each line is counted
once. DuckDB counts them by labels if no stage remains for the lines.

As in Loki, a range query begins and ends at multiples of its step.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

from service.query.logql_lines import LinePipeline, LogLine, RecordLines
from service.query.logql_search import request_between, selected
from service.query.request import QueryRequest, UlidRange
from service.query.search import Search
from service.query.sql import Scans, Statement
from tailrace.logstore.errors import InvalidInput, LimitReached
from tailrace.logstore.search.conditions import field_of_label
from tailrace.logstore.search.logql import (
    ERROR_LABEL,
    LabelGrouping,
    LogExpression,
    MetricExpression,
    RangeAggregation,
    Stage,
    VectorAggregation,
    VectorSum,
)

MOST_SERIES: Final = 5_000
MOST_COUNTS: Final = 2_000_000
"""Windows with lines, of all series."""
_SECOND_NS: Final = 1_000_000_000

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""The labels of a series by name; the key of the series."""
Points: TypeAlias = dict[int, float]
"""The numbers of a series by the number of the step."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The times of a query's numbers: `count` of them from `start_ns` on."""

    start_ns: int
    step_ns: int
    count: int

    @staticmethod
    def between(start_ns: int, end_ns: int, step_ns: int) -> Steps:
        """Returns the steps of a range query."""
        first = start_ns // step_ns
        return Steps(first * step_ns, step_ns, -(-end_ns // step_ns) - first + 1)

    def at(self, number: int) -> int:
        """Returns the time of a step in nanoseconds."""
        return self.start_ns + number * self.step_ns


@dataclass(frozen=True, slots=True)
class MetricRequest:
    """A query of numbers; `search` and `stages` find the lines that it counts."""

    expression: MetricExpression
    steps: Steps
    counted: RangeAggregation | None
    search: QueryRequest
    stages: tuple[Stage, ...]
    by: tuple[str, ...] | None
    """The only labels that matter; None: all of them do."""
    most_series: int = MOST_SERIES

    @staticmethod
    def of(expression: MetricExpression, steps: Steps) -> MetricRequest:
        """Splits the expression into a search and what remains."""
        inner: MetricExpression = expression
        outer: VectorAggregation | None = None
        while isinstance(inner, VectorAggregation):
            outer = inner
            inner = inner.inner
        if isinstance(inner, VectorSum):
            return MetricRequest(expression, steps, None, QueryRequest(), (), ())
        condition, stages = selected(inner.lines.matchers, inner.lines.stages)
        first, last = steps.start_ns - inner.range_ns, steps.at(steps.count - 1)
        search = request_between(first + 1, last + 1, condition, descending=False)
        by = None
        if outer is not None and outer.operator == "sum":
            grouping = outer.grouping or LabelGrouping(without=False, names=())
            by = None if grouping.without else grouping.names
        return MetricRequest(expression, steps, inner, search, stages, by)

    @staticmethod
    def sizes(
        lines: LogExpression,
        start_ns: int,
        end_ns: int,
        by: tuple[str, ...] | None,
        *,
        operator: str = "bytes_over_time",
        most_series: int = MOST_SERIES,
    ) -> MetricRequest:
        """Returns a query of one number for each combination of labels, over all of the time."""
        counted = RangeAggregation(operator, lines, max(end_ns - start_ns, 1))
        expression: MetricExpression = counted
        if by is not None:
            expression = VectorAggregation("sum", counted, LabelGrouping(without=False, names=by))
        asked = MetricRequest.of(expression, Steps(end_ns, 1, 1))
        return replace(asked, most_series=most_series)

    @property
    def origin_ns(self) -> int:
        """Returns the time after which the first window begins."""
        assert self.counted is not None
        return self.steps.start_ns - self.counted.range_ns

    @property
    def width_ns(self) -> int:
        """Returns the length of the windows in which lines are counted."""
        assert self.counted is not None
        if self.steps.count == 1:
            return self.counted.range_ns
        return math.gcd(self.counted.range_ns, self.steps.step_ns)


class _WindowCount(NamedTuple):
    lines: int
    size: int


@dataclass(slots=True)
class _WindowCounts:
    """Lines and bytes by series and window; the number of series is bounded."""

    most: int
    series: dict[Labels, dict[int, _WindowCount]] = field(default_factory=dict)
    size: int = 0

    def add(self, labels: Labels, window: int, lines: int, size: int) -> None:
        counts = self.series.get(labels)
        if counts is None:
            counts = self.series[labels] = {}
            if len(self.series) > self.most:
                raise LimitReached(
                    f"maximum of series ({self.most}) reached for a single query",
                    hint="Group by fewer labels, or select fewer streams.",
                )
        known = counts.get(window)
        if known is None:
            self.size += 1
            if self.size > MOST_COUNTS:
                raise LimitReached(
                    "the query counts in too many windows of time",
                    hint="Make the range a multiple of the step, or ask for less time.",
                )
            known = _WindowCount(0, 0)
        counts[window] = _WindowCount(known.lines + lines, known.size + size)


def evaluate(search: Search | None, asked: MetricRequest) -> dict[Labels, Points]:
    """Returns the series of the expression. Blocks; raises as `Search.batches`.

    Without lines to count there is no search.
    """
    counted: dict[Labels, Points] = {}
    if asked.counted is not None and search is not None:
        counts = _WindowCounts(asked.most_series)
        if asked.stages:
            _count_lines(search, asked, counts)
        else:
            _count_in_search(search, asked, counts)
        for labels, by_window in counts.series.items():
            if points := _points(asked, asked.counted, by_window):
                counted[labels] = points
    return _aggregated(asked.expression, asked.steps, counted)


def _count_in_search(search: Search, asked: MetricRequest, counts: _WindowCounts) -> None:
    origin, width = asked.origin_ns, asked.width_ns
    fields = None if asked.by is None else [field_of_label(name) for name in asked.by]

    def summary(statement: Statement, _: UlidRange, scans: Scans, live: str) -> str:
        return statement.windows(fields, scans, live, origin_ns=origin, width_ns=width)

    made = RecordLines()
    for batch in search.totals(summary):
        columns = [column.to_pylist() for column in batch.columns]
        *values, windows, lines, sizes = columns
        rows = zip(*values, strict=True) if values else [()] * batch.num_rows
        for row, window, n, size in zip(rows, windows, lines, sizes, strict=True):
            search.matches += n
            if asked.by is None:
                labels = _key(made.labels(*row))
            else:
                named = zip(asked.by, row, strict=True)
                labels = _key({name: text for name, text in named if text})
            counts.add(labels, window, n, size)


def _count_lines(search: Search, asked: MetricRequest, counts: _WindowCounts) -> None:
    origin, width = asked.origin_ns, asked.width_ns
    pipeline, made = LinePipeline(asked.stages), RecordLines()
    with closing(search.batches()) as batches:
        for batch in batches:
            for line in made.lines(batch):
                if not pipeline.keeps(line):
                    continue
                if line.error:
                    raise _pipeline_error(line)
                labels = line.labels()
                if asked.by is not None:
                    labels = {name: labels[name] for name in asked.by if labels.get(name)}
                window = (line.ts_ns - origin - 1) // width
                counts.add(_key(labels), window, 1, len(line.line.encode()))


def _pipeline_error(line: LogLine) -> InvalidInput:
    shown = ", ".join(f'{name}="{text}"' for name, text in sorted(line.labels().items()))
    return InvalidInput(
        f"pipeline error: '{line.error}' for series: '{{{shown[:1_000]}}}'.\n"
        f'Use a label filter to intentionally skip this error. (e.g | __error__!="{line.error}").'
        f'\nTo skip all potential errors you can match empty errors.(e.g {ERROR_LABEL}="")\n'
        "The label filter can also be specified after unwrap. (e.g | unwrap latency | "
        f'{ERROR_LABEL}="" )\n'
    )


def _key(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def _points(
    asked: MetricRequest, counted: RangeAggregation, by_window: Mapping[int, _WindowCount]
) -> Points:
    """Returns the number at each step whose window has a line."""
    width, steps = asked.width_ns, asked.steps
    windows = sorted(by_window)
    by_bytes = counted.operator.startswith("bytes")
    each = [by_window[n].size if by_bytes else by_window[n].lines for n in windows]
    sums = [0, *accumulate(each)]
    seconds = counted.range_ns / _SECOND_NS if counted.operator.endswith("rate") else 1
    stride, length = steps.step_ns // width if steps.count > 1 else 0, counted.range_ns // width
    found: Points = {}
    for number in _near(windows, stride, length, steps.count):
        low = bisect_left(windows, number * stride)
        high = bisect_left(windows, number * stride + length)
        if high > low:
            found[number] = (sums[high] - sums[low]) / seconds
    return found


def _near(windows: Sequence[int], stride: int, length: int, count: int) -> Iterator[int]:
    """Yields the steps whose windows may have a line, in order."""
    if stride == 0:
        yield from range(count)
        return
    following = 0
    for window in windows:
        first = max(following, -(-(window - length + 1) // stride), 0)
        following = min(window // stride + 1, count)
        yield from range(first, following)
        following = max(first, following)


def _aggregated(
    expression: MetricExpression, steps: Steps, counted: dict[Labels, Points]
) -> dict[Labels, Points]:
    match expression:
        case VectorSum(value):
            return {(): dict.fromkeys(range(steps.count), value)}
        case RangeAggregation():
            return counted
        case VectorAggregation(operator, inner, grouping, count):
            series = _aggregated(inner, steps, counted)
            if operator == "topk":
                return _largest(series, grouping, count)
            return _combined(series, grouping, _COMBINED[operator])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_COMBINED: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "avg": _mean,
    "count": len,
}


def _group(labels: Labels, grouping: LabelGrouping | None) -> Labels:
    if grouping is None:
        return ()
    return tuple(
        [
            (name, text)
            for name, text in labels
            if text and (name in grouping.names) is not grouping.without
        ]
    )


def _combined(
    series: Mapping[Labels, Points],
    grouping: LabelGrouping | None,
    combine: Callable[[Sequence[float]], float],
) -> dict[Labels, Points]:
    groups: dict[Labels, dict[int, list[float]]] = {}
    for labels, points in series.items():
        group = groups.setdefault(_group(labels, grouping), {})
        for step, value in points.items():
            group.setdefault(step, []).append(value)
    return {
        labels: {step: float(combine(values)) for step, values in sorted(group.items())}
        for labels, group in groups.items()
    }


def _largest(
    series: Mapping[Labels, Points], grouping: LabelGrouping | None, count: int
) -> dict[Labels, Points]:
    steps: dict[tuple[Labels, int], list[tuple[float, Labels]]] = {}
    for labels, points in series.items():
        group = _group(labels, grouping)
        for step, value in points.items():
            steps.setdefault((group, step), []).append((value, labels))
    found: dict[Labels, Points] = {}
    for (_, step), values in sorted(steps.items(), key=lambda one: one[0][1]):
        for value, labels in sorted(values, key=lambda one: (-one[0], one[1]))[:count]:
            found.setdefault(labels, {})[step] = value
    return found


def shown_number(value: float) -> str:
    """Returns a number as Loki writes it: without an exponent."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    text = repr(value)
    return format(Decimal(text), "f") if "e" in text else text
