"""The queues of files, and the threads that send their requests.

    submit(), ask(), close_run()  ─►  a queue for each file  ─►  sender threads  ─►  on_verdict()

Invariants:

- Of one file, one request is on its way at a time, in the order in which they were submitted. So
  batches arrive in the order of the file, and a run is closed after its last batch.
- Each request has one verdict, however long it takes; none comes after `stop` has returned.
- If a request fails, perhaps by its own fault, it waits, and other files go on meanwhile.

Sender threads call `on_verdict`. An exception that it raises ends the delivery; the next call
raises it again.

`open_delivery`, `open_pool` and `open_service` make the parts from the configuration.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tailrace.forwarder.delivery.targets import (
    DEFAULT_PORT,
    Again,
    CloseRun,
    Pool,
    Question,
    Resolver,
    Shipment,
    SystemResolver,
    TargetAddress,
    TargetPlace,
    Task,
    Token,
    Verdict,
    parse_target,
    perform,
)
from tailrace.forwarder.stdin import Balanced
from tailrace.logstore.clock import Clock, Entropy, SystemClock, system_entropy
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.filesystem import trust
from tailrace_client.errors import InvalidRequest
from tailrace_client.service import Service
from tailrace_client.system import RetryPause

_AWAKE_SECONDS = 60.0


@dataclass(slots=True)
class DeliveryCounts:
    """Counters of the delivery. They only grow."""

    requests: int = 0
    retries: int = 0
    sent_bytes: int = 0
    """Of bodies as they were before compression, with each attempt."""
    wire_bytes: int = 0
    """Of bodies as they were sent, with each attempt."""
    verdicts: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0


@dataclass(slots=True)
class _Queue:
    """The requests of a file, of which the first is on its way or waits for its time."""

    file: str
    backoff: RetryPause
    tasks: deque[Task] = field(default_factory=deque)
    verdict: Verdict | None = None
    """A verdict that rests as well."""


class BatchDelivery:
    """Sends through a pool. `on_verdict` takes the file and the verdict.

    `durability` and `encode` are those of `perform`. `new_token` is called when a service refused
    the token, and says whether there is another one now. Call `start` once, then `stop`.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        senders: int,
        on_verdict: Callable[[str, Verdict], None],
        backoff: Callable[[], RetryPause] = RetryPause,
        durability: str = "",
        encode: Callable[[bytes], tuple[bytes, str]] = lambda body: (body, ""),
        new_token: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        self.counts = DeliveryCounts()
        self.pool = pool
        self._on_verdict = on_verdict
        self._backoff = backoff
        self._durability = durability
        self._encode = encode
        self._new_token = new_token
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._work_there = threading.Condition(self._lock)
        self._emptied = threading.Condition(self._lock)
        self._stopping = threading.Condition(self._lock)
        self._queues: dict[str, _Queue] = {}
        self._renewed: dict[str, RetryPause] = {}  # files whose last verdict was `renew`
        self._ready: deque[_Queue] = deque()
        self._resting: list[tuple[float, int, _Queue]] = []
        self._tickets = itertools.count()
        self._stopped = False
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"sender-{number}", daemon=True)
            for number in range(senders)
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def submit(self, shipment: Shipment) -> None:
        """Sends a batch until there is a verdict."""
        self._put(shipment)

    def ask(self, file: str, fqn: str, run: str, batch: str) -> None:
        """Asks whether a run has a batch."""
        self._put(Question(file, fqn, run, batch))

    def close_run(
        self,
        file: str,
        fqn: str,
        run: str,
        outcome: str | None = None,
        *,
        started_ms: int | None = None,
        ended_ms: int | None = None,
    ) -> None:
        """Closes a run, after everything that was submitted for the file."""
        self._put(CloseRun(file, fqn, run, outcome, started_ms, ended_ms))

    @property
    def waiting(self) -> int:
        """Requests without a verdict."""
        with self._lock:
            return sum([len(queue.tasks) for queue in self._queues.values()])

    def stop(self, seconds: float) -> int:
        """Waits at most `seconds` for verdicts, and ends: the number of requests without one."""
        until = self._clock.monotonic() + seconds
        with self._lock:
            while self._queues and self._failure is None:
                rest = until - self._clock.monotonic()
                if rest <= 0:
                    break
                self._emptied.wait(rest)
            self._end()
            left = self.waiting
        self.pool.close()
        if self._failure is not None:
            raise self._failure
        return left

    def _end(self) -> None:
        self._stopped = True
        for condition in (self._work_there, self._emptied, self._stopping):
            condition.notify_all()

    def _put(self, task: Task) -> None:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            queue = self._queues.get(task.file)
            if queue is None:
                queue = self._queues[task.file] = _Queue(task.file, self._backoff())
                self._ready.append(queue)
                self._work_there.notify()
            queue.tasks.append(task)

    # --- threads ---------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (queue := self._next()) is not None:
                self._attempt(queue)
        except BaseException as error:  # noqa: BLE001 -- raised again by the next call
            with self._lock:
                self._failure = self._failure or error
                self._end()

    def _next(self) -> _Queue | None:
        """Waits for a queue whose first request is due. None: the delivery has stopped."""
        with self._lock:
            while not self._stopped:
                now = self._clock.monotonic()
                while self._resting and self._resting[0][0] <= now:
                    self._ready.append(heapq.heappop(self._resting)[2])
                if self._ready:
                    return self._ready.popleft()
                due = self._resting[0][0] - now if self._resting else _AWAKE_SECONDS
                self._work_there.wait(due)
            return None

    def _place(self) -> TargetPlace | None:
        """Waits for a place that may be asked. None: the delivery has stopped."""
        while True:
            place, seconds = self.pool.pick()
            with self._lock:
                if self._stopped:
                    return None
                if place is not None:
                    return place
                self._stopping.wait(seconds)

    def _attempt(self, queue: _Queue) -> None:
        verdict, queue.verdict = queue.verdict, None
        if verdict is not None:
            self._judged(queue, verdict)
            return
        place = self._place()
        if place is None:
            return
        with self._lock:
            self.counts.requests += 1
        try:
            verdict = perform(
                queue.tasks[0], place.service, durability=self._durability, encode=self._counted
            )
        except Again as again:
            self._again(queue, place, again)
            return
        self.pool.worked(place)
        if verdict.kind == "acknowledged" and verdict.reason:
            self.pool.note(place, verdict.reason)
        if verdict.kind == "renew" and queue.file in self._renewed:
            queue.verdict = verdict  # the new id is refused as well: not as fast as we can
            self._rest(queue, self._renewed[queue.file].pause())
        else:
            self._judged(queue, verdict)

    def _counted(self, body: bytes) -> tuple[bytes, str]:
        encoded = self._encode(body)
        with self._lock:
            self.counts.sent_bytes += len(body)
            self.counts.wire_bytes += len(encoded[0])
        return encoded

    def _again(self, queue: _Queue, place: TargetPlace, again: Again) -> None:
        with self._lock:
            self.counts.retries += 1
        if again.token and self._new_token():
            self.pool.renew()
            self._rest(queue, 0.0)
        elif again.of_place:
            self.pool.failed(place, str(again), again.retry_after)
            self._rest(queue, 0.0)
        else:
            self.pool.skip(place)
            self._rest(queue, queue.backoff.pause(again.retry_after))

    def _rest(self, queue: _Queue, seconds: float) -> None:
        with self._lock:
            due = self._clock.monotonic() + seconds
            heapq.heappush(self._resting, (due, next(self._tickets), queue))
            self._work_there.notify()

    def _judged(self, queue: _Queue, verdict: Verdict) -> None:
        with self._lock:
            if self._stopped:
                return
            counts, file = self.counts, queue.file
            counts.verdicts[verdict.kind] = counts.verdicts.get(verdict.kind, 0) + 1
            counts.duplicates += verdict.duplicate
            if verdict.kind != "renew":
                self._renewed.pop(file, None)
            elif file not in self._renewed:
                self._renewed[file] = self._backoff()
            queue.backoff.reset()
            queue.tasks.popleft()
            if queue.tasks:
                self._ready.append(queue)
                self._work_there.notify()
            else:
                del self._queues[file]
            # Under the lock, so that no verdict comes once `stop` has returned.
            self._on_verdict(file, verdict)
            if not self._queues:
                self._emptied.notify_all()


# Compression of bodies in transit: `Content-Encoding`. The stored bytes are the same without it.


BodyEncoding = Literal["", "gzip", "zstd"]
_FROM_BYTES = 1 << 10
_GZIP_LEVEL = 1
_ZSTD_LEVEL = 1

Encode = Callable[[bytes], tuple[bytes, str]]


def encoder(name: BodyEncoding) -> Encode:
    """A function that gives a body as it is sent, and the name of its encoding."""
    if name == "gzip":
        from isal import igzip

        return lambda body: _if_worth(body, name, lambda: igzip.compress(body, _GZIP_LEVEL))
    if name == "zstd":
        import zstandard

        def zstd(body: bytes) -> bytes:
            # A compressor for each body: senders are several threads.
            return bytes(zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body))

        return lambda body: _if_worth(body, name, lambda: zstd(body))
    return lambda body: (body, "")


def _if_worth(body: bytes, name: str, compress: Callable[[], bytes]) -> tuple[bytes, str]:
    return (body, "") if len(body) < _FROM_BYTES else (compress(), name)


# Deliveries made from the configuration.


_TIMEOUT_SECONDS = 30.0


def open_pool(
    targets: Sequence[str],
    token: Token,
    *,
    say: Callable[[str], None],
    ca_file: str = "",
    backoff: Callable[[], RetryPause] = RetryPause,
    resolver: Resolver | None = None,
    clock: Clock | None = None,
    dice: Entropy | None = None,
    timeout_seconds: float = _TIMEOUT_SECONDS,
) -> Pool:
    """The places of the targets. Raises `InvalidInput` for a target, token or file that cannot be.

    Nothing is looked up or connected to yet.
    """
    tls = trust(ca_file, field="ca_file") if ca_file else None

    def connect(address: TargetAddress) -> Service:
        return Service(
            address.url,
            token=token.current,
            timeout_seconds=timeout_seconds,
            ssl_context=tls,
            compress=False,
            connect_to=(address.ip, address.port) if address.ip else None,
        )

    if not targets:
        raise InvalidInput("there is no target", hint="Name one, such as 127.0.0.1:8790.")
    parsed = [parse_target(text) for text in targets]
    try:
        Service("http://127.0.0.1", token=token.current)
    except InvalidRequest as error:
        raise InvalidInput(str(error)) from None
    return Pool(
        parsed,
        connect=connect,
        backoff=backoff,
        resolver=resolver or SystemResolver(),
        clock=clock or SystemClock(),
        dice=dice or system_entropy(),
        say=say,
    )


def open_service(
    targets: Sequence[str],
    token: Token,
    *,
    say: Callable[[str], None],
    ca_file: str = "",
    longest_pause_seconds: float = 5.0,
) -> Balanced:
    """All targets as one service. Raises `InvalidInput`."""
    pool = open_pool(
        targets,
        token,
        say=say,
        ca_file=ca_file,
        backoff=lambda: RetryPause(longest=longest_pause_seconds),
    )
    first = parse_target(targets[0])
    host = f"[{first.host}]" if ":" in first.host else first.host
    url = f"{first.scheme}://{host}:{first.port or DEFAULT_PORT}{first.path}"
    try:
        return Balanced(url, pool, new_token=token.renew)
    except InvalidRequest as error:
        raise InvalidInput(error.message, hint=error.hint) from None


def open_delivery(
    targets: Sequence[str],
    token: Token,
    *,
    on_verdict: Callable[[str, Verdict], None],
    say: Callable[[str], None],
    senders: int = 4,
    durability: str = "",
    body_encoding: BodyEncoding = "",
    first_pause_seconds: float = 1.0,
    longest_pause_seconds: float = 30.0,
    ca_file: str = "",
    resolver: Resolver | None = None,
) -> BatchDelivery:
    """A delivery that runs. Raises `InvalidInput`."""

    def backoff() -> RetryPause:
        return RetryPause(first_pause_seconds, longest_pause_seconds)

    pool = open_pool(targets, token, say=say, ca_file=ca_file, backoff=backoff, resolver=resolver)
    delivery = BatchDelivery(
        pool,
        senders=senders,
        on_verdict=on_verdict,
        backoff=backoff,
        durability=durability,
        encode=encoder(body_encoding),
        new_token=token.renew,
    )
    delivery.start()
    return delivery
