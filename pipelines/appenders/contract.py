"""What an appender is: it takes events in order, and says at checkpoints what it has.

    start(context, state) ─► append … append ─► sync ─► (the checkpoint is saved) ─► saved ─►
    append …
                                                                                       stop ◄──┘

- `start` gets the state that the last saved checkpoint has, or None. The appender goes back to
  what it had then: the events behind it come again. One that cannot go back (a webhook) gets some
  events twice.
- `append` gets events in the order of their time (columns of `pipelines.events.EVENTS`). Where some
  are out of order there is a column `order` too: `late`, `forced`, or null for those in order.
- `sync` returns once all that was appended would survive a power cut, and gives the state to be
  saved: JSON of at most some kilobytes. If saving fails, `append` goes on, and `sync` is called
  again later.
- `saved` says that the state of the last `sync` is in the store, so that nobody goes back behind
  it.
- An event that can never be taken (its target refuses it as it is, or its name cannot be written)
  is no failure: the appender gives it to `context.refuse` with the reason, and goes on. It becomes
  a dead letter, which `tailrace pipelines redeliver` sends again.
- A failure of any call is an exception. The appender is then stopped, started again from the last
  checkpoint after a pause, and nobody but itself waits for that.

All calls are made in a thread, one at a time; `stop` is called in every case, also after a failed
`start`.

An appender may have two more methods (`Flushable`, `Deletable`): `flush` is called about twice a
second, also while no event comes, and `deleted` when runs or pipelines were deleted. The context
says of each run which generation it is: a run that was deleted and written again is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from logstore.clock import Clock
from logstore.errors import TailraceError
from logstore.filesystem import FileSystem
from logstore.objects.settings import StoreSettings
from pipelines.appenders.own_metrics import AppenderMetrics
from pipelines.definition.section import Section
from pipelines.deletions import Deleted, generation

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
class Context:
    """What an appender is told about itself and the world.

    `part` is which part of the pipelines' names it gets, of `parts`. `holds` says whether its
    lease is valid: an appender whose effects others see asks before each. `fs` makes the owner's
    files alone. `instance` is the process. `store` says where the pipeline's own store is; None
    in a test without one. `deletions` gives what is deleted, as it was known when the events that
    are appended were looked at: it covers none of them. `replay` is the id of a replay (a ULID)
    whose events the appender had before: it keeps them apart from the others. It is empty for all
    other events. `metrics` are counters and gauges of the appender's own. `refuse` takes events
    that can never be taken; it may be called from any thread.
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


class Appender(Protocol):
    """Takes the events of one unit of work."""

    def start(self, context: Context, state: State | None) -> None:
        """Goes back to `state`. Raises `AppenderFailed`, `OSError`."""
        ...

    def append(self, events: pa.Table) -> None:
        """Takes events. Raises `AppenderFailed`, `OSError`."""
        ...

    def sync(self) -> State:
        """Makes what was appended durable. Raises `AppenderFailed`, `OSError`."""
        ...

    def saved(self) -> None:
        """The state of the last `sync` is saved. Raises `AppenderFailed`, `OSError`."""
        ...

    def stop(self) -> None:
        """Gives everything back; what was not synced may be lost."""
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
    """An appender that does something about what it wrote of deleted runs."""

    def deleted(self, deleted: Deleted) -> None:
        """All deletions that are known: called behind `start`, and when there are more.

        Events that they cover are not appended any more. Raises `AppenderFailed`, `OSError`.
        """
        ...


class Shelf(Appender, Protocol):
    """An appender whose output can be read again: what dead letters are written to.

    Files here are files or objects. An ended file gets no more lines.
    """

    def end(self) -> None:
        """Ends the file that grows. Raises as `append`."""
        ...

    def ended(self) -> list[str]:
        """The files that are ended, the oldest first. Raises as `append`."""
        ...

    def read(self, name: str) -> bytes:
        """What an ended file has. Raises as `append`."""
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

    def __call__(self, settings: Any, make: Callable[[], Appender], /) -> Appender:
        """An appender that is not started; `make` gives the wrapped one, each time another."""
        ...


@runtime_checkable
class Kind(Protocol):
    """A kind of appender: what an entry point of the group `tailrace.appenders` names.

    `settings` is the model of its part of the pipeline's file, without `type`, `name` and `filter`.
    """

    @property
    def settings(self) -> type[Section]:
        """The model of its keys."""
        ...

    def __call__(self, settings: Any) -> Appender:
        """An appender that is not started."""
        ...
