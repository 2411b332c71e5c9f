"""Events for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tailrace.logstore import ulid
from tailrace.pipelines.events import EVENTS

BASE_MS = 1_700_000_000_000


def events(
    messages: Sequence[str],
    *,
    fqn: str = "a.b",
    run: str = "r",
    at_ms: int = BASE_MS,
    step_ms: int = 0,
    received_ms: int | None = None,
    level: str | None = "INFO",
    attributes: Mapping[str, str] | None = None,
    batch: int = 0,
    carried: Sequence[bool | None] | None = None,
) -> pa.Table:
    """Events with these messages, `step_ms` apart, of one batch that came at `received_ms`."""
    received = at_ms if received_ms is None else received_ms
    count = len(messages)
    stamps = [(at_ms + i * step_ms) * 1000 for i in range(count)]
    return pa.table(
        {
            "ulid": [ulid.encode(received << 80 | batch << 25 | i) for i in range(count)],
            "ts": pa.array(stamps, pa.timestamp("us", "UTC")),
            "fqn": [fqn] * count,
            "run_id": [run] * count,
            "level": pa.array([level] * count, pa.string()),
            "connector_id": pa.nulls(count, pa.string()),
            "message": list(messages),
            "attributes": pa.array(
                [list((attributes or {}).items()) or None] * count, EVENTS.field("attributes").type
            ),
            "carried": pa.array(carried or [None] * count, pa.bool_()),
        },
        schema=EVENTS,
    )
