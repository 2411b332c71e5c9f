"""Limits of the segment queue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Times in seconds; the settings `queue.*` say what each is for."""

    lease_seconds: float = 60.0
    max_lease_seconds: float = 3600.0
    max_attempts: int = 5
    outstanding: int = 64
    retry_seconds: float = 1.0
    longest_retry_seconds: float = 60.0
    max_wait_seconds: float = 60.0
    max_waiting: int = 1000
    poll_seconds: float = 1.0
    report_seconds: float = 30.0
    max_groups: int = 1000
    new_groups_per_hour: int = 100
    unused_group_seconds: float = 3600.0
    readers: int = 2
    """Segments that are decoded at the same time."""
    decoded_bytes: int = 64 << 20
    """Of row groups, kept for those who read on."""
    relist_seconds: float = 600.0
    """A listing from the beginning, which sees what was deleted."""
