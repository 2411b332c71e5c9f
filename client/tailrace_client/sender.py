"""Sends batches of a queue until the service has acknowledged them.

The service's answers, and the next step for the batch:

| answer | batch |
| --- | --- |
| 200, also as a duplicate | acknowledged: removed |
| no answer, 429, 5xx | sent again under the same id, after a pause of at least `Retry-After` |
| 401, 403, 404, a redirect | the same, and reported: the token or the address is wrong |
| `batch-too-old`, `batch-from-the-future` | looked for in the run; if it is missing, a new id |
| `run-deleted` | records from before the deletion are dropped and counted, others get a new id |
| `batch-from-the-future` to that id | sent again later: the node knows of no deletion yet |
| `batch-conflict`, any other refusal | kept aside in the spool, reported, and counted |
"""

from __future__ import annotations

from typing import Callable, ContextManager, Optional, Protocol, Tuple, TypeVar

from tailrace_client import errors, system
from tailrace_client.errors import TailraceError, Unavailable
from tailrace_client.presence import Presence
from tailrace_client.reading import has_batch
from tailrace_client.records import BatchIds, is_ahead, lines_of
from tailrace_client.run import RECORDS, TEXT, close_run, post_batch, receipt_of, run_path
from tailrace_client.service import Service
from tailrace_client.spool import BatchContent, Closing, SpooledBatch, SpoolQueue, Target
from tailrace_client.system import RetryPause

_RETRIED = (Unavailable, errors.NotAuthorized, errors.NotFound, errors.Redirected)
_OTHER_ID = (errors.BatchTooOld, errors.BatchFromTheFuture)
_Result = TypeVar("_Result")


class _GaveUp(Exception):
    """No time is left for another attempt."""


class BatchSource(Protocol):
    """The source of a run's batches: a spool's queue, or memory. Same methods as `SpoolQueue`."""

    target: Target

    def origin(self, batch: str, /) -> str: ...
    def read(self, batch: str, /) -> BatchContent: ...
    def send_anew(self, batch: str, new: str, since_ms: int, /) -> Tuple[str, int]: ...
    def give_new_id(self, batch: str, ids: BatchIds, /) -> str: ...
    def remove(self, batch: str, /) -> None: ...

    def set_aside(self, batch: str, why: str, /) -> str:
        """Where the batch is kept for people; empty if it could not be kept."""
        ...


class RecordCounts:
    """Numbers of records by outcome. They only grow."""

    def __init__(self) -> None:
        self.delivered = 0
        self.duplicates = 0
        self.deleted = 0
        self.refused = 0
        self.retries = 0


class Sender:
    """Delivers to one service, for one thread.

    `lock()` is a context in which a queue may be changed. `pause(seconds, asked)` waits
    before the next attempt, and returns False if there is to be none; `asked` says that the
    service asked for this pause.
    `say` takes a sentence for the program's user, without a token in it.
    """

    def __init__(
        self,
        service: Service,
        ids: BatchIds,
        *,
        lock: Callable[[], ContextManager[object]],
        pause: Callable[[float, bool], bool],
        say: Callable[[str], None],
    ) -> None:
        self.counts = RecordCounts()
        self._service = service
        self._ids = ids
        self._lock = lock
        self._pause = pause
        self._say = say
        self._backoff = RetryPause()
        self._said = ""
        self.presence: Optional[Presence] = None
        """Of the run whose lines are sent, if its start and its client's life are reported."""

    def deliver(self, queue: BatchSource, batch: SpooledBatch) -> bool:
        """Sends a batch until it is acknowledged, dropped or kept aside.

        False if `pause` ended it. Raises `OSError` if the batch cannot be read.
        """
        content = queue.read(batch.id)
        try:
            self._deliver(queue, batch, content)
        except _GaveUp:
            return False
        return True

    def report_start(self, queue: SpoolQueue) -> None:
        """Reports the start of a run whose client has ended, if nobody did; makes one attempt."""
        started_ms, target = queue.started_ms, queue.target
        if started_ms is not None and queue.closing is None:
            presence = Presence(self._service, target.fqn, target.run, started_ms)
            if presence.report():
                queue.start_reported()

    def close_run(self, target: Target, closing: Closing) -> bool:
        """Closes a run; False if `pause` ended it."""
        fqn, run = target.fqn, target.run
        try:
            self._retried(lambda: close_run(self._service, fqn, run, *closing))
        except _GaveUp:
            return False
        except TailraceError as error:
            self._say(f"run {fqn}/{run} cannot be closed: {error}")
        return True

    def _deliver(self, queue: BatchSource, batch: SpooledBatch, content: BatchContent) -> None:
        target, name, records, renamed = queue.target, batch.id, batch.records, False
        path = run_path(target.fqn, target.run)

        presence = self.presence

        def post() -> bool:
            if presence is not None:
                presence.before_lines()
            return self._post(path, content.payload, name, target.durability)

        while True:
            try:
                duplicate = self._retried(post)
            except _OTHER_ID as error:
                other = self._under_other_id(queue, name, error, wait=renamed or content.given)
                if other is not None:
                    name, renamed = other, True
                    continue
                duplicate = True
            except errors.RunDeleted as error:
                name, records = self._send_anew(queue, name, records, error)
                if not name:
                    return
                content = queue.read(name)
                continue
            except TailraceError as error:
                self._keep_aside(queue, name, records, error)
                return
            if not batch.size:  # a crash may leave one, and so may a disk
                run = f"{target.fqn}/{target.run}"
                self._say(f"a batch of run {run} in the spool is empty: it may have had records")
            self._acknowledged(queue, name, records, duplicate, content.damaged)
            return

    def _send_anew(
        self, queue: BatchSource, batch: str, records: int, error: errors.RunDeleted
    ) -> Tuple[str, int]:
        """The id and the number of what was written after the deletion; empty if nothing was."""
        if error.service_ms is not None:
            self._ids.correct(error.service_ms)
        moment_ms, name, dropped = error.moment_ms, "", records
        with self._lock():
            if moment_ms is None or error.next_batch is None:
                queue.remove(batch)
            else:
                name, dropped = queue.send_anew(batch, error.next_batch, moment_ms)
        if name and not is_ahead(name, system.now_ms()):
            self._ids.go_above(name)  # this machine's clock is slow
        self.counts.deleted += dropped
        if dropped:
            fqn, run = queue.target.fqn, queue.target.run
            when = "from before that" if moment_ms is not None else "with ids from before that"
            self._say(f"run {fqn}/{run} was deleted: {dropped} records {when} are dropped")
        return name, records - dropped

    def _retried(self, call: Callable[[], _Result]) -> _Result:
        """What `call` returns, once it does. Raises `_GaveUp`, and what is not tried again."""
        while True:
            try:
                result = call()
            except _RETRIED as error:  # noqa: PERF203
                if not self._later(error):
                    raise _GaveUp from None
            else:
                self._worked()
                return result

    def _post(self, path: str, payload: bytes, batch: str, durability: str) -> bool:
        if not payload:
            return False
        lines = lines_of(payload)  # the same in each attempt
        body, kind, shared = (payload, RECORDS, "") if lines is None else (lines[0], TEXT, lines[1])
        answer = post_batch(self._service, path, body, kind, batch, durability, shared)
        receipt = receipt_of(answer)
        return receipt is not None and receipt.duplicate

    def _under_other_id(
        self, queue: BatchSource, batch: str, error: TailraceError, *, wait: bool
    ) -> Optional[str]:
        """The id to be tried next; None if the run has the batch."""
        if wait and not self._later(error):
            raise _GaveUp from None
        if queue.read(batch).given and isinstance(error, errors.BatchFromTheFuture):
            return batch
        path = run_path(queue.target.fqn, queue.target.run)
        if self._retried(lambda: has_batch(self._service, path, batch)):
            return None
        if error.service_ms is not None:
            self._ids.correct(error.service_ms)
        with self._lock():
            return queue.give_new_id(batch, self._ids)

    def _acknowledged(
        self, queue: BatchSource, batch: str, records: int, duplicate: bool, damaged: int
    ) -> None:
        if self.presence is not None:
            self.presence.lines_delivered()
        self.counts.delivered += records
        self.counts.duplicates += records if duplicate else 0
        with self._lock():
            if damaged:
                path = queue.set_aside(batch, "damaged")
                self._say(
                    f"the last {damaged} bytes of a batch are no whole record: kept in {path}"
                )
            else:
                queue.remove(batch)

    def _keep_aside(
        self, queue: BatchSource, batch: str, records: int, error: TailraceError
    ) -> None:
        self.counts.refused += records
        why = "conflict" if isinstance(error, errors.BatchConflict) else "refused"
        with self._lock():
            path = queue.set_aside(batch, why)
        kept = f"kept in {path}" if path else "lost, because the spool cannot be written"
        self._say(f"the service refused {records} records, which are {kept}: {error}")

    def _later(self, error: TailraceError) -> bool:
        self.counts.retries += 1
        kind = f"{type(error).__name__} {error.status}"
        if kind != self._said:
            self._said = kind
            self._say(f"records wait: {error}")
        return self._pause(self._backoff.pause(error.retry_after), error.retry_after is not None)

    def _worked(self) -> None:
        self._backoff.reset()
        if self._said:
            self._said = ""
            self._say("the service answers again")
