"""Times for people and for programs that read what we tell."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(ms: int) -> str:
    """Milliseconds since the epoch as UTC, as in `2026-11-21T12:00:00.000Z`."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span(seconds: float) -> str:
    """Seconds as in `0:01:05`."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
