"""Lines that are not finished yet: a progress bar, a prompt. Shown live, and never stored.

A producer of lines says what its last line looks like now; the next state takes the place of the
one before. Nothing of it is acknowledged as stored: the line itself comes as any other once it is
finished, and has its last state. So this is memory of each node alone. A state that is not repeated
is forgotten after `KEPT_SECONDS`, since its producer may have died. Nodes tell each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import InvalidInput

KEPT_SECONDS = 60.0
MOST_CHARS = 4096
_PRODUCERS = 16
_RUNS = 10_000
_NAME_CHARS = 100


class UnfinishedLine(NamedTuple):
    """The state of a producer's last line; `number` grows with each state."""

    producer: str
    number: int
    text: str
    until: float = 0.0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> UnfinishedLine:
        """What a client sent. Raises `InvalidInput`."""
        producer, number, text = (value.get(name) for name in ("producer", "number", "text"))
        if not isinstance(producer, str) or not 0 < len(producer) <= _NAME_CHARS:
            raise InvalidInput("producer is no name of 1 to 100 characters", field="producer")
        if type(number) is not int:
            raise InvalidInput("number is not a whole number", field="number")
        if not isinstance(text, str) or len(text) > MOST_CHARS or "\n" in text:
            raise InvalidInput(
                f"text is not one line of at most {MOST_CHARS} characters",
                field="text",
                hint="Send the end of a longer line; an empty text says that it is finished.",
            )
        return cls(producer, number, text)

    def to_json(self) -> dict[str, Any]:
        """As a client sent it."""
        return {"producer": self.producer, "number": self.number, "text": self.text}


class UnfinishedLines:
    """The unfinished lines of all runs, as one node knows them."""

    def __init__(self, clock: Clock, changed: Callable[[RunKey], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._lines: OrderedDict[RunKey, dict[str, UnfinishedLine]] = OrderedDict()
        self.tell: Callable[[RunKey, UnfinishedLine], None] = lambda *_: None
        """Tells other nodes of a line that came to this one."""

    def put(self, key: RunKey, line: UnfinishedLine) -> None:
        """Takes the newest state of a line; an empty text ends it. Older states are ignored."""
        lines = self._lines.setdefault(key, {})
        self._lines.move_to_end(key)
        before = lines.pop(line.producer, None)
        if before is not None and before.number > line.number:
            line = before
        lines[line.producer] = line._replace(until=self._clock.monotonic() + KEPT_SECONDS)
        while len(lines) > _PRODUCERS:
            del lines[next(iter(lines))]
        while len(self._lines) > _RUNS:
            self._lines.popitem(last=False)
        if before is None or before.text != line.text:
            self._changed(key)

    def of_run(self, key: RunKey) -> list[UnfinishedLine]:
        """The lines of a run that are not finished, by producer."""
        now = self._clock.monotonic()
        found = [line for line in self._lines.get(key, {}).values() if line.until > now]
        return sorted(line for line in found if line.text)

    def remove(self, fqn: str, run: str | None) -> None:
        """Forgets those of a deleted run, or of all runs of a pipeline."""
        for key in [key for key in self._lines if key.fqn == fqn and run in (None, key.run)]:
            del self._lines[key]
            self._changed(key)
