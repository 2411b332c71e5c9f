"""The queues of files, and the threads that send what is in them.

    submit(), ask(), close_run()  ─►  a queue for each file  ─►  sender threads  ─►  on_verdict()

Invariants:
- Of one file, one request is on its way at a time, in the order in which they were submitted. So
  batches arrive in the order of the file, and a run is closed behind its last batch.
- Each request has one verdict, however long it takes; none comes after `stop` has returned.
- A request that fails with what may be its own fault rests, and other files go on meanwhile.

`on_verdict` is called by sender threads. What it raises ends the delivery, and is raised again by
the next call.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from forwarder.delivery.pool import Place, Pool
from forwarder.delivery.requests import Again, perform
from forwarder.delivery.verdicts import CloseRun, Question, Shipment, Task, Verdict
from logstore.clock import Clock, SystemClock
from tailrace_client.retry import Backoff

_AWAKE_SECONDS = 60.0


@dataclass(slots=True)
class Counts:
    """What the delivery did. Numbers only grow."""

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
    backoff: Backoff
    tasks: deque[Task] = field(default_factory=deque)
    verdict: Verdict | None = None
    """A verdict that rests as well."""


class Delivery:
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
        backoff: Callable[[], Backoff] = Backoff,
        durability: str = "",
        encode: Callable[[bytes], tuple[bytes, str]] = lambda body: (body, ""),
        new_token: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        self.counts = Counts()
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
        self._renewed: dict[str, Backoff] = {}  # files whose last verdict was `renew`
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
        """Closes a run, behind what was submitted for the file."""
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

    def _place(self) -> Place | None:
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

    def _again(self, queue: _Queue, place: Place, again: Again) -> None:
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
