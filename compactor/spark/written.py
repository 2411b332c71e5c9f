"""What a job has written, as the tasks counted it whose attempts were committed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Written:
    """Lines that are in the job's files, and lines that were left out as deleted."""

    rows: int
    deleted: int = 0
