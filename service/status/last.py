"""Which run of a pipeline is its last one: the one that began last.

A run begins with its first pipelineStatus, or with its first line if it has sent no
status. Of the runs with a status the last is, as upstream, the one with the newest
`timestamp`; a run without any that began after it goes before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from logstore.batch import RunKey
from logstore.errors import NotFound
from logstore.runs.report import Report
from service.status.status import RunStatus


class Begun(Protocol):
    """A run in a list, with the time of its first line in milliseconds."""

    @property
    def run(self) -> str: ...
    @property
    def first_ms(self) -> int | None: ...


class Runs(Protocol):
    """The lists of runs with lines."""

    async def runs(self, fqn: str, limit: int) -> Sequence[Begun]:
        """Runs of a pipeline, the one whose first line is newest first."""
        ...


async def last_run(status: RunStatus, text: Runs, fqn: str) -> tuple[RunKey, Report | None]:
    """The pipeline's last run, and its status if it has one.

    Raises `NotFound` if it has none, `StoreUnavailable`.
    """
    reported = (await status.of_pipeline(fqn, limit=1)).reports
    written = await text.runs(fqn, 1)
    if reported and not (written and _began_after(written[0], reported[0])):
        return reported[0].key, reported[0]
    if not written:
        raise NotFound(f"{fqn} has no runs", hint="Its first batch or pipelineStatus makes a run.")
    key = RunKey(fqn, written[0].run)
    return key, await status.get(key)


def _began_after(run: Begun, report: Report) -> bool:
    return run.run != report.key.run and (run.first_ms or 0) > report.created_ms
