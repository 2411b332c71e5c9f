"""How many records match, by time and level: what a chart above a list of hits shows.

Buckets begin at multiples of the step since the epoch, so a chart that is asked for again has
the same edges, and the first and the last bucket may be cut by `from` and `to`. Time is that of
the ULID, which `from` and `to` bound, too, or with `by=ts` the line's own. Without `to` the chart
ends now, by the node's clock: the newest record's time would stretch it to whatever one wrong clock
wrote.

Each tile is summed up by DuckDB, so at most a row per bucket and level comes out of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from logstore import ulid
from logstore.errors import InvalidInput
from logstore.search.moments import parse_moment, parse_step
from logstore.segments.schema import LEVELS
from service.query.request import (
    SEARCH_PARAMETERS,
    QueryRequest,
    refuse_unknown,
    whole_number,
)
from service.query.search import Search
from service.query.sql import Scans, Statement
from service.query.tiles import Tile

_SEARCH: Final = (*SEARCH_PARAMETERS, "by")
PARAMETERS: Final = frozenset((*_SEARCH, "buckets", "step"))
DEFAULT_BUCKETS: Final = 60
MAX_BUCKETS: Final = 1_000

_TIME_CHARS: Final = 10
_CHAR_BITS: Final = 5
_DIGITS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LAST_MS: Final = 253_402_300_799_999  # of the year 9999: what RFC 3339 can write
_DAY_MS: Final = 86_400_000
_ROUND_MS: Final[tuple[int, ...]] = (
    *(n * 10**power for power in range(3) for n in (1, 2, 5)),
    *(n * 1_000 for n in (1, 2, 5, 10, 15, 30)),
    *(n * 60_000 for n in (1, 2, 5, 10, 15, 30)),
    *(n * 3_600_000 for n in (1, 2, 3, 6, 12)),
    *(n * 10**power * _DAY_MS for power in range(7) for n in (1, 2, 5)),
)
"""Steps that people count in; the longest is longer than the time of a ULID."""


@dataclass(frozen=True, slots=True)
class HistogramRequest:
    """Counts of `search` in buckets of `step_ms`, from `start_ms` to `end_ms`, inclusive.

    Where `until_ms` is given, records above it count in the last bucket.
    """

    search: QueryRequest
    step_ms: int
    until_ms: int | None = None

    @property
    def start_ms(self) -> int:
        """The lowest time."""
        return self.search.start_ms

    @property
    def end_ms(self) -> int:
        """The highest time."""
        return ulid.time_ms(self.search.high) if self.until_ms is None else self.until_ms

    @staticmethod
    def parse(
        parameters: Mapping[str, str], *, now_ms: int, first: int | None = None
    ) -> HistogramRequest:
        """The request that the parameters make. Raises `InvalidInput` with the field.

        With `from=0` the counts begin at the time `first`; without one there is one bucket.
        """
        search = HistogramRequest.parse_search(parameters, now_ms=now_ms)
        until_ms = _until_ms(parameters, now_ms)
        if search.start_ms == 0:
            begin = until_ms if first is None else max(min(first, until_ms), 0)
            if search.times is None:
                search = replace(search, low=ulid.lowest_at(begin))
            else:
                search = replace(search, times=(begin, search.times[1]))
        step = _step(parameters, until_ms - search.start_ms)
        return HistogramRequest(search, step, until_ms)

    @staticmethod
    def parse_search(parameters: Mapping[str, str], *, now_ms: int) -> QueryRequest:
        """The search alone. Raises as `parse`."""
        refuse_unknown(parameters, PARAMETERS)
        asked = {name: parameters[name] for name in _SEARCH if name in parameters}
        search = QueryRequest.parse(asked | {"to": asked.get("to") or "now"}, now_ms=now_ms)
        if _until_ms(parameters, now_ms) > _LAST_MS:
            raise InvalidInput(
                "to is after the year 9999", field="to", hint="Leave it out: then it is now."
            )
        return search


@dataclass(frozen=True, slots=True)
class Bucket:
    """Records from `at_ms` on; `levels` has those that occur, None for records without one."""

    at_ms: int
    levels: Mapping[str | None, int]

    @property
    def count(self) -> int:
        """Records of all levels."""
        return sum(self.levels.values())


def histogram(search: Search, request: HistogramRequest) -> list[Bucket]:
    """All buckets in order, empty ones too. Blocks; raises as `Search.batches`."""
    step = request.step_ms

    def summary(statement: Statement, tile: Tile, scans: Scans, live: str) -> str:
        by_ts = request.search.times is not None
        records = statement.levels(scans, live, by_ts=by_ts)
        bucket = f"{'own_ms' if by_ts else f'({_time(tile)})'} // {step:d}"
        return (
            f"SELECT {bucket} AS bucket, level, count(*) AS n"  # noqa: S608
            f" FROM ({records}) GROUP BY ALL"
        )

    found: dict[int, Counter[str]] = {}
    for batch in search.totals(summary):
        for row in batch.to_pylist():
            bucket = max(min(row["bucket"], request.end_ms // step), request.start_ms // step)
            found.setdefault(bucket, Counter())[row["level"]] += row["n"]
            search.matches += row["n"]
    numbers = range(request.start_ms // step, request.end_ms // step + 1)
    return [Bucket(n * step, dict(_in_order(found.get(n, Counter())))) for n in numbers]


def oldest_ms(search: Search) -> int | None:
    """The lowest time of the lines themselves, None without any. Blocks; as `Search.batches`."""
    found = [
        batch.column(0)[0].as_py()
        for batch in search.totals(lambda made, _, scans, live: made.oldest(scans, live))
    ]
    return min([time for time in found if time is not None], default=None)


def _until_ms(parameters: Mapping[str, str], now_ms: int) -> int:
    return parse_moment(parameters.get("to") or "now", now_ms=now_ms, field="to")


def _in_order(counts: Counter[str]) -> Iterator[tuple[str | None, int]]:
    for level in (*LEVELS, ""):
        if counts[level]:
            yield level or None, counts[level]


def _time(tile: Tile) -> str:
    """The milliseconds of `ulid`, for records of the tile.

    Characters that all of them have in common are not looked at: that is most of the work.
    """
    low, high = ulid.encode(tile.low)[:_TIME_CHARS], ulid.encode(tile.high)[:_TIME_CHARS]
    same = next((n for n in range(_TIME_CHARS) if low[n] != high[n]), _TIME_CHARS)
    bits = _CHAR_BITS * (_TIME_CHARS - same)
    terms = [str(ulid.time_ms(tile.low) >> bits << bits)]
    for n in range(same, _TIME_CHARS):
        digit = f"(strpos('{_DIGITS}', substr(ulid, {n + 1}, 1)) - 1)"
        terms.append(f"({digit} << {_CHAR_BITS * (_TIME_CHARS - 1 - n)})")
    return " + ".join(terms)


def _step(parameters: Mapping[str, str], length_ms: int) -> int:
    text, buckets = parameters.get("step"), parameters.get("buckets")
    if not text:
        most = whole_number(parameters, "buckets", DEFAULT_BUCKETS, MAX_BUCKETS)
        return min(step for step in _ROUND_MS if step * most >= length_ms)
    if buckets:
        raise InvalidInput(
            "step and buckets are both given", field="step", hint="Give one of the two."
        )
    step = parse_step(text, field="step")
    if step * MAX_BUCKETS < length_ms:
        raise InvalidInput(
            f"the time has more than {MAX_BUCKETS} steps of {text}",
            field="step",
            hint="Ask for less time, or write a longer step.",
        )
    return step
