"""An appender that remembers what it got, and pipelines with some of it.

What a replay gives again is under the appender's name with a `+`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed
from tailrace.pipelines.appenders.contract import State as AppenderState
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.definition import AppenderConfig, AppenderPart, PipelineConfig, parse
from tailrace.pipelines.section import Section

PATIENCE_SECONDS = 60.0
FAST = {
    "event_delay_ms": 0,
    "idle_node_ms": 200,
    "checkpoint_interval_ms": 50,
    "retry_ms": 20,
    "most_retry_ms": 50,
}


class Nothing(Section):
    """No keys."""


class Remembering:
    """An appender in memory, which goes back as a file does; it fails when it is told to."""

    settings: ClassVar[type[Section]] = Nothing
    lines: ClassVar[dict[str, list[str]]] = {}
    failing: ClassVar[set[str]] = set()
    refused: ClassVar[set[str]] = set()
    """Lines that it can never take."""
    hanging: ClassVar[threading.Event] = threading.Event()

    def __init__(self, settings: Nothing) -> None:
        self._context: AppenderContext | None = None

    def start(self, context: AppenderContext, state: AppenderState | None) -> None:
        self._context = context
        del self._mine[0 if state is None else int(state["count"]) :]

    @property
    def _mine(self) -> list[str]:
        assert self._context is not None
        name = self._context.appender + ("+" if self._context.replay else "")
        return self.lines.setdefault(name, [])

    def append(self, events: pa.Table) -> None:
        assert self._context is not None
        if self._context.appender.startswith("hangs"):
            self.hanging.wait()
        poison = pc.is_in(
            events.column("message"), value_set=pa.array([*self.refused], pa.string())
        )
        if pc.any(poison).as_py():
            self._context.refuse(events.filter(poison), "it can never take this line")
            events = events.filter(pc.invert(poison))
        if events.num_rows == 0:
            return
        messages = events.column("message").to_pylist()
        self._context.metrics.counter("remembered", "Events, each time.").add(len(messages))
        self._context.metrics.gauge("newest_length", "Of the newest.").set(len(messages[-1]))
        self._mine.extend(messages[: len(messages) // 2])
        if self._context.appender in self.failing:
            raise AppenderFailed("its disk is full")
        self._mine.extend(messages[len(messages) // 2 :])

    def sync(self) -> AppenderState:
        return {"count": len(self._mine)}

    def saved(self) -> None:
        """Nothing is to be done."""

    def stop(self) -> None:
        """Nothing is to be done."""


@pytest.fixture(autouse=True)
def forget() -> None:
    """Before each test."""
    Remembering.lines = {}
    Remembering.failing = set()
    Remembering.refused = set()
    Remembering.hanging = threading.Event()


def pipeline(*names: str, **settings: Any) -> PipelineConfig:
    made = parse(
        {"name": "p", **FAST, **settings, "appenders": [{"type": "stdout", "name": "unused"}]},
        AppenderRegistry(),
    )
    appenders = tuple(
        AppenderConfig(AppenderPart(type="memory", name=name), Remembering, Nothing())
        for name in names
    )
    return PipelineConfig(made.settings, appenders)


def named(name: str, made: PipelineConfig) -> PipelineConfig:
    """The same pipeline under another name."""
    return PipelineConfig(made.settings.model_copy(update={"name": name}), made.appenders)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await asyncio.sleep(0.01)


def has(appender: str, *lines: str) -> Callable[[], bool]:
    return lambda: Remembering.lines.get(appender) == list(lines)
