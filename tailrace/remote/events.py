"""Server-sent events as a client reads them, over connections that end anywhere.

When a connection ends without an end of the stream, it is opened again at the last cursor.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import httpx

from logstore.clock import Clock
from logstore.errors import Unavailable
from tailrace.console.terminal import note, say
from tailrace.remote.api import check, errors_as_ours

READ_SECONDS = 60  # several heartbeats: silence beyond it is a dead connection
_PATIENCE_SECONDS = 60
_LONGEST_PAUSE_SECONDS = 5.0
_SILENT = ": silent "
_SAID_AFTER = 2  # attempts: a connection that is there again at once is not worth a word


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event; `id` is the last one seen, also when this event names none."""

    name: str
    data: str
    id: str | None


class EventParser:
    """Lines of a stream to events, as the HTML standard's section on them says.

    The comment `: silent {…}`, which names nodes that do not answer, is an event as well.
    """

    def __init__(self) -> None:
        self._name = ""
        self._data: list[str] = []
        self._id: str | None = None

    @property
    def id(self) -> str | None:
        """The last id that was read."""
        return self._id

    def feed(self, lines: Iterable[str]) -> Iterator[Event]:
        """Takes lines without their ends; an empty one ends an event."""
        for line in lines:
            if line.startswith(_SILENT):
                yield Event("silent", line.removeprefix(_SILENT), self._id)
            elif line:
                self._field(*_split(line))
            else:
                if self._data:
                    yield Event(self._name or "message", "\n".join(self._data), self._id)
                self._name, self._data = "", []

    def _field(self, name: str, value: str) -> None:
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        elif name == "id":
            self._id = value


def warn_of_silent(nodes: Iterable[str], *, store: bool = False) -> None:
    """Says on stderr which nodes do not answer, and the `store`; none: all answer again."""
    names = ", ".join(nodes)
    found = [f"{names} silent: records from there come later"] if names else []
    if store:
        found.append("the object store does not answer: what comes is what the nodes hold")
    say(f"nodes: {'; '.join(found) or 'all answer again'}", sys.stderr)


def _split(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name, value.removeprefix(" ")


class EventFollower(ABC):
    """A stream of events; `cursor` is beyond the last one that was taken.

    Where `silence_counts`, the id of a heartbeat is a cursor as well.
    """

    silence_counts = False

    def __init__(
        self, client: httpx.AsyncClient, clock: Clock, path: str, parameters: Mapping[str, str]
    ) -> None:
        self._client = client
        self._clock = clock
        self._path = path
        self._parameters = parameters
        self.cursor: str | None = None
        self._failures = 0

    async def follow(self, after: str | None = None) -> None:
        """Returns at the end of the stream.

        Raises what the service answers, and `Unavailable` when it cannot be reached for a minute.
        """
        self.cursor = after
        pause, quiet_since = 0.1, self._clock.monotonic()
        while True:
            before = self.cursor
            try:
                with errors_as_ours(str(self._client.base_url)):
                    if await self._connection():
                        return
                quiet_since = self._clock.monotonic()
            except Unavailable as error:
                if self._clock.monotonic() - quiet_since > _PATIENCE_SECONDS:
                    raise
                self._failures += 1
                if self._failures == _SAID_AFTER:
                    note(f"{error}; trying again")
            if self.cursor != before:
                pause, quiet_since = 0.1, self._clock.monotonic()
            await self._clock.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    @abstractmethod
    def take(self, event: Event) -> bool:
        """Takes an event and sets the cursor; whether it is the stream's end."""

    async def _connection(self) -> bool:
        """Reads one connection to its end; whether the stream is at its end, too."""
        parameters = dict(self._parameters)
        if self.cursor is not None:
            parameters["after"] = self.cursor
        async with self._client.stream("GET", self._path, params=parameters) as response:
            if not response.is_success:
                await response.aread()
            check(response)
            if self._failures >= _SAID_AFTER:
                note("connected again: going on behind the last line")
            self._failures = 0
            return await self._read(response)

    async def _read(self, response: httpx.Response) -> bool:
        parser, buffer = EventParser(), b""
        async for piece in response.aiter_bytes():
            *lines, buffer = (buffer + piece).split(b"\n")
            for event in parser.feed(line.decode().removesuffix("\r") for line in lines):
                if self.take(event):
                    return True
            if self.silence_counts and parser.id is not None:
                self.cursor = parser.id
        return False
