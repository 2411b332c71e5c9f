"""How a run ended: the one place that decides it, for lists, pages and the command line.

| outcome | the run |
| --- | --- |
| `succeeded` | ended, and its client reports `success` or `partialSuccess` |
| `failed`, `cancelled` | ended, and its client reports `failed`, `stopped` |
| `lost` | gave no sign of life for too long: its client died. It goes on when a sign comes |
| `unknown` | was closed, and nobody said how it ended |
| none | goes on |

Signs of life are lines and reports. A client that reports `"heartbeat": true` repeats its report
while it lives, so it is lost after `runs.lost_minutes` of silence. Any other client may be silent
for as long as its run may stay open (`runs.stream_timeout_minutes`); then the sweeper closes the
run, whose manifest says `abandoned`. No node decides alone and nothing is stored: each node comes
to the same answer from the manifest, the report and its clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from logstore.runs.report import Report, Said

SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
LOST: Final = "lost"
UNKNOWN: Final = "unknown"
OUTCOMES: Final = (SUCCEEDED, FAILED, CANCELLED, LOST, UNKNOWN)
RUNNING: Final = "running"
UNREPORTED: Final = "none"

_ENDED: Final = {
    "success": SUCCEEDED,
    "partialSuccess": SUCCEEDED,
    "failed": FAILED,
    "stopped": CANCELLED,
}
TERMINAL = frozenset(_ENDED)
"""Values of `pipelineState` that end a run."""
REPORTED = TERMINAL | {"queued", "running"}
"""All values of `pipelineState`."""
FILTERS: Final = (*OUTCOMES, *sorted(REPORTED - set(OUTCOMES)), UNREPORTED)
"""Words of a filter: outcomes, `running` for none, and what a client reported."""
_HEARTBEATS: Final = 4
_NOTHING: Final = Said(None, None)


class RunState(Protocol):
    """The facts of a run's log that its outcome depends on."""

    @property
    def state(self) -> str: ...
    @property
    def last_ms(self) -> int | None: ...
    @property
    def abandoned(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class RunOutcomes:
    """Decides outcomes. `lost_seconds` is for clients with a heartbeat, `timeout_seconds` for
    others."""

    lost_seconds: float
    timeout_seconds: float

    @property
    def heartbeat_seconds(self) -> float:
        """How often a client with a heartbeat reports."""
        return self.lost_seconds / _HEARTBEATS

    def decide(self, run: RunState, report: Report | None, now_ms: int) -> str | None:
        """The outcome of a run; None if it goes on, or if the state of its log is not known."""
        said = _NOTHING if report is None else report.said
        if said.state in _ENDED:
            return _ENDED[said.state]
        if run.state == "closed":
            return LOST if run.abandoned else UNKNOWN
        if run.state != "open" or said.state == "queued":
            return None
        heard_ms = max(run.last_ms or 0, 0 if report is None else report.stored_ms)
        patience = self.lost_seconds if said.heartbeat else self.timeout_seconds
        return LOST if heard_ms and now_ms - heard_ms > patience * 1000 else None


def state_without_lines(report: Report) -> str:
    """The state of a run that has a report and no lines."""
    said = report.said
    return "closed" if report.closed or said.state in TERMINAL or said.ended_ms else "open"


def filter_words(outcome: str | None, report: Report | None) -> frozenset[str]:
    """The words of `FILTERS` that find such a run."""
    reported = None if report is None else report.said.state
    words = {outcome or RUNNING, reported or UNREPORTED}
    if outcome is not None or reported == "queued":
        words.discard(RUNNING)
    return frozenset(words)
