"""How many records match, by the values of fields: all of them are counted, not a sample.

Each tile is summed up by DuckDB, so a row per combination of values comes out of it. Exact or
refused: where there are more combinations than fit, the answer is an error and not a guess.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from logstore.errors import InvalidInput, LimitReached
from logstore.search.conditions import Field
from service.query.request import (
    SEARCH_PARAMETERS,
    QueryRequest,
    refuse_unknown,
    whole_number,
)
from service.query.search import Search
from service.query.spelling import field_of, name_of
from service.query.sql import Scans, Statement
from service.query.tiles import Tile

DEFAULT_ROWS: Final = 100
MAX_ROWS: Final = 10_000
MAX_FIELDS: Final = 4
MAX_GROUPS: Final = 200_000
PARAMETERS: Final = frozenset((*SEARCH_PARAMETERS, "by", "limit"))

Values: TypeAlias = tuple[str | None, ...]
_FIELD: Final = re.compile(r'((?:[^,"]|"(?:[^"\\]|\\.)*")+)(?:,|$)')


@dataclass(frozen=True, slots=True)
class CountRequest:
    """The `rows` most frequent combinations of the fields' values in what `search` matches."""

    search: QueryRequest
    fields: tuple[Field, ...]
    rows: int

    @staticmethod
    def parse(parameters: Mapping[str, str], *, now_ms: int, long: bool = False) -> CountRequest:
        """The request that the parameters make. Raises `InvalidInput` with the field."""
        refuse_unknown(parameters, PARAMETERS)
        asked = {name: parameters[name] for name in SEARCH_PARAMETERS if name in parameters}
        search = QueryRequest.parse(asked, now_ms=now_ms, long=long)
        rows = whole_number(parameters, "limit", DEFAULT_ROWS, MAX_ROWS)
        return CountRequest(search, _fields(parameters.get("by", "")), rows)

    @property
    def names(self) -> list[str]:
        """The fields as `q` has them."""
        return [name_of(field) for field in self.fields]


@dataclass(frozen=True, slots=True)
class ValueCount:
    """A combination of values, None where a record has none, and how many records have it."""

    values: Values
    records: int


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """The most frequent combinations, those first; `complete` if there are no others."""

    counts: list[ValueCount]
    complete: bool


def count_by(search: Search, request: CountRequest) -> ValueCounts:
    """Counts all matches; sets `search.matches`. Blocks.

    Raises `LimitReached` for more than `MAX_GROUPS` combinations, and as `Search.batches`.
    """
    if not request.fields:
        search.count()
        return ValueCounts([], complete=True)

    def summary(statement: Statement, _: Tile, scans: Scans, live: str) -> str:
        return statement.groups(request.fields, scans, live)

    found: Counter[Values] = Counter()
    for batch in search.totals(summary):
        *columns, counts = (column.to_pylist() for column in batch.columns)
        for values, records in zip(zip(*columns, strict=True), counts, strict=True):
            found[values] += records
            search.matches += records
        if len(found) > MAX_GROUPS:
            raise LimitReached(
                f"there are more than {MAX_GROUPS} different values",
                hint="Ask for less time, for fewer fields, or for fields with fewer values.",
            )
    first = sorted(found.items(), key=lambda one: (-one[1], [text or "" for text in one[0]]))
    rows = [ValueCount(values, records) for values, records in first[: request.rows]]
    return ValueCounts(rows, len(found) <= request.rows)


def _fields(text: str) -> tuple[Field, ...]:
    names, at = list[str](), 0
    while at < len(text):
        found = _FIELD.match(text, at)
        if found is None or not found[1].strip():
            raise InvalidInput(
                f"by is {text[:80]!r}", field="by", hint="Write by=level,json.status."
            )
        names.append(found[1])
        at = found.end()
    if len(names) > MAX_FIELDS:
        raise InvalidInput(
            f"by has {len(names)} fields", field="by", hint=f"Use at most {MAX_FIELDS}."
        )
    return tuple([field_of(name, "by") for name in names])
