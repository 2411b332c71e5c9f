"""What all wrappers do: give every call on."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pyarrow as pa

from pipelines.appenders.contract import Appender, Context, Deletable, Flushable, State
from pipelines.deletions import Deleted


class Wrapper:
    """Gives every call on to the appender that `make` gives; a wrapper overrides some."""

    wraps: ClassVar[bool] = True
    dead_letters_too: ClassVar[bool] = False
    """Whether it also stands before the dead-letter file of what it wraps."""

    def __init__(self, make: Callable[[], Appender]) -> None:
        self._make = make
        self._inner = make()

    def start(self, context: Context, state: State | None) -> None:
        self._inner.start(context, state)

    def append(self, events: pa.Table) -> None:
        self._inner.append(events)

    def sync(self) -> State:
        return self._inner.sync()

    def saved(self) -> None:
        self._inner.saved()

    def stop(self) -> None:
        self._inner.stop()

    def flush(self) -> bool:
        """As `Flushable`, if the wrapped appender is."""
        return isinstance(self._inner, Flushable) and bool(self._inner.flush())

    def deleted(self, deleted: Deleted) -> None:
        """As `Deletable`, if the wrapped appender is."""
        if isinstance(self._inner, Deletable):
            self._inner.deleted(deleted)
