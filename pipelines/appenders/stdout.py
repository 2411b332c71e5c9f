"""Writes events to standard output, for a look, or for whatever collects the output of containers.

It cannot go back: after a crash the events behind the last checkpoint are written again.
"""

from __future__ import annotations

import sys
from typing import ClassVar

import pyarrow as pa

from pipelines.appenders.contract import Context, State
from pipelines.definition.section import Section, key
from pipelines.layouts import Json, Layout


class StdoutSettings(Section):
    """How an event becomes a line."""

    layout: Layout = key(Json(), "how an event becomes a line")


class Stdout:
    """Standard output."""

    settings: ClassVar[type[Section]] = StdoutSettings

    def __init__(self, settings: StdoutSettings) -> None:
        self._layout = settings.layout

    def start(self, context: Context, state: State | None) -> None:
        """Nothing is to be done."""

    def append(self, events: pa.Table) -> None:
        sys.stdout.writelines(self._layout.lines(events).to_pylist())

    def sync(self) -> State:
        sys.stdout.flush()
        return {}

    def saved(self) -> None:
        """Nothing is to be done."""

    def stop(self) -> None:
        sys.stdout.flush()
