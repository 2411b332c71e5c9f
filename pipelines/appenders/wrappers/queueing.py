"""`async`: takes events into a queue, and a thread of its own gives them to the wrapped appender.

    type: async
    queue_size: 16MiB
    to: {type: webhook, url: "https://hooks.example.org/logs"}

While the wrapped appender writes, the pipeline reads, filters and sorts what is next. When the
queue is full it waits. `sync` waits until the queue is empty, so a checkpoint holds what it holds
without this wrapper. `flush` is put into the queue, and what it gave is told by a later one. A
failure is raised by the next call.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa

from pipelines.appenders.contract import Appender, Context, State
from pipelines.appenders.wrappers.base import Wrapper
from pipelines.definition.section import Bytes, Section, key
from pipelines.deletions import Deleted


class AsyncSettings(Section):
    """How much may wait."""

    queue_size: Bytes = key(16 << 20, "bytes of events that wait; one batch always may")


class Async(Wrapper):
    """Writes in a thread of its own."""

    settings: ClassVar[type[Section]] = AsyncSettings

    def __init__(self, settings: AsyncSettings, make: Callable[[], Appender]) -> None:
        super().__init__(make)
        self._most = settings.queue_size
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._waiting = 0
        self._failure: BaseException | None = None
        self._flushed: Future[bool] | None = None
        self._thread: threading.Thread | None = None
        self._context: Context | None = None
        self._deleted: Deleted = {}  # as it was known when the events came that are written

    def start(self, context: Context, state: State | None) -> None:
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
        """What the last one gave, once it is through the queue: the pipeline does not wait."""
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
        """What the call gives in the thread, behind everything that waits there."""
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
