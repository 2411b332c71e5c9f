"""The contract of an appender: it takes events in order, and returns its state at checkpoints.

    start(context, state) ─► append … append ─► sync ─► (the checkpoint is saved) ─► saved ─►
    append …
                                                                                       stop ◄──┘

- `start` gets the state of the last saved checkpoint, or None. The appender goes back to that
  state: the events after it come again. One that cannot go back (a webhook) gets some events twice.
- `append` gets events in the order of their time (columns of `tailrace.pipelines.events.EVENTS`).
  If some are out of order, a column `order` has `late`, `forced`, or null for those in order.
- `sync` returns once all appended events would survive a power cut, and gives the state to be
  saved: JSON of at most some kilobytes. If saving fails, `append` goes on, and `sync` is called
  again later.
- `saved` says that the state of the last `sync` is in the store, so that no start goes back to an
  earlier one.
- An event that can never be taken (its target refuses it as it is, or its name cannot be written)
  is no failure: the appender gives it to `context.refuse` with the reason, and goes on. It becomes
  a dead letter, which `tailrace pipelines redeliver` sends again.
- A failure of any call is an exception. The appender is then stopped, started again from the last
  checkpoint after a pause, and no other appender waits for that.

All calls are made in a thread, one at a time; `stop` is called in every case, also after a failed
`start`.

An appender may have two more methods (`Flushable`, `Deletable`): `flush` is called about twice a
second, also while no event comes, and `deleted` when runs or pipelines were deleted. The context
gives the generation of each run: a run that was deleted and written again is another one.

`AppenderMetrics` has the counters and gauges of an appender itself.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa
from prometheus_client.core import Metric

from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import InvalidInput, TailraceError
from tailrace.logstore.filesystem import FileSystem
from tailrace.logstore.objects.config import StoreSettings
from tailrace.logstore.prometheus import Kind, family
from tailrace.pipelines.events import Deleted, generation
from tailrace.pipelines.section import Section

# Counters and gauges that an appender declares for itself, in addition to those of every appender.
#
#   def start(self, context, state):
#       self._rows = context.metrics.counter("rows_written", "Rows that the database took.")
#
#   tailrace_pipelines_appender_rows_written_total{pipeline="audit",appender="database",part="0"} 3
#
# They grow for as long as the process runs, also over restarts of the appender. An appender chooses
# the names, at most 32, and never the labels, so nothing in a log line can make more series.


LABELS: Final = ("pipeline", "appender", "part")
MOST: Final = 32
_PREFIX: Final = "tailrace_pipelines_appender_"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,59}(?<!_)(?<!_total)")


@dataclass(slots=True)
class AppenderCounter:
    """A number that grows."""

    value: float = 0.0

    def add(self, amount: float = 1.0) -> None:
        """Raises `InvalidInput` for less than nothing."""
        if not amount >= 0:
            raise InvalidInput(f"a counter cannot grow by {amount}", hint="Use a gauge.")
        self.value += amount


@dataclass(slots=True)
class AppenderGauge:
    """A number that goes up and down."""

    value: float = 0.0

    def set(self, value: float) -> None:
        """The value from now on."""
        self.value = value


@dataclass(frozen=True, slots=True)
class DeclaredMetrics:
    """The metrics that the appenders of a process have declared: name to kind and help.

    Two appenders with one name share it: the first one's help counts.
    """

    known: dict[str, tuple[Kind, str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def declare(self, name: str, kind: Kind, text: str) -> None:
        """Raises `InvalidInput` if the name is of the other kind."""
        with self.lock:
            before, _ = self.known.setdefault(name, (kind, text))
        if before != kind:
            raise InvalidInput(
                f"the metric {name!r} is a {before} already, and cannot be a {kind} too",
                hint="Give one of them another name.",
            )


class AppenderMetrics:
    """The numbers of one part of an appender. `names` are those of the whole process."""

    def __init__(self, names: DeclaredMetrics | None = None) -> None:
        self._names = names or DeclaredMetrics()
        self._counters: dict[str, AppenderCounter] = {}
        self._gauges: dict[str, AppenderGauge] = {}

    def counter(self, name: str, text: str) -> AppenderCounter:
        """The counter of this name, the same one each time. Raises `InvalidInput`.

        A name is lower case, without `_total`, which Prometheus adds; `text` says what is counted.
        """
        self._declare(name, "counter", text)
        return self._counters.setdefault(name, AppenderCounter())

    def gauge(self, name: str, text: str) -> AppenderGauge:
        """The gauge of this name, the same one each time. Raises `InvalidInput`."""
        self._declare(name, "gauge", text)
        return self._gauges.setdefault(name, AppenderGauge())

    def values(self) -> Mapping[str, float]:
        """All present values by name; may be called by another thread."""
        counters = {name: made.value for name, made in list(self._counters.items())}
        return counters | {name: made.value for name, made in list(self._gauges.items())}

    def _declare(self, name: str, kind: Kind, text: str) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                f"{name!r} cannot be the name of a metric",
                hint="Use a-z, 0-9 and _, at most 60 of them, without _total at the end.",
            )
        there = self._counters.keys() | self._gauges.keys()
        if name not in there and len(there) >= MOST:
            raise InvalidInput(f"an appender has at most {MOST} metrics of its own")
        self._names.declare(name, kind, text)


def collect_own(
    names: DeclaredMetrics, parts: Mapping[tuple[str, ...], AppenderMetrics]
) -> Iterator[Metric]:
    """The samples of all parts, which are by pipeline, appender and part."""
    values = {labels: part.values() for labels, part in list(parts.items())}
    for name, (kind, text) in sorted(names.known.items()):
        reading = {labels: own[name] for labels, own in values.items() if name in own}
        yield family(_PREFIX + name, kind, text, LABELS, reading)


State: TypeAlias = Mapping[str, Any]
"""What an appender needs to go back to a checkpoint; JSON."""


class AppenderFailed(TailraceError):
    """The appender could not do what it was asked; it is started again after a pause."""


class Refuse(Protocol):
    """Takes events that an appender can never take as they are."""

    def __call__(self, events: pa.Table, reason: str, detail: str = "", /) -> None:
        """Makes them dead letters. `detail` is in these alone, and in no log."""
        ...


def _fail(events: pa.Table, reason: str, detail: str = "") -> None:
    """Where nothing takes dead letters, a refused event is a failure."""
    said = f"{reason}: {detail}" if detail else reason
    raise AppenderFailed(f"{events.num_rows} events are refused: {said}")


@dataclass(frozen=True, slots=True)
class AppenderContext:
    """The context of an appender: its identity, and the parts of the process that it may use.

    `part` is its part of the pipelines' names, of `parts`. `holds` says whether its lease is valid:
    an appender whose effects others see asks before each. `fs` makes files for their owner alone.
    `instance` is the process. `store` says where the pipeline's own store is; None in a test
    without one. `deletions` returns the deletions that were known when the appended events were
    checked: they cover none of them. `replay` is the id of a replay (a ULID) whose events the
    appender had before: it keeps them apart from the others. It is empty for all other events.
    `metrics` are counters and gauges of the appender's own. `refuse` takes events that can never be
    taken; it may be called from any thread.
    """

    pipeline: str
    appender: str
    part: int
    parts: int
    fs: FileSystem
    clock: Clock
    holds: Callable[[], bool]
    instance: str = ""
    store: StoreSettings | None = None
    deletions: Callable[[], Deleted] = dict
    replay: str = ""
    metrics: AppenderMetrics = field(default_factory=AppenderMetrics)
    refuse: Refuse = _fail

    @property
    def name(self) -> str:
        """Its name among all, fit for a file."""
        whole = f"{self.pipeline}.{self.appender}.{self.part}"
        return f"{whole}.{self.replay}" if self.replay else whole

    def generation(self, fqn: str, run: str | None) -> int:
        """The ULID up to which lines of this run, or of the pipeline, were deleted; 0: never."""
        return generation(self.deletions(), fqn, run)


class PipelineAppender(Protocol):
    """Takes the events of one unit of work."""

    def start(self, context: AppenderContext, state: State | None) -> None:
        """Goes back to `state`. Raises `AppenderFailed`, `OSError`."""
        ...

    def append(self, events: pa.Table) -> None:
        """Takes events. Raises `AppenderFailed`, `OSError`."""
        ...

    def sync(self) -> State:
        """Makes all appended events durable. Raises `AppenderFailed`, `OSError`."""
        ...

    def saved(self) -> None:
        """The state of the last `sync` is saved. Raises `AppenderFailed`, `OSError`."""
        ...

    def stop(self) -> None:
        """Releases everything; events that were not synced may be lost."""
        ...


@runtime_checkable
class Flushable(Protocol):
    """An appender with something to do by the clock: close what is idle, roll what is due."""

    def flush(self) -> bool:
        """Does what is due; True: a checkpoint is to be saved for it.

        Called about twice a second, also while no event comes. Raises `AppenderFailed`, `OSError`.
        """
        ...


@runtime_checkable
class Deletable(Protocol):
    """An appender that removes or changes its output of deleted runs."""

    def deleted(self, deleted: Deleted) -> None:
        """All known deletions: called after `start`, and when more are made.

        Events that they cover are not appended any more. Raises `AppenderFailed`, `OSError`.
        """
        ...


class Shelf(PipelineAppender, Protocol):
    """An appender for dead letters, whose output can be read again.

    Its files are files or objects. An ended file gets no more lines.
    """

    def end(self) -> None:
        """Ends the file that grows. Raises as `append`."""
        ...

    def ended(self) -> list[str]:
        """The files that are ended, the oldest first. Raises as `append`."""
        ...

    def read(self, name: str) -> bytes:
        """The content of an ended file. Raises as `append`."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Removes ended files. Raises as `append`."""
        ...


@runtime_checkable
class WrapperKind(Protocol):
    """A kind of appender that gives its events on to another one, which is under `to`.

    `settings` is the model of its keys, without `to`; `wraps` is there and true.
    """

    wraps: bool

    @property
    def settings(self) -> type[Section]:
        """The model of its keys."""
        ...

    def __call__(self, settings: Any, make: Callable[[], PipelineAppender], /) -> PipelineAppender:
        """An appender that is not started; `make` gives the wrapped one, each time another."""
        ...


@runtime_checkable
class AppenderKind(Protocol):
    """A kind of appender: what an entry point of the group `tailrace.appenders` names.

    `settings` is the model of its part of the pipeline's file, without `type`, `name` and `filter`.
    """

    @property
    def settings(self) -> type[Section]:
        """The model of its keys."""
        ...

    def __call__(self, settings: Any) -> PipelineAppender:
        """An appender that is not started."""
        ...
