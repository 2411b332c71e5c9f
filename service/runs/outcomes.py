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
for as long as its run may stay open (`runs.stream_timeout_minutes`). After that time without a sign
of any client the sweeper closes the run, whose manifest says `abandoned`; a later report takes that
back. No node decides alone and nothing is stored: each node comes to the same answer from the
manifest, the report and its clock.
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

    def heartbeat_seconds(self, said: Said) -> float | None:
        """How often a client is to repeat such a report; None if it does not, or the run ended."""
        if not said.repeated or _is_end(said):
            return None
        return self._patience(said) / _HEARTBEATS

    def _patience(self, said: Said) -> float:
        return self.lost_seconds if said.heartbeat else self.timeout_seconds

    def decide(self, run: RunState, report: Report | None, now_ms: int) -> str | None:
        """The outcome of a run; None if it goes on, or if the state of its log is not known."""
        said = _NOTHING if report is None else report.said
        if said.state in _ENDED:
            return _ENDED[said.state]
        oldest_ms = now_ms - self._patience(said) * 1000
        if run.state == "closed":
            if not run.abandoned:
                return UNKNOWN
            return None if alive_ms(report) > oldest_ms else LOST
        if run.state != "open" or said.state == "queued":
            return None
        heard_ms = max(run.last_ms or 0, 0 if report is None else report.stored_ms)
        return LOST if heard_ms and heard_ms < oldest_ms else None


def alive_ms(report: Report | None) -> int:
    """When a client last said that its run goes on, or is to begin; 0 if it did not."""
    return 0 if report is None or _is_end(report.said) else report.stored_ms


def is_late(said: Said, stored: Said) -> bool:
    """Whether a client said that its run goes on before the end that is stored.

    Only clients that repeat their reports are judged, by their own times: a run that begins again
    has a start after that end.
    """
    if said.state != "running" or not said.repeated or not _is_end(stored):
        return False
    end = max(stored.ended_ms or 0, stored.moment_ms or 0, stored.started_ms or 0)
    return said.started_ms is not None and said.started_ms <= end


def _is_end(said: Said) -> bool:
    return said.state in TERMINAL or (said.state is None and said.ended_ms is not None)


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
