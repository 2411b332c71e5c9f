"""The metrics of doors move with what they count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from service.metrics.http import HTTP
from tests.service.doors.test_rights import LOGS, PUSH, otlp, push
from tests.service.http.conftest import Serve

MOVE_AT_DOORS = {f"tailrace_door_{name}" for name in ("records", "repeats", "refused")}


async def test_records_repeats_and_refusals_are_counted_by_door(direct: Serve) -> None:
    served = await direct()

    def shown() -> dict[str, Any]:
        sources = cast("Any", SimpleNamespace(http=served.counters))
        return {
            metric.name: metric.read(sources) for metric in HTTP if metric.name in MOVE_AT_DOORS
        }

    assert shown() == {key: {} for key in MOVE_AT_DOORS}
    for body, path in [(push("a", "b"), PUSH), (push("a", "b"), PUSH), (otlp("a", ".."), LOGS)]:
        await served.client.post(path, content=body, headers={"content-type": "application/json"})
    assert shown() == {
        "tailrace_door_records": {"loki": 2, "otlp": 1},
        "tailrace_door_repeats": {"loki": 2, "otlp": 0},
        "tailrace_door_refused": {"loki": 0, "otlp": 1},
    }
