"""`retry`: an appender that failed is started again at once, before the pipeline counts a failure.

    type: retry
    attempts: 5
    pause: 200ms
    to: {type: otlp, url: "https://collector:4318/v1/logs"}

A failed `append` may have been done half. So a new appender is started from the last saved state
and gets everything again that came since then; these events are kept, up to `buffer_size`. If there
are more, none is kept, and until the next checkpoint a failure is the pipeline's, as it is when all
attempts failed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, TypeVar

import pyarrow as pa

from pipelines.appenders.contract import Appender, AppenderFailed, Context, State
from pipelines.appenders.wrappers.base import Wrapper
from pipelines.definition.section import Bytes, Seconds, Section, key
from pipelines.deletions import kept

log = logging.getLogger("tailrace.pipelines")
T = TypeVar("T")


class RetrySettings(Section):
    """How often, and how long."""

    attempts: int = key(5, "how often a failed call is tried again", ge=1, le=100)
    pause: Seconds = key(0.2, "before the first attempt; it doubles")
    most_pause: Seconds = key(5.0, "the longest pause")
    buffer_size: Bytes = key(64 << 20, "events since the last checkpoint that are kept for it")


class Retry(Wrapper):
    """Tries again what failed."""

    settings: ClassVar[type[Section]] = RetrySettings

    def __init__(self, settings: RetrySettings, make: Callable[[], Appender]) -> None:
        super().__init__(make)
        self._settings = settings
        self._most = settings.buffer_size
        self._context: Context | None = None
        self._saved: State | None = None
        self._synced: State | None = None
        self._said = ""
        # None: there were too many. In the last `sync`, which is not saved yet:
        self._settled: list[pa.Table] | None = []
        self._since: list[pa.Table] | None = []

    def start(self, context: Context, state: State | None) -> None:
        self._context, self._saved = context, state
        try:
            self._inner.start(context, state)
        except Exception as error:  # noqa: BLE001 -- an appender may raise anything
            self._say(error)
            self._trying(self._begin_again)

    def append(self, events: pa.Table) -> None:
        self._trying(lambda: self._inner.append(events))
        if self._since is not None:
            self._since.append(events)
        if sum(one.nbytes for one in (*(self._settled or ()), *(self._since or ()))) > self._most:
            self._settled = self._since = None

    def sync(self) -> State:
        state = self._trying(self._inner_sync)
        self._synced, self._settled, self._since = state, self._kept(), []
        return state

    def saved(self) -> None:
        self._saved, self._settled, self._said = self._synced, [], ""
        self._trying(self._inner_saved)

    def flush(self) -> bool:
        return self._trying(super().flush)

    # --- attempts ------------------------------------------------------------------------

    def _kept(self) -> list[pa.Table] | None:
        """All events behind the saved checkpoint; None if there were too many."""
        if self._settled is None or self._since is None:
            return None
        return [*self._settled, *self._since]

    def _inner_sync(self) -> State:
        return self._inner.sync()

    def _inner_saved(self) -> None:
        self._inner.saved()

    def _trying(self, call: Callable[[], T]) -> T:
        """What the call gives, at the first or a later attempt. Raises its last failure."""
        pause, attempt = self._settings.pause, 0
        again = False
        while True:
            try:
                if again:
                    self._begin_again()
                return call()
            except Exception as error:
                attempt += 1
                if attempt > self._settings.attempts or self._kept() is None:
                    raise
                self._say(error)
            threading.Event().wait(pause)
            if self._context is not None and not self._context.holds():
                raise AppenderFailed(f"the lease of {self._name} is over")
            pause, again = min(pause * 2, self._settings.most_pause), True

    @property
    def _name(self) -> str:
        return "an appender" if self._context is None else self._context.name

    def _say(self, error: Exception) -> None:
        """Says why it tries again, once until a checkpoint is saved."""
        if str(error) != self._said:
            self._said = str(error)
            log.warning("%s tries again: %s", self._name, error)

    def _begin_again(self) -> None:
        """Another appender, at the last saved state, with everything that came since."""
        assert self._context is not None
        with suppress(Exception):  # it failed: what matters is that nothing of it is left
            self._inner.stop()
        self._inner = self._make()
        self._inner.start(self._context, self._saved)
        for events in self._kept() or ():  # what was deleted meanwhile does not come again
            left = kept(events, self._context.deletions())
            if left.num_rows:
                self._inner.append(left)
