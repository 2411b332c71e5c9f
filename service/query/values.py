"""Which values a field has: the most frequent ones, for the completion of a search.

DuckDB takes them out of the records as it does to compare them, so a value that is given is found
again by a search for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc

from logstore.errors import InvalidInput
from logstore.search.conditions import Column
from service.query.request import whole_number
from service.query.sample import Looked, Sample
from service.query.search import Search
from service.query.spelling import field_of, name_of, value_of

DEFAULT_VALUES: Final = 20
MAX_VALUES: Final = 1_000
MAX_VALUE_CHARS: Final = 500
_OWN: Final = ("field", "prefix", "limit")
_UPPER: Final = {Column("level"), Column("ulid")}
"""Fields in whose values case does not count."""


@dataclass(frozen=True, slots=True)
class ValuesRequest:
    """At most `limit` values that begin with `prefix`, of the sample's field `name`."""

    sample: Sample
    name: str
    prefix: str
    limit: int

    @staticmethod
    def parse(parameters: Mapping[str, str], *, now_ms: int) -> ValuesRequest:
        """The request that the parameters make. Raises `InvalidInput` with the field."""
        field = field_of(parameters["field"]) if parameters.get("field") else None
        sample = Sample.parse(parameters, *_OWN, now_ms=now_ms, value=field)
        if field is None:
            raise InvalidInput(
                "field is missing",
                field="field",
                hint="Write for example field=level; GET /query/fields lists fields.",
            )
        prefix = parameters.get("prefix", "")
        return ValuesRequest(
            sample,
            name_of(field),
            prefix.upper() if field in _UPPER else prefix,
            whole_number(parameters, "limit", DEFAULT_VALUES, MAX_VALUES),
        )


@dataclass(frozen=True, slots=True)
class SeenValue:
    """A value, and how many records of the sample have it."""

    text: str
    records: int

    @property
    def value(self) -> str:
        """As it is spelled in a search."""
        return value_of(self.text)


@dataclass(frozen=True, slots=True)
class SeenValues:
    """The most frequent values, first those; `complete` if none was left out."""

    looked: Looked
    values: list[SeenValue]
    complete: bool


def values(search: Search, asked: ValuesRequest) -> SeenValues:
    """The values in the sample's records. Blocks; raises as `Search.batches`."""
    counts: Counter[str] = Counter()
    complete = True
    for batch in asked.sample.batches(search):
        column = batch.column("value")
        column = column.filter(pc.starts_with(column, asked.prefix)).drop_null()
        short = column.filter(pc.less_equal(pc.utf8_length(column), MAX_VALUE_CHARS))
        complete = complete and len(short) == len(column)
        for row in pc.value_counts(short).to_pylist():
            counts[row["values"]] += row["counts"]
    found = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    first = [SeenValue(text, records) for text, records in found[: asked.limit]]
    return SeenValues(asked.sample.looked_at(search), first, complete and len(found) <= asked.limit)
