"""`filter`: gives on only some events, where another wrapper stands before it.

type: filter
keep: {level: INFO}                # all keys of a filter; default: everything
drop: {logger: "org.apache.*"}     # of these, what is left out; default: nothing
to: {type: stdout}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.appenders.contract import Appender
from pipelines.appenders.wrappers.base import Wrapper
from pipelines.definition.section import Section, key
from pipelines.definition.selection import Selection


class FilterSettings(Section):
    """What is kept, and what of that is left out."""

    keep: Selection = key(Selection(), "which events are given on")
    drop: Selection | None = key(None, "which of these are left out")


class Filter(Wrapper):
    """Leaves events out."""

    settings: ClassVar[type[Section]] = FilterSettings

    def __init__(self, settings: FilterSettings, make: Callable[[], Appender]) -> None:
        super().__init__(make)
        self._keep, self._drop = settings.keep, settings.drop

    def append(self, events: pa.Table) -> None:
        kept = self._keep.of(events)
        if self._drop is not None and kept.num_rows:
            numbers = pa.array(range(kept.num_rows), pa.int64())
            dropped = self._drop.of(kept.append_column("number", numbers)).column("number")
            kept = kept.filter(pc.invert(pc.is_in(numbers, dropped.combine_chunks())))
        if kept.num_rows:
            self._inner.append(kept)
