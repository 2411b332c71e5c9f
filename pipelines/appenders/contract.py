"""What an appender is: it takes events in order, and says at checkpoints what it has.

    start(context, state) ─► append … append ─► sync ─► (the checkpoint is saved) ─► saved ─►
    append …
                                                                                       stop ◄──┘

- `start` gets the state that the last saved checkpoint has, or None. The appender goes back to
  what it had then: the events behind it come again. One that cannot go back (a webhook) gets some
  events twice.
- `append` gets events in the order of their time (columns of `pipelines.events.EVENTS`).
- `sync` returns once all that was appended would survive a power cut, and gives the state to be
  saved: JSON of at most some kilobytes. If saving fails, `append` goes on, and `sync` is called
  again later.
- `saved` says that the state of the last `sync` is in the store, so that nobody goes back behind
  it.
- A failure of any call is an exception. The appender is then stopped, started again from the last
  checkpoint after a pause, and nobody but itself waits for that.

All calls are made in a thread, one at a time; `stop` is called in every case, also after a failed
`start`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from logstore.clock import Clock
from logstore.errors import TailraceError
from logstore.filesystem import FileSystem
from pipelines.section import Section

State: TypeAlias = Mapping[str, Any]
"""What an appender needs to go back to a checkpoint; JSON."""


class AppenderFailed(TailraceError):
    """The appender could not do what it was asked; it is started again after a pause."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an appender is told about itself and the world.

    `part` is which part of the pipelines' names it gets, of `parts`. `holds` says whether its
    lease is valid: an appender whose effects others see asks before each. `fs` makes the owner's
    files alone.
    """

    pipeline: str
    appender: str
    part: int
    parts: int
    fs: FileSystem
    clock: Clock
    holds: Callable[[], bool]

    @property
    def name(self) -> str:
        """Its name among all, fit for a file."""
        return f"{self.pipeline}.{self.appender}.{self.part}"


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
