"""What lists say of a run's log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a list; times in milliseconds since the epoch, of its first and last batch.

    `lines` is None while they are not counted: OpenMetadata wrote the run, nobody imported it.
    """

    run: str
    state: str
    lines: int | None
    bytes: int
    first_ms: int | None
    last_ms: int | None
