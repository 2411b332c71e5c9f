"""An appender as somebody else would write one: it counts lines by level in a JSON file."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import ClassVar

import pyarrow as pa

from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, State
from tailrace.pipelines.section import Section, setting


class CountingSettings(Section):
    """Where the counts go."""

    file: str = setting(..., "the file of the counts")
    fail_while: str = setting("", "it fails as long as this file is there")


class Counting:
    """Counts lines by level; exact, because its state is saved with each checkpoint."""

    settings: ClassVar[type[Section]] = CountingSettings

    def __init__(self, settings: CountingSettings) -> None:
        self._settings = settings
        self._counts: Counter[str] = Counter()

    def start(self, context: AppenderContext, state: State | None) -> None:
        self._counts = Counter((state or {}).get("counts", {}))

    def append(self, events: pa.Table) -> None:
        if self._settings.fail_while and os.path.exists(self._settings.fail_while):
            raise AppenderFailed(f"{self._settings.fail_while} is there")
        self._counts.update(events.column("level").to_pylist())

    def sync(self) -> State:
        with open(self._settings.file, "w", encoding="utf-8") as file:
            json.dump(self._counts, file)
        return {"counts": dict(self._counts)}

    def saved(self) -> None:
        """Nothing is to be done."""

    def stop(self) -> None:
        """Nothing is to be done."""
