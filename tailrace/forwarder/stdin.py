"""`tailrace forward HOST:PORT… --fqn F --run R`: lines from stdin become records of a run.

    stdin  ─►  lines  ─►  the client's spool, on disk  ─►  one of several services

A line is a record, with a prefix and attributes if they are given. Lines end at `\\n`; bytes that
are no UTF-8 are replaced, and a line beyond 512 KiB becomes several records with the attribute
`partial`. If a line was overwritten (`\\r`), its record has the last state. Live views show the
states of an unfinished line.

Each piece that was read is in the spool before the next piece is read, so a `kill -9` loses at most
one piece of 64 KiB, and the bytes in the pipe. Records that are not delivered at the end stay in
the spool, and the next forwarder of the run with this spool and these services delivers them.

`Balanced` makes one service of a pool, for a client that sends one request after the other.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tailrace.forwarder.delivery.targets import Again, Pool
from tailrace.logstore.clock import Clock
from tailrace.logstore.progress import Pace
from tailrace_client.buffer import Options
from tailrace_client.delivery import Delivery
from tailrace_client.errors import NotAuthorized, NotFound, Redirected, TailraceError, Unavailable
from tailrace_client.records import encode_record
from tailrace_client.service import Answer, Service
from tailrace_client.spool import Closing
from tailrace_client.unfinished import UnfinishedLines, collapse, finished, last_state

PIECE_BYTES = 64 << 10
LONGEST_LINE = 512 << 10
LEAST_SPOOL_BYTES = 2 << 20
_FULL_SECONDS = 0.01
_NO_BOUND = 1 << 62
_SAY_SECONDS = 5.0
POLICIES = ("block", "drop-oldest", "spool")
"""What happens when the service is away: `block` reads no more once the spool has its bytes,
`drop-oldest` drops the oldest batch for the newest lines, `spool` keeps all that the disk takes."""


class LineReader:
    """Bytes as lines, each with whether it is only a part of one."""

    def __init__(self) -> None:
        self._rest = b""

    def of(self, piece: bytes) -> Iterator[tuple[bytes, bool]]:
        """The lines that end in this piece, and parts of one that is too long."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            yield line, False
        self._rest = collapse(self._rest)
        while len(self._rest) >= LONGEST_LINE:
            part, self._rest = self._rest[:LONGEST_LINE], self._rest[LONGEST_LINE:]
            yield part, True

    @property
    def unfinished(self) -> bytes:
        """The last line as it is now."""
        return last_state(self._rest)

    def end(self) -> Iterator[tuple[bytes, bool]]:
        """What is left without an end."""
        if self._rest:
            yield self._rest, False
        self._rest = b""


class Shape(NamedTuple):
    """The fixed parts of each record."""

    prefix: str = ""
    attributes: Mapping[str, str] = {}

    def record(self, line: bytes, *, partial: bool) -> bytes:
        """A line as a record."""
        attributes = {**self.attributes, "partial": "true"} if partial else self.attributes
        message = self.prefix + finished(line).decode("utf-8", "replace")
        return encode_record(message, attributes=attributes or None)


def options_for(on_full: str, spool_bytes: int) -> Options:
    """The client's options for records, for one of `POLICIES`."""
    return Options(
        on_full="drop-oldest" if on_full == "drop-oldest" else "drop-newest",
        spool_bytes=_NO_BOUND if on_full == "spool" else spool_bytes,
        write_through=False,
    )


class Forwarding:
    """Reads a descriptor to its end, or until `stop` is called, as from a signal handler.

    With `waits` it reads no more than there is room for; else what does not fit is dropped.
    """

    def __init__(
        self,
        source: int,
        delivery: Delivery,
        shape: Shape,
        *,
        waits: bool,
        clock: Clock,
        say: Callable[[str], None],
        unfinished: UnfinishedLines,
    ) -> None:
        self._unfinished = unfinished
        self._source = source
        self._delivery = delivery
        self._shape = shape
        self._waits = waits
        self._clock = clock
        self._say = say
        self._stopped = threading.Event()
        self._woken, self._wake = os.pipe()
        self._dropped = 0
        self._said_at = float("-inf")
        self._pace = Pace(clock)

    def progress(self) -> str:
        """How many records are delivered, how fast, and how many wait."""
        stats = self._delivery.stats
        pace = self._pace.of(stats.delivered)
        return f"{stats.delivered:,} records delivered, {pace:,.0f}/s, {stats.pending:,} waiting"

    def run(self) -> None:
        """Puts all lines into the spool."""
        lines = LineReader()
        while piece := self._read():
            self._put(lines.of(piece))
            self._unfinished.show("stdin", lines.unfinished)
        self._put(lines.end())

    def stop(self) -> None:
        """Reads no more."""
        self._stopped.set()
        os.write(self._wake, b"x")

    def _read(self) -> bytes:
        """The next bytes; none at the end, or when stopped."""
        if not self._stopped.is_set():
            select.select([self._source, self._woken], [], [])
        return b"" if self._stopped.is_set() else os.read(self._source, PIECE_BYTES)

    def finish(self, closing: Closing | None, seconds: float) -> int:
        """Waits for the service, and closes the run if that is wanted: the exit status.

        0: every line that was read is acknowledged. 1: it is said which are not.
        """
        self._unfinished.stop()
        left = self._delivery.close(closing, seconds)
        stats = self._delivery.stats
        self._say_drops(stats.dropped)
        if stats.refused:
            self._say(f"the service refused {stats.refused} records, which are kept in the spool")
        if stats.deleted:
            self._say(f"{stats.deleted} records are dropped: their run was deleted")
        if left is not None and left.lost:
            self._say(
                f"{left.lost} records could not be delivered in time and are lost, since the spool"
                f" {os.path.dirname(left.folder)} cannot be written"
            )
        if left is not None and left.records:
            self._say(
                f"{left.records} records are not delivered yet: they are in {left.folder}, and the"
                " next forwarder of this run, or `python -m tailrace_client send`, delivers them"
            )
        return int(left is not None or stats.dropped + stats.refused + stats.deleted > 0)

    def _put(self, lines: Iterator[tuple[bytes, bool]]) -> None:
        records = [self._shape.record(line, partial=partial) for line, partial in lines]
        for group in _groups(records):
            size = sum(map(len, group))
            while self._waits and not self._delivery.has_room(size):
                if self._stopped.wait(_FULL_SECONDS):
                    break  # these are dropped, and counted
            self._delivery.put_all(group)
        if self._said_at + _SAY_SECONDS <= self._clock.monotonic():
            self._say_drops(self._delivery.stats.dropped)

    def _say_drops(self, dropped: int) -> None:
        if dropped > self._dropped:
            self._said_at = self._clock.monotonic()
            self._say(f"{dropped - self._dropped} records were dropped: the spool is full")
            self._dropped = dropped


def _groups(records: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Records in groups that are small beside any spool."""
    first, size = 0, 0
    for number, record in enumerate(records):
        size += len(record)
        if size >= PIECE_BYTES:
            yield records[first : number + 1]
            first, size = number + 1, 0
    if first < len(records):
        yield records[first:]


_RETRIED = (Unavailable, NotAuthorized, Redirected)


class Balanced(Service):
    """A pool of services as one: each request goes to a working place, else to the next.

    `url` names all of them together: the spool's queues belong to it. Raises the error of the last
    place; `Unavailable` with the time to wait if all of them rest. `new_token` is called when a
    service refused the token, and returns whether another token exists now.
    """

    def __init__(
        self, url: str, pool: Pool, *, new_token: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(url)
        self._pool = pool
        self._new_token = new_token

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Answer:
        error: TailraceError | None = None
        while True:
            place, seconds = self._pool.pick()
            if place is None:
                raise error or Unavailable("all services rest", retry_after=seconds)
            try:
                answer = place.service.request(
                    method, path, body, headers, timeout_seconds=timeout_seconds
                )
            except (NotFound, *_RETRIED) as failed:
                error = failed
                again = Again(failed)
                if isinstance(failed, NotFound) and failed.type == "not-found":
                    self._pool.worked(place)
                    raise
                if again.token and self._new_token():
                    self._pool.renew()
                    continue
                if not again.of_place:
                    self._pool.skip(place)
                    raise
                self._pool.failed(place, str(failed), failed.retry_after)
            else:
                self._pool.worked(place)
                return answer

    def close(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.close()
