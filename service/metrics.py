"""Counts of the service, as Prometheus reads them.

The hot path adds to plain integers; a collector reads them when somebody scrapes. A
metric costs nothing in between.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HttpCounters:
    """What the HTTP doors count. All only grow, but `readers`."""

    append_requests: int = 0
    append_refused: int = 0
    close_requests: int = 0
    body_bytes: int = 0
    replaced: int = 0
    disconnects: int = 0
    readers: int = 0
    stream_events: int = 0
    stream_bytes: int = 0
