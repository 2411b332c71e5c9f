"""The dead letters of one part: events that its appender refuses, and sending them again.

Refused events are written after those that a checkpoint has, and its state has the place where they
end, so a crash neither loses one nor writes it twice. They are lines of JSON
(`tailrace.pipelines.layouts`) with a `reason`, in the file that also takes the events of a disabled
appender, or in objects of the pipelines' own store if no `dead_letter_dir` is set.

To send them again, the file is ended. The appender gets the events of ended files, some lines at a
time, in the order `redelivered`; the progress is in the checkpoint. Events that are refused again
go to the growing file. Ended files are removed when a checkpoint has the end of all of them.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa

from tailrace.coordination.pipelines import Redelivery
from tailrace.logstore import ulid
from tailrace.logstore.errors import InvalidInput
from tailrace.pipelines.appenders.contract import AppenderContext, Shelf, State
from tailrace.pipelines.events import EVENTS, ORDER, REASON, REDELIVERED, is_redelivered

_ROWS: Final = 1000
_BYTES: Final = 2 << 20
_UNREADABLE: Final = "this line of a dead-letter file is not a dead letter"


class Kept(NamedTuple):
    """Events refused since the last call, the resent ones among them, and the reason."""

    events: int = 0
    again: int = 0
    reason: str = ""


class DeadLetters:
    """Keeps refused events. All but `refuse` is called in the appender's thread; raises as it."""

    def __init__(
        self, make: Callable[[], Shelf], context: AppenderContext, state: State | None
    ) -> None:
        self._make = make
        self._context = context
        self._state = state
        self._shelf: Shelf | None = None
        self._refused: queue.SimpleQueue[tuple[pa.Table, str]] = queue.SimpleQueue()
        self._known: set[tuple[str, str, str]] = set()
        self._read: tuple[str, list[bytes]] | None = None
        self._reason = ""

    def refuse(self, events: pa.Table, reason: str, detail: str = "") -> None:
        """Takes refused events from any thread, until `keep` writes them."""
        self._refused.put((events, f"{reason}: {detail}" if detail else reason))
        self._reason = reason

    def start(self) -> None:
        """Goes back to the checkpoint, if that has dead letters."""
        if self._state is not None:
            self._open()

    def keep(self) -> Kept:
        """Writes events refused since the last call. An event that comes twice is one."""
        count = again = 0
        while True:
            try:
                events, reason = self._refused.get_nowait()
            except queue.Empty:
                return Kept(count, again, self._reason if count else "")
            events = self._new(events)
            if events.num_rows:
                reasons = pa.array([reason] * events.num_rows, pa.string())
                self._open().append(events.append_column(REASON, reasons))
                count += events.num_rows
                again += events.num_rows if is_redelivered(events) else 0

    def sync(self) -> State | None:
        """What a checkpoint has of them; None: nothing."""
        return None if self._shelf is None else self._shelf.sync()

    def saved(self) -> None:
        """The state of the last `sync` is saved."""
        self._known.clear()
        if self._shelf is not None:
            self._shelf.saved()

    def stop(self) -> None:
        """Gives everything back."""
        if self._shelf is not None:
            self._shelf.stop()
            self._shelf = None

    # --- sending again ---------------------------------------------------------------------

    def end(self) -> str:
        """Ends the file that grows; the last file that is to be sent again, empty: none."""
        shelf = self._open()
        shelf.end()
        return max(shelf.ended(), key=_place, default="")

    def following(self, at: Redelivery) -> tuple[pa.Table | None, Redelivery]:
        """The next events, None after the last, and the place after them."""
        for name in self._files(at):
            if _place(name) < _place(at.file):
                continue
            row = at.row if name == at.file else 0
            if self._read is None or self._read[0] != name:
                self._read = name, self._open().read(name).splitlines()
            lines = _some(self._read[1], row)
            if lines:
                return self._events(lines), replace(at, file=name, row=row + len(lines))
        self._read = None
        return None, at

    def remove(self, at: Redelivery) -> None:
        """Removes resent events: a checkpoint has the end of them."""
        names = self._files(at)
        if names:
            self._open().remove(names)

    def _files(self, at: Redelivery) -> list[str]:
        ended = sorted(self._open().ended(), key=_place)
        return [name for name in ended if _place(name) <= _place(at.upto)]

    def _events(self, lines: Sequence[bytes]) -> pa.Table:
        """The events of these lines. What is none stays a dead letter."""
        rows: list[Mapping[str, Any]] = []
        for line in lines:
            found = _event(line)
            if found is None:
                lost = {"ulid": "", "ts": 0, "fqn": "", "run_id": "", "message": _text(line)}
                self.refuse(_table([lost]), _UNREADABLE)
            else:
                rows.append(found)
        return _table(rows)

    def _new(self, events: pa.Table) -> pa.Table:
        names = zip(
            *[events.column(name).to_pylist() for name in ("ulid", "fqn", "run_id")], strict=True
        )
        new = []
        for name in names:
            new.append(not name[0] or name not in self._known)
            self._known.add(name)
        return events if all(new) else events.filter(pa.array(new, pa.bool_()))

    def _open(self) -> Shelf:
        if self._shelf is None:
            shelf = self._make()
            try:
                shelf.start(self._context, self._state)
            except BaseException:
                shelf.stop()
                raise
            self._shelf = shelf
        return self._shelf


def _place(name: str) -> tuple[int, str]:
    """The order of numbered files."""
    return len(name), name


def _some(lines: Sequence[bytes], start: int) -> list[bytes]:
    """The next lines that are given together; one always is."""
    found: list[bytes] = []
    size = 0
    for line in lines[start : start + _ROWS]:
        size += len(line)
        if found and size > _BYTES:
            break
        found.append(line)
    return found


def _event(line: bytes) -> dict[str, Any] | None:
    """The event of a line of JSON, with its time in microseconds; None: it is none."""
    try:
        value = orjson.loads(line)
        moment = datetime.fromisoformat(value["ts"]).astimezone(UTC)
        event = {
            "ulid": ulid.encode(ulid.decode(value["ulid"])),
            "ts": moment,
            "fqn": value["fqn"],
            "run_id": value["run"],
            "level": value.get("level"),
            "connector_id": value.get("connector"),
            "message": value["message"],
            "attributes": list(value["attributes"].items()) if value.get("attributes") else None,
        }
        _table([event])
    except (ValueError, TypeError, KeyError, AttributeError, InvalidInput, pa.ArrowException):
        return None
    return event


def _text(line: bytes) -> str:
    """A line that is no dead letter; one that was kept as such before is as it was then."""
    try:
        value = orjson.loads(line)
        if value["ulid"] == "":
            return str(value["message"])
    except (ValueError, TypeError, KeyError):
        pass
    return line.decode(errors="replace")


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    found = pa.Table.from_pylist(list(rows), schema=EVENTS)
    return found.append_column(ORDER, pa.array([REDELIVERED] * len(rows), pa.string()))
