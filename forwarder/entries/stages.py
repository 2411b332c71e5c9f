"""The way of entries through operators that change one, and stages that join several.

A stage that joins holds entries back. A range may end where no stage holds anything that came
before: `Chain.border` says up to which unit that is so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from forwarder.entries.entry import Entry

Output = Callable[[Entry], None]


class Stage(Protocol):
    """One step; it lives for one range."""

    def feed(self, entry: Entry, out: Output) -> None:
        """Takes an entry, and gives what is complete."""

    def flush(self, out: Output) -> None:
        """Gives what it holds: the range ends here."""

    def oldest(self) -> int | None:
        """The first unit that it holds something of, or None."""

    def settles(self, unit: int) -> bool:
        """Whether it holds nothing, or one entry before this unit that could end there."""


class Each:
    """A step that changes entries one by one; it returns None for an entry that it drops."""

    def __init__(self, change: Callable[[Entry], Entry | None]) -> None:
        self.change = change

    def feed(self, entry: Entry, out: Output) -> None:
        self.into(out)(entry)

    def into(self, out: Output) -> Output:
        """The step with where its entries go."""
        change = self.change

        def feed(entry: Entry) -> None:
            changed = change(entry)
            if changed is not None:
                out(changed)

        return feed

    def flush(self, out: Output) -> None:
        """Holds nothing."""

    def oldest(self) -> int | None:
        return None

    def settles(self, unit: int) -> bool:  # noqa: ARG002
        return True


class Chain:
    """Stages one after the other; `entries` is what came out of the last one."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self._joining = [stage for stage in stages if not isinstance(stage, Each)]
        self.joins = bool(self._joining)
        """Whether a stage may hold entries back."""
        self.entries: list[Entry] = []
        self.newest = -1
        """The last unit of all that came out."""
        outputs: list[Output] = [self._take if self.joins else self.entries.append]
        for stage in reversed(stages):
            outputs.append(_into(stage, outputs[-1]))
        self._outputs = outputs[::-1]
        self.feed: Output = self._outputs[0]
        """Sends an entry through."""

    @property
    def changes(self) -> list[Callable[[Entry], Entry | None]]:
        """What its stages do with an entry, if none of them joins any."""
        return [] if self.joins else [s.change for s in self._stages if isinstance(s, Each)]

    def flush(self) -> None:
        """Sends what stages hold through those behind them."""
        for stage, out in zip(self._stages, self._outputs[1:], strict=True):
            stage.flush(out)

    def settles(self, unit: int) -> bool:
        """Whether a unit that is calm has nothing to do with what stages hold."""
        return all(stage.settles(unit) for stage in self._joining)

    def border(self, after: int) -> int | None:
        """The unit before which the range may end, if those up to `after` were fed; or None."""
        oldest = after + 1
        for stage in self._joining:
            held = stage.oldest()
            if held is not None and held < oldest:
                oldest = held
        return oldest if oldest > self.newest else None

    def _take(self, entry: Entry) -> None:
        self.entries.append(entry)
        if entry.last > self.newest:
            self.newest = entry.last


def _into(stage: Stage, out: Output) -> Output:
    if isinstance(stage, Each):
        return stage.into(out)
    return lambda entry: stage.feed(entry, out)
