"""`tailrace canary`: writes numbered lines for ever, and reads each back by tail and by query.

A line is `canary INSTANCE NUMBER`. The writer sends batches of one line with ids, so its own
retries are harmless. Two readers look for each line: `tail` follows the run, `query` searches all
runs. For each reader, an acknowledged line is

- **late** if it came more than `--late` seconds after it was sent first,
- **lost** if it did not come within `--patience` seconds; one that comes afterwards is late, too,
- **repeated** if it came again: in the tail, or twice in one result of a search.

A line whose batch is not acknowledged within the patience is expected by nobody. Every hour the
canary closes its run and begins another one, so that no run grows for ever.

When the service begins or ceases to answer one of the three, the canary says so on stderr. The
numbers are Prometheus metrics at `--listen`. On SIGTERM, or after `--count` lines, it writes no
more, waits for what is still to be read, and ends. Exit status: 0 nothing was lost or repeated, 1
something was, 2 an invalid command line.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import re
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import orjson

from tailrace.cli.remote import (
    READ_SECONDS,
    RUNS,
    add_url,
    authorization,
    check,
    component,
    errors_as_ours,
    trusted,
)
from tailrace.cli.tail import Follower
from tailrace.cli.terminal import say
from tailrace.logstore import ulid as ulids
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.clock import Clock, Entropy, SystemClock, system_entropy
from tailrace.logstore.errors import TailraceError, Unavailable
from tailrace.logstore.prometheus import Declared, ProgramHealth, Reading, serve
from tailrace.logstore.retry import Backoff
from tailrace_client.records import BatchIds

DEFAULT_LISTEN: Final = "127.0.0.1:8793"
READERS: Final = ("tail", "query")
_RUN_SECONDS: Final = 3600.0
_REMEMBERED: Final = 100_000
_MOST_RECORDS: Final = 10_000
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.05
_STOP_SECONDS: Final = 10.0
_HEADERS: Final = {"content-type": "text/plain; charset=utf-8"}
_LINE: Final = re.compile(r"canary (\w+) (\d+)")


def configure(parser: argparse.ArgumentParser) -> None:
    """Which service, how often, and how long a line may take."""
    add_url(parser)
    parser.add_argument(
        "--fqn",
        metavar="F",
        default="tailrace.canary",
        help="pipeline of the lines (default: tailrace.canary)",
    )
    for flag, seconds, text in [
        ("--every", 1.0, "seconds between two lines"),
        ("--late", 5.0, "a line that is read back later than this is late"),
        ("--patience", 60.0, "a line that is not read back within this is lost"),
    ]:
        parser.add_argument(
            flag,
            metavar="SECONDS",
            type=float,
            default=seconds,
            help=f"{text} (default: {seconds:g})",
        )
    parser.add_argument(
        "--count", metavar="N", type=int, help="end after so many lines (default: never)"
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=DEFAULT_LISTEN,
        help=f"where Prometheus reads the numbers (default: {DEFAULT_LISTEN}); empty: nowhere",
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes and reads until a signal, or until the last line. Raises what ends it at its start."""
    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    timeout = httpx.Timeout(10, read=READ_SECONDS)
    async with httpx.AsyncClient(
        base_url=arguments.url,
        timeout=timeout,
        headers=authorization(arguments.token_file),
        verify=trusted(arguments.ca_file),
    ) as client:
        canary = Canary(
            client,
            arguments.fqn,
            every=arguments.every,
            late=arguments.late,
            patience=arguments.patience,
        )
        stop_metrics = None
        if arguments.listen:
            stop_metrics = serve(arguments.listen, canary.metrics, canary.health, key="--listen")
        try:
            await canary.run(stop, arguments.count)
        finally:
            if stop_metrics is not None:
                await asyncio.to_thread(stop_metrics)
    say(canary.summary())
    return 0 if canary.sound else 1


@dataclass(slots=True)
class ReadBack:
    """What one reader has read of the lines that were written; moments are of a monotonic clock."""

    late_seconds: float
    patience_seconds: float
    waiting: dict[int, float] = field(default_factory=dict)
    """Lines that were sent and not read, with the moment of the first try."""
    read: int = 0
    late: int = 0
    lost: int = 0
    repeated: int = 0
    delay_seconds: float = 0.0
    """How long the newest line took."""
    _known: BoundedCache[int, bool] = field(default_factory=lambda: BoundedCache(_REMEMBERED))
    """Lines that are not waited for any more; whether one was read."""

    def expect(self, number: int, now: float) -> None:
        """A line is sent now."""
        self.waiting[number] = now

    def drop(self, number: int) -> None:
        """A line was not acknowledged: it may come or not."""
        self.waiting.pop(number, None)

    def take(self, number: int, now: float) -> None:
        """A line was read."""
        sent = self.waiting.pop(number, None)
        if sent is not None:
            self.read += 1
            self.delay_seconds = now - sent
            self.late += self.delay_seconds > self.late_seconds
        elif self._known.get(number) is False:  # it was lost until now
            self.read += 1
            self.late += 1
        self._known.put(number, True)

    def repeat(self, count: int) -> None:
        """Lines came again."""
        self.repeated += count

    def has_read(self, number: int) -> bool:
        """Whether the line was read before."""
        return number not in self.waiting and self._known.get(number) is True

    def expire(self, now: float) -> None:
        """Counts the lines as lost that were not read in time."""
        while self.waiting:
            number, sent = next(iter(self.waiting.items()))
            if now - sent <= self.patience_seconds:
                return
            del self.waiting[number]
            self._known.put(number, False)
            self.lost += 1


class Canary:
    """Writes to one pipeline of one service, and reads back."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        fqn: str,
        *,
        every: float,
        late: float,
        patience: float,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self._client = client
        self._fqn = fqn
        self._every = every
        self._patience = patience
        self._clock = clock or SystemClock()
        self._ids = BatchIds(self._clock.now_ms)
        self.instance = ulids.fresh_text(self._clock, entropy or system_entropy())
        self._started_ms = self._clock.now_ms()
        self.tail = ReadBack(late, patience)
        self.query = ReadBack(late, patience)
        self.written = 0
        self.unacknowledged = 0
        self.failures: Counter[str] = Counter()
        self.problems: dict[str, str] = {}
        self._found_twice: BoundedCache[int, int] = BoundedCache(_REMEMBERED)
        self._runs: asyncio.Queue[str] = asyncio.Queue()

    @property
    def readers(self) -> dict[str, ReadBack]:
        """Both readers, by name."""
        return {"tail": self.tail, "query": self.query}

    @property
    def sound(self) -> bool:
        """Whether nothing was lost or repeated."""
        return not any(reader.lost or reader.repeated for reader in self.readers.values())

    def summary(self) -> str:
        """One line for people."""
        counts = [
            f"{name} read {one.read}, lost {one.lost}, repeated {one.repeated}, late {one.late}"
            for name, one in self.readers.items()
        ]
        unsure = f", {self.unacknowledged} not acknowledged" if self.unacknowledged else ""
        return "; ".join([f"wrote {self.written} lines{unsure}", *counts])

    def metrics(self) -> Iterable[Any]:
        """The samples for Prometheus, as they are now."""
        return [metric.family(self) for metric in METRICS]

    def health(self) -> ProgramHealth:
        """Not ready while a part gets no answer."""
        problems = list(self.problems.values())
        return ProgramHealth(ready=not problems, problems=problems)

    async def run(self, stop: asyncio.Event, count: int | None = None) -> None:
        """Works until `stop`, or until `count` lines are written; then waits for what was sent.

        After a `stop` it waits for some seconds only, since a supervisor has no patience.
        """
        reading = [
            asyncio.create_task(self._follow(), name="tail"),
            asyncio.create_task(self._search(), name="query"),
        ]
        try:
            await self._write(stop, count)
            until = self._clock.monotonic() + (_STOP_SECONDS if stop.is_set() else math.inf)
            while self._clock.monotonic() < until and (self.tail.waiting or self.query.waiting):
                self._expire()
                await self._clock.sleep(_LOOK_SECONDS)
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    def _expire(self) -> None:
        for reader in self.readers.values():
            reader.expire(self._clock.monotonic())

    # --- the writer ------------------------------------------------------------------

    async def _write(self, stop: asyncio.Event, count: int | None) -> None:
        number, runs = 0, 0
        name, due = "", float("-inf")
        while not stop.is_set() and number != count:
            if self._clock.monotonic() >= due:
                await self._close(name)
                runs += 1
                name = f"{self.instance}-{runs}"
                due = self._clock.monotonic() + _RUN_SECONDS
                self._runs.put_nowait(name)
            number += 1
            await self._send(name, number, stop)
            self._expire()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._every)
        await self._close(name)

    async def _send(self, name: str, number: int, stop: asyncio.Event) -> None:
        """Sends a line until it is acknowledged, as long as the patience lasts."""
        began = self._clock.monotonic()
        for reader in self.readers.values():
            reader.expect(number, began)
        headers = {**_HEADERS, "tailrace-batch": self._ids.mint()}
        body = f"canary {self.instance} {number}\n"
        path = f"{RUNS}/{component(self._fqn)}/{component(name)}"

        async def send() -> None:
            check(await self._client.post(path, content=body, headers=headers))

        pauses = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        while not await self._tried("write", send):
            if stop.is_set() or self._clock.monotonic() - began > self._patience:
                self.unacknowledged += 1
                for reader in self.readers.values():
                    reader.drop(number)
                return
            await self._clock.sleep(pauses.next())
        self.written += 1

    async def _close(self, name: str) -> None:
        """Closes a run; the service closes one by itself if that fails."""
        if name:
            path = f"{RUNS}/{component(self._fqn)}/{component(name)}/close"

            async def close() -> None:
                check(await self._client.post(path))

            await self._tried("write", close)

    async def _tried(self, part: str, request: Callable[[], Awaitable[None]]) -> bool:
        """Whether the request was answered well; a failure is counted, and shown by health."""
        try:
            with errors_as_ours(str(self._client.base_url)):
                await request()
        except TailraceError as error:
            self.failures[part] += 1
            problem = f"{part}: {error}"
            if part not in self.problems:  # once: it may last for days
                say(f"{problem} {error.hint or ''}".rstrip(), sys.stderr)
            self.problems[part] = problem
            return False
        if self.problems.pop(part, None) is not None:
            say(f"{part}: the service answers again", sys.stderr)
        return True

    # --- the readers -----------------------------------------------------------------

    async def _follow(self) -> None:
        """Follows one run after the other, each to its end."""
        while True:
            name = await self._runs.get()
            follower = Follower(
                self._client, self._clock, self._fqn, name, self._take_tail, tail=None
            )
            follower.cursor = "0"
            pauses = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)

            async def follow(follower: Follower = follower) -> None:
                await follower.follow(follower.cursor)

            while not await self._tried("tail", follow):
                await self._clock.sleep(pauses.next())

    def _take_tail(self, text: str) -> None:
        for number in self._numbers(text):
            if self.tail.has_read(number):
                self.tail.repeat(1)
            self.tail.take(number, self._clock.monotonic())

    async def _search(self) -> None:
        """Searches for lines that are waited for, and for those around them."""
        while True:
            if self.query.waiting:
                await self._tried("query", self._search_once)
            await self._clock.sleep(max(self._every, _LOOK_SECONDS))

    async def _search_once(self) -> None:
        oldest = self._clock.monotonic() - next(iter(self.query.waiting.values()))
        since = max(self._clock.now_ms() - round((oldest + 60) * 1000), self._started_ms - 60_000)
        asked: dict[str, str | int]
        asked = {"q": self.instance, "fqn": self._fqn, "from": str(since), "limit": _MOST_RECORDS}
        found = await self._client.get("/query", params=asked)
        check(found)
        *records, last = map(orjson.loads, found.text.splitlines())
        texts = [record["message"] for record in records]
        times = Counter(number for text in texts for number in self._numbers(text))
        for number, count in times.items():
            self.query.take(number, self._clock.monotonic())
            if count > 1 and self._found_twice.get(number) is None:
                self._found_twice.put(number, count)
                self.query.repeat(count - 1)
        if not (last.get("stats") or {}).get("complete"):
            raise Unavailable("a search was partial")

    def _numbers(self, text: str) -> list[int]:
        return [int(found[2]) for found in _LINE.finditer(text) if found[1] == self.instance]


def _counter(name: str, text: str, read: Callable[[Canary], Reading], *labels: str) -> Any:
    return Declared(f"tailrace_canary_{name}", "counter", text, read, labels)


def _gauge(name: str, text: str, read: Callable[[Canary], Reading], *labels: str) -> Any:
    return Declared(f"tailrace_canary_{name}", "gauge", text, read, labels)


def _by_reader(read: Callable[[ReadBack], float]) -> Callable[[Canary], Reading]:
    return lambda canary: {name: read(one) for name, one in canary.readers.items()}


METRICS: tuple[Declared[Canary], ...] = (
    _counter("written_lines", "Lines that were acknowledged.", lambda c: c.written),
    _counter(
        "unacknowledged_lines",
        "Lines whose batch was not acknowledged within the patience; no reader waits for them.",
        lambda c: c.unacknowledged,
    ),
    _counter(
        "failures",
        "Requests that failed, by the part: `write`, `tail`, `query`.",
        lambda c: {part: c.failures[part] for part in ("write", *READERS)},
        "part",
    ),
    _counter(
        "read_lines",
        "Lines that were read back, by the reader: `tail` or `query`.",
        _by_reader(lambda one: one.read),
        "reader",
    ),
    _counter(
        "lost_lines",
        "Acknowledged lines that were not read back within the patience.",
        _by_reader(lambda one: one.lost),
        "reader",
    ),
    _counter(
        "repeated_lines",
        "Lines that were read back again.",
        _by_reader(lambda one: one.repeated),
        "reader",
    ),
    _counter(
        "late_lines",
        "Lines that were read back later than `--late`, also after they counted as lost.",
        _by_reader(lambda one: one.late),
        "reader",
    ),
    _gauge(
        "waiting_lines",
        "Lines that were sent and not read back yet.",
        _by_reader(lambda one: len(one.waiting)),
        "reader",
    ),
    _gauge(
        "delay_seconds",
        "Time from sending the newest line that was read back to reading it.",
        _by_reader(lambda one: one.delay_seconds),
        "reader",
    ),
)
