"""What operators ask of a log pipeline: to go on elsewhere. It is kept in the pipeline's group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Replay:
    """Where a log pipeline is to go on: at the ULID `low`, or without one with what comes.

    `id` is a ULID: of two replays the higher one counts.
    """

    id: str
    low: str | None
    asked_ms: int

    def value(self) -> dict[str, Any]:
        """It as JSON."""
        return {"id": self.id, "low": self.low, "at": self.asked_ms}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Self:
        """What `value` gave. Raises `KeyError`, `TypeError`, `ValueError`."""
        low = value["low"]
        return cls(str(value["id"]), None if low is None else str(low), int(value["at"]))
