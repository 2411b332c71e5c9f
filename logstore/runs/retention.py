"""The retention of runs: one number of days, and other numbers for some pipelines.

The service removes a run when its last line is older than that and records its deletion, by
which its lines leave the table as well. The table's own retention works in whole hours and
does not depend on pipelines, so by default it is the longest of these numbers.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from logstore.patterns import wildcard_test

Days = Annotated[int, Field(ge=0)]


class RunRetention(BaseModel):
    """The part of the section `runs` that service and compactor share."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    expiration_days: Days = Field(
        default=30,
        description="Runs are removed when their last line is this old; 0 keeps them for ever",
    )
    expiration_days_of: dict[str, Days] = Field(
        default={},
        description="The same for pipelines whose name matches a pattern (`*`, `?`, `[a-z]`), as "
        '`{"audit.*": 365, "scratch.*": 1}`; of several that match the first counts',
    )

    def days_of(self, fqn: str) -> int:
        """Days for which the pipeline's runs are kept; 0 for ever."""
        matching = (d for p, d in self.expiration_days_of.items() if wildcard_test(p)(fqn))
        return next(matching, self.expiration_days)

    @property
    def longest_days(self) -> int:
        """Days after which no run of any pipeline is kept; 0 if some are kept for ever."""
        return max(self._all()) if all(self._all()) else 0

    @property
    def shortest_days(self) -> int:
        """Days for which the runs of every pipeline are kept; 0 for ever."""
        return min((days for days in self._all() if days), default=0)

    def remembered_days(self, table_days: int | None, away_days: float) -> float:
        """The age up to which a line's deletion is remembered for certain; 0 for ever.

        `table_days` is the table's own retention, None for that of the runs; a node may be away for
        `away_days`, and bring lines that would be as old as that beyond the retention.
        """
        runs = self.longest_days
        table = runs if table_days is None else table_days
        return max(runs, table) + away_days if runs and table else 0

    def _all(self) -> list[int]:
        return [self.expiration_days, *self.expiration_days_of.values()]


FOR_EVER: Final = RunRetention(expiration_days=0)
