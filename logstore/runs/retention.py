"""The retention of runs: one time, and other times for some pipelines.

The service removes a run when its last line is older than that and records its deletion, by
which its lines leave the table as well. The table's own retention works in whole hours and
does not depend on pipelines, so by default it is the longest of these times.

A line is as old as its ULID says. A line that arrives late makes its run no younger than the line
itself is, so runs and hours of the table count alike.

All times are in days. A setting may say hours, as `36h`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from logstore.patterns import TextTest, wildcard_test

_TIME: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([dh])\s*")
_DAY_MS: Final = 86_400_000


def _days(value: object) -> object:
    """`12h` and `30d` are times; all else is left to pydantic to refuse."""
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    return float(found[1]) / (24 if found[2] == "h" else 1) if found else value


Days = Annotated[float, BeforeValidator(_days), Field(ge=0)]
"""A time in days; in settings also in hours, as `12h`."""


def time_text(days: float) -> str:
    """The time as a setting says it: `30`, or `12h` where it is no whole number of days."""
    return f"{days:g}" if days == int(days) else f"{days * 24:g}h"


class RunRetention(BaseModel):
    """The part of the section `runs` that service and compactor share."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    expiration_days: Days = Field(
        default=30,
        description="Runs are removed when their last line is so many days old, or hours, as `12h`;"
        " 0 keeps them for ever",
    )
    expiration_days_of: dict[str, Days] = Field(
        default={},
        description="The same for pipelines whose name matches a pattern (`*`, `?`, `[a-z]`), as "
        '`{"audit.*": 365, "scratch.*": 1}`; of several that match the first counts',
    )

    @field_validator("expiration_days_of")
    @classmethod
    def _patterns(cls, value: dict[str, float]) -> dict[str, float]:
        for name in value:
            try:
                wildcard_test(name)
            except ValueError as error:
                raise ValueError(f"{name[:80]!r} {error}") from None
        return value

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values. It does not have the tests of the patterns of before."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("_tests", None)
        return copied

    def days_of(self, fqn: str) -> float:
        """Days for which the pipeline's runs are kept; 0 for ever."""
        matching = (days for test, days in self._tests if test(fqn))
        return next(matching, self.expiration_days)

    @cached_property
    def _tests(self) -> Sequence[tuple[TextTest, float]]:
        return [(wildcard_test(name), days) for name, days in self.expiration_days_of.items()]

    def expires(self, fqn: str, last_ms: int, now_ms: int) -> bool:
        """Whether a run of the pipeline is removed now; `last_ms` is the time of its last line."""
        days = self.days_of(fqn)
        return days > 0 and now_ms - last_ms > days * _DAY_MS

    @property
    def longest_days(self) -> float:
        """Days after which no run of any pipeline is kept; 0 if some are kept for ever."""
        return max(self._all()) if all(self._all()) else 0

    @property
    def shortest_days(self) -> float:
        """Days for which the runs of every pipeline are kept; 0 for ever."""
        return min((days for days in self._all() if days), default=0)

    def remembered_days(self, table_days: float | None, away_days: float) -> float:
        """The age up to which a line's deletion is remembered for certain; 0 for ever.

        `table_days` is the table's own retention, None for that of the runs; a node may be away for
        `away_days`, and bring lines that would be as old as that beyond the retention.
        """
        runs = self.longest_days
        table = runs if table_days is None else table_days
        return max(runs, table) + away_days if runs and table else 0

    def _all(self) -> list[float]:
        return [self.expiration_days, *self.expiration_days_of.values()]


FOR_EVER: Final = RunRetention(expiration_days=0)
