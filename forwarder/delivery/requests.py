"""One request about a batch or a run, to one service, once.

| answer | what it means |
| --- | --- |
| 200, also as a duplicate | `acknowledged` |
| 415 to lines with `Tailrace-Attributes` | they go as records, at once |
| no answer, 408, 425, 429, 502, 503, 504, 507 | `Again`: this place is to rest |
| another 5xx | `Again`: this request is to rest; others may go |
| 401, 403, 404, 421, a redirect | `Again`: the token or the address is wrong; it is said |
| another refusal that is not the service's own (a proxy's) | the same |
| `batch-too-old`, `batch-from-the-future` | the run is asked for it: `acknowledged`, or `renew` |
| `batch-from-the-future` to an id that a service gave | `Again`: the node knows of no deletion |
| `run-deleted`, `batch-conflict`, any other refusal | `deleted`, `conflict`, `refused` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from forwarder.delivery.verdicts import CloseRun, Question, Shipment, Task, Verdict
from tailrace_client import errors
from tailrace_client.errors import Unavailable
from tailrace_client.reading import has_batch
from tailrace_client.run import (
    ATTRIBUTES,
    RECORDS,
    TEXT,
    close_run,
    post_in_form,
    receipt_of,
    run_path,
)
from tailrace_client.service import Answer, Service

_TYPES = {"text/plain": TEXT, "application/x-ndjson": RECORDS}
_OTHER_ID = (errors.BatchTooOld, errors.BatchFromTheFuture)
_AS_RECORDS = (
    f"does not know {ATTRIBUTES}, or a proxy keeps it: lines go as records, which cost it more;"
    " update it"
)
_PLACE = frozenset({0, 408, 425, 429, 502, 503, 504, 507})


class Again(Exception):
    """The request is to be made again, at another place or later.

    `of_place`: nothing is to be asked of this place for a while. `token`: it was refused.
    """

    def __init__(self, error: errors.TailraceError) -> None:
        super().__init__(str(error))
        self.retry_after = error.retry_after
        self.token = isinstance(error, errors.NotAuthorized)
        self.of_place = not isinstance(error, Unavailable) or error.status in _PLACE


def perform(
    task: Task,
    service: Service,
    *,
    durability: str = "",
    encode: Callable[[bytes], tuple[bytes, str]] = lambda body: (body, ""),
) -> Verdict:
    """Makes the request. Raises `Again`.

    `encode` compresses a body and names the `Content-Encoding`. Without `durability`, the service's
    setting says what an acknowledgement means.
    """
    try:
        if isinstance(task, Shipment):
            return _ship(task, service, durability, encode)
        if isinstance(task, Question):
            there = has_batch(service, run_path(task.fqn, task.run), task.batch)
            return Verdict("present" if there else "missing", task.batch)
        return _close(task, service)
    except (Unavailable, errors.NotAuthorized, errors.NotFound, errors.Redirected) as error:
        raise Again(error) from error
    except errors.TailraceError as error:
        if isinstance(task, Question) or (error.status and not error.type):
            raise Again(error) from error
        batch = task.batch if isinstance(task, Shipment) else ""
        return Verdict("refused", batch, reason=str(error))


def _ship(
    task: Shipment,
    service: Service,
    durability: str,
    encode: Callable[[bytes], tuple[bytes, str]],
) -> Verdict:
    path = run_path(task.fqn, task.run)
    batched = {"Tailrace-Batch": task.batch}
    if durability:
        batched["Tailrace-Durability"] = durability

    def post(body: bytes, headers: Mapping[str, str]) -> Answer:
        encoded, encoding = encode(body)
        more = {"Content-Encoding": encoding} if encoding else {}
        return service.request("POST", path, encoded, {**headers, **batched, **more})

    try:
        answer, as_records = post_in_form(post, task.body, _TYPES[task.kind], task.attributes)
        receipt = receipt_of(answer)
    except errors.RunDeleted as error:
        return Verdict(
            "deleted",
            task.batch,
            reason=str(error),
            service_ms=error.service_ms,
            moment_ms=error.moment_ms,
            next_batch=error.next_batch or "",
        )
    except errors.BatchConflict as error:
        return Verdict("conflict", task.batch, reason=str(error))
    except _OTHER_ID as error:
        if task.given and isinstance(error, errors.BatchFromTheFuture):
            raise Again(error) from error
        if has_batch(service, path, task.batch):
            return Verdict("acknowledged", task.batch, duplicate=True)
        return Verdict("renew", task.batch, reason=str(error), service_ms=error.service_ms)
    duplicate = receipt is not None and receipt.duplicate
    return Verdict("acknowledged", task.batch, duplicate, _AS_RECORDS if as_records else "")


def _close(task: CloseRun, service: Service) -> Verdict:
    try:
        close_run(service, task.fqn, task.run, task.outcome, task.started_ms, task.ended_ms)
    except errors.NotFound as error:
        if error.type != "not-found":
            raise
        return Verdict("closed", reason="there is no such run")
    return Verdict("closed")
