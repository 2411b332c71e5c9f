"""Wrappers: appenders that give their events on to another one, configured under `to`.

filter  leaves events out      mask   replaces text by regular expression retry   tries again by
itself  async  does not wait for the wrapped one

They can be nested. The state of a checkpoint is that of the wrapped appender, so an appender that
writes exactly once does so in a wrapper as well.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Final, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import field_validator, model_validator

from tailrace.logstore.retry import Backoff
from tailrace.pipelines.appenders.contract import (
    AppenderContext,
    AppenderFailed,
    Deletable,
    Flushable,
    PipelineAppender,
    State,
)
from tailrace.pipelines.events import Deleted, kept
from tailrace.pipelines.section import Bytes, Seconds, Section, setting
from tailrace.pipelines.selection import Selection

# The base of all wrappers: it passes every call on.


class Wrapper:
    """Gives every call on to the appender that `make` gives; a wrapper overrides some."""

    wraps: ClassVar[bool] = True
    dead_letters_too: ClassVar[bool] = False
    """Whether it also stands before the dead-letter file of what it wraps."""

    def __init__(self, make: Callable[[], PipelineAppender]) -> None:
        self._make = make
        self._inner = make()

    def start(self, context: AppenderContext, state: State | None) -> None:
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


# `mask`: replaces text that regular expressions match, before anything is written.
#
#   type: mask
#   rules:
#     - {pattern: '(?i)(password|token)=[^ ]+', replace: '\1=***'}
#   attributes: true
#   to: {type: rolling_file, dir: /var/log/runs}
#
# Expressions are RE2's, which take time in proportion to the text. `mask` also precedes the
# dead-letter file, so that masked text is written nowhere.
#
# The size of replacements is bounded, since a short pattern may match at each character and each
# rule again in the text of the rule before: a text that would grow to more than four times its size
# and 1 KiB becomes one mask as a whole.


_MOST_REPLACEMENT: Final = 200
_MOST_RULES: Final = 100
_PIECE_BYTES: Final = 1 << 20
"""Of texts that are masked together."""
_TIMES, _MORE_BYTES = 4, 1 << 10
_WHOLE: Final = "(masked as a whole: its replacements need too much room)"


class MaskRule(Section):
    """A pattern and the text that replaces each match."""

    pattern: str = setting(..., "a regular expression (RE2)")
    replace: str = setting(
        "***",
        r"replacement of at most 200 characters; \1 is the first group",
        max_length=_MOST_REPLACEMENT,
    )

    @model_validator(mode="after")
    def _works(self) -> Self:
        try:
            pc.replace_substring_regex(
                pa.array([""]), pattern=self.pattern, replacement=self.replace
            )
        except pa.ArrowInvalid as error:
            raise ValueError(f"the rule {self.pattern!r} is invalid: {error}") from None
        return self


class MaskSettings(Section):
    """What is masked, and where."""

    rules: tuple[MaskRule, ...] = setting(..., "rules, applied in order")
    attributes: bool = setting(True, "mask the values of attributes as well")

    @field_validator("rules")
    @classmethod
    def _some(cls, value: tuple[MaskRule, ...]) -> tuple[MaskRule, ...]:
        if not value:
            raise ValueError("must have at least one rule")
        if len(value) > _MOST_RULES:
            raise ValueError(f"has more than {_MOST_RULES} rules")
        return value


class Mask(Wrapper):
    """Replaces text of messages and attributes."""

    settings: ClassVar[type[Section]] = MaskSettings
    dead_letters_too: ClassVar[bool] = True

    def __init__(self, settings: MaskSettings, make: Callable[[], PipelineAppender]) -> None:
        super().__init__(make)
        self._settings = settings

    def append(self, events: pa.Table) -> None:
        at = events.schema.get_field_index("message")
        message = self._masked(events.column("message").combine_chunks())
        events = events.set_column(at, events.schema.field(at), message)
        if self._settings.attributes:
            at = events.schema.get_field_index("attributes")
            maps = self._masked_values(events.column("attributes").combine_chunks())
            events = events.set_column(at, events.schema.field(at), maps)
        self._inner.append(events)

    def _masked(self, texts: pa.Array) -> pa.Array:
        pieces = [self._piece(piece) for piece in _pieces(texts)]
        return pa.concat_arrays(pieces) if pieces else texts

    def _piece(self, texts: pa.Array) -> pa.Array:
        given, nothing = texts, pa.scalar(None, texts.type)
        most = pc.add(pc.multiply(_sizes(texts), _TIMES), _MORE_BYTES)
        for rule in self._settings.rules:
            if len(texts) == 1 and pc.greater(_at_most(rule, texts), most)[0].as_py():
                texts = pa.nulls(1, texts.type)
                break
            texts = pc.replace_substring_regex(
                texts, pattern=rule.pattern, replacement=rule.replace
            )
            texts = pc.if_else(pc.greater(_sizes(texts), most), nothing, texts)
        if texts.null_count == given.null_count:
            return texts
        return pc.if_else(given.is_valid(), pc.fill_null(texts, _WHOLE), texts)

    def _masked_values(self, maps: pa.MapArray) -> pa.MapArray:
        """The same maps with masked values."""
        offsets = pa.array(maps.offsets.to_numpy())
        values = self._masked(maps.items)
        return pa.MapArray.from_arrays(
            offsets, maps.keys, values, type=maps.type, mask=maps.is_null()
        )


def _sizes(texts: pa.Array) -> pa.Array:
    return pc.binary_length(texts).cast(pa.int64())


def _at_most(rule: MaskRule, texts: pa.Array) -> pa.Array:
    """Bytes of each text with the rule's replacements, or more: each reference may be all of it."""
    matches = pc.count_substring_regex(texts, pattern=rule.pattern).cast(pa.int64())
    added = pc.multiply(matches, len(rule.replace.encode()))
    return pc.add(pc.multiply(_sizes(texts), 1 + rule.replace.count("\\")), added)


def _pieces(texts: pa.Array) -> Iterator[pa.Array]:
    """The texts in their order, some at a time; a long one is alone."""
    ends = np.cumsum(pc.fill_null(_sizes(texts), 0).to_numpy(zero_copy_only=False))
    at, before = 0, 0
    while at < len(texts):
        end = int(np.searchsorted(ends, before + _PIECE_BYTES, side="right"))
        end = max(end, at + 1)
        yield texts[at:end]
        at, before = end, int(ends[end - 1])


# `filter`: gives on only some events, for use inside another wrapper.
#
#   type: filter
#   keep: {level: INFO}                # all keys of a filter; default: everything
#   drop: {logger: "org.apache.*"}     # of these, events to leave out; default: nothing
#   to: {type: stdout}


class FilterSettings(Section):
    """What is kept, and what of that is left out."""

    keep: Selection = setting(Selection(), "events to pass on")
    drop: Selection | None = setting(None, "events of these to leave out")


class Filter(Wrapper):
    """Leaves events out."""

    settings: ClassVar[type[Section]] = FilterSettings

    def __init__(self, settings: FilterSettings, make: Callable[[], PipelineAppender]) -> None:
        super().__init__(make)
        self._keep, self._drop = settings.keep, settings.drop

    def append(self, events: pa.Table) -> None:
        kept = self._keep.of(events)
        if self._drop is not None and kept.num_rows:
            numbers = pa.array(range(kept.num_rows), pa.int64())
            dropped = self._drop.of(kept.append_column("number", numbers)).column("number")
            kept = kept.filter(pc.invert(pc.is_in(numbers, dropped.combine_chunks())))
        if kept.num_rows:
            self._inner.append(kept)


# `async`: takes events into a queue, and a thread of its own gives them to the wrapped appender.
#
#   type: async
#   queue_size: 16MiB
#   to: {type: webhook, url: "https://hooks.example.org/logs"}
#
# While the wrapped appender writes, the pipeline reads, filters and sorts the next events. When the
# queue is full it waits. `sync` waits until the queue is empty, so a checkpoint holds the same as
# without this wrapper. `flush` is put into the queue, and a later call returns its result. A
# failure is raised by the next call.


class AsyncSettings(Section):
    """How much may wait."""

    queue_size: Bytes = setting(16 << 20, "maximum size of waiting events; one batch may be larger")


class Async(Wrapper):
    """Writes in a thread of its own."""

    settings: ClassVar[type[Section]] = AsyncSettings

    def __init__(self, settings: AsyncSettings, make: Callable[[], PipelineAppender]) -> None:
        super().__init__(make)
        self._most = settings.queue_size
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._waiting = 0
        self._failure: BaseException | None = None
        self._flushed: Future[bool] | None = None
        self._thread: threading.Thread | None = None
        self._context: AppenderContext | None = None
        self._deleted: Deleted = {}  # as it was known when the events came that are written

    def start(self, context: AppenderContext, state: State | None) -> None:
        self._context, self._deleted = context, context.deletions()
        self._thread = threading.Thread(
            target=self._work, name=f"{context.name}.async", daemon=True
        )
        self._thread.start()
        inner = replace(context, deletions=lambda: self._deleted)
        self._wait_for(super().start, inner, state)

    def append(self, events: pa.Table) -> None:
        size, deleted = events.nbytes, {} if self._context is None else self._context.deletions()
        with self._changed:
            self._changed.wait_for(
                lambda: not self._waiting or self._waiting + size <= self._most or self._failure
            )
            self._raise_failure()
            self._waiting += size

        def work() -> None:
            try:
                if self._failure is None:
                    self._deleted = deleted
                    self._inner.append(events)
            except BaseException as error:  # noqa: BLE001 -- it is raised by the next call
                self._failure = error
            finally:
                with self._changed:
                    self._waiting -= size
                    self._changed.notify()

        self._calls.put(work)

    def sync(self) -> State:
        state: State = self._wait_for(super().sync)
        return state

    def saved(self) -> None:
        self._wait_for(super().saved)

    def flush(self) -> bool:
        """The result of the last `flush` that left the queue: the pipeline does not wait."""
        last = self._flushed
        self._raise_failure()
        if last is not None and not last.done():
            return False
        self._flushed = self._later(super().flush)
        return last is not None and last.result()

    def deleted(self, deleted: Deleted) -> None:
        self._wait_for(super().deleted, deleted)

    def stop(self) -> None:
        if self._thread is None:
            return
        stopped: Future[None] = Future()
        self._calls.put(lambda: _settle(stopped, super(Async, self).stop))
        self._calls.put(None)
        self._thread.join()
        self._thread = None
        stopped.result()

    # --- the thread ----------------------------------------------------------------------

    def _wait_for(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """The result of the call in the thread, after everything that waits in the queue."""
        return self._later(call, *arguments).result()

    def _later(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """The same, without waiting for it."""
        done: Future[Any] = Future()

        def work() -> None:
            if self._failure is not None:
                done.set_exception(self._failure)
            else:
                _settle(done, call, *arguments)
                self._failure = done.exception()

        self._calls.put(work)
        return done

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _settle(done: Future[Any], call: Callable[..., Any], *arguments: Any) -> None:
    try:
        done.set_result(call(*arguments))
    except BaseException as error:  # noqa: BLE001 -- it is raised where it is waited for
        done.set_exception(error)


# `retry`: an appender that failed is started again at once, before the pipeline counts a failure.
#
#   type: retry
#   attempts: 5
#   pause: 200ms
#   to: {type: otlp, url: "https://collector:4318/v1/logs"}
#
# A failed `append` may have been half done. So a new appender is started from the last saved state
# and gets all later events again; these events are kept, up to `buffer_size`. If there are more,
# none is kept, and until the next checkpoint a failure is the pipeline's, as it is when all
# attempts failed.


log = logging.getLogger("tailrace.pipelines")
T = TypeVar("T")


class RetrySettings(Section):
    """How often, and how long."""

    attempts: int = setting(5, "how often a failed call is tried again", ge=1, le=100)
    pause: Seconds = setting(0.2, "pause before the first retry; it doubles")
    most_pause: Seconds = setting(5.0, "the longest pause")
    buffer_size: Bytes = setting(64 << 20, "maximum size of the events kept for a retry")


class RetryingAppender(Wrapper):
    """Starts the wrapped appender again after a failure."""

    settings: ClassVar[type[Section]] = RetrySettings

    def __init__(self, settings: RetrySettings, make: Callable[[], PipelineAppender]) -> None:
        super().__init__(make)
        self._settings = settings
        self._most = settings.buffer_size
        self._context: AppenderContext | None = None
        self._saved: State | None = None
        self._synced: State | None = None
        self._said = ""
        # None: there were too many. In the last `sync`, which is not saved yet:
        self._settled: list[pa.Table] | None = []
        self._since: list[pa.Table] | None = []

    def start(self, context: AppenderContext, state: State | None) -> None:
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
        """All events after the saved checkpoint; None if there were too many."""
        if self._settled is None or self._since is None:
            return None
        return [*self._settled, *self._since]

    def _inner_sync(self) -> State:
        return self._inner.sync()

    def _inner_saved(self) -> None:
        self._inner.saved()

    def _trying(self, call: Callable[[], T]) -> T:
        """The result of the call, at the first or a later attempt. Raises its last failure."""
        pauses, attempt = Backoff(self._settings.pause, self._settings.most_pause), 0
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
            threading.Event().wait(pauses.next())
            if self._context is not None and not self._context.holds():
                raise AppenderFailed(f"the lease of {self._name} is over")
            again = True

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
