"""The newest records that a search matches, up to a number: what completion looks at.

One record more than the number is asked for, so that it is known whether these were all.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from logstore.search.conditions import Field
from service.query.request import (
    SEARCH_PARAMETERS,
    QueryRequest,
    refuse_unknown,
    whole_number,
)
from service.query.search import Search

DEFAULT_SAMPLE: Final = 10_000
MAX_SAMPLE: Final = 100_000


@dataclass(frozen=True, slots=True)
class Sample:
    """At most `size` records of `search`."""

    search: QueryRequest
    size: int

    @staticmethod
    def parse(
        parameters: Mapping[str, str], *own: str, now_ms: int, value: Field | None = None
    ) -> Sample:
        """The sample that the parameters ask for, beside `own` ones of the caller's.

        With `value`, only that field of each record. Raises `InvalidInput` with the field.
        """
        refuse_unknown(parameters, (*SEARCH_PARAMETERS, "sample", *own))
        size = whole_number(parameters, "sample", DEFAULT_SAMPLE, MAX_SAMPLE)
        asked = {name: parameters[name] for name in SEARCH_PARAMETERS if name in parameters}
        search = QueryRequest.parse(asked, now_ms=now_ms)
        return Sample(replace(search, limit=size + 1, value=value), size)

    def batches(self, search: Search) -> Generator[pa.RecordBatch]:
        """The records, newest first. Blocks; raises as `Search.batches`."""
        left = self.size
        with closing(search.batches()) as batches:
            for batch in batches:
                yield batch.slice(0, left)
                left -= min(left, batch.num_rows)

    def looked_at(self, search: Search) -> Looked:
        """How much that was, once all batches were taken."""
        return Looked(min(search.matches, self.size), search.matches <= self.size)


@dataclass(frozen=True, slots=True)
class Looked:
    """How many records were looked at, and whether these were all that match."""

    records: int
    complete: bool
