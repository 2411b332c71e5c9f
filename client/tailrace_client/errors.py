"""The exceptions of the client. Each class says what the caller does next.

    TailraceError
    ├── InvalidRequest      correct the call: the message names what is wrong
    │   ├── TooLarge            send smaller batches
    │   └── BatchFromTheFuture  correct the machine's clock, or let the service choose the id
    ├── BatchTooOld         look whether the batch is there, else send it under a new id
    ├── BatchConflict       the id was used for other bytes: send these under a new id
    ├── RunDeleted          drop what is from before the deletion, send the rest as `next_batch`
    ├── NotAuthorized       correct the token
    ├── NotFound            correct the name, or the address
    ├── Redirected          use the address that the message names
    └── Unavailable         send the same batch again, under the same id, later

No message holds a token.
"""

from __future__ import annotations

import json
from typing import Any, Mapping, Optional

from tailrace_client.records import is_batch_id

_TEXT = 500


class TailraceError(Exception):
    """The service refused, or could not be asked.

    `status` is the HTTP status (0: no answer), `type` the problem's type (see the service's
    docs/reference/errors.md), `hint` what to do, `request_id` what the service's log calls the
    request.
    `batch` is the id of the batch that was being sent, if one was. `service_ms` is the service's
    time in milliseconds since 1970, if it said it. `sent_ms` is when the refused request was sent,
    by `system.steady_ms`.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        type: str = "",  # noqa: A002 -- the problem's own word
        hint: str = "",
        request_id: str = "",
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.message = message
        self.status = status
        self.type = type
        self.hint = hint
        self.request_id = request_id
        self.retry_after = retry_after
        self.batch: Optional[str] = None
        self.service_ms: Optional[int] = None
        self.sent_ms: Optional[int] = None


class InvalidRequest(TailraceError):
    """The request is wrong, and will be wrong again."""


class TooLarge(InvalidRequest):
    """More bytes or lines than the service takes at once."""


class BatchFromTheFuture(InvalidRequest):
    """The batch id's time is minutes ahead of the service: this machine's clock is wrong."""


class BatchTooOld(TailraceError):
    """The batch id's time is days ago. The batch may have been stored then."""


class BatchConflict(TailraceError):
    """The batch id is known with other bytes."""


class RunDeleted(TailraceError):
    """The run was deleted, and the batch's id belongs to what is deleted.

    Its lines may have been logged after the deletion: ids are deleted up to one that may be
    minutes ahead. Those lines are to be sent under `next_batch`. A service of an earlier version
    says neither that id nor the moment.
    """

    next_batch: Optional[str] = None
    deleted_through: Optional[str] = None
    deleted_ms_ago: Optional[int] = None

    @property
    def moment_ms(self) -> Optional[int]:
        """When the run was deleted, by `system.steady_ms`; not later than the truth."""
        if self.sent_ms is None or self.deleted_ms_ago is None:
            return None
        return self.sent_ms - self.deleted_ms_ago


class NotAuthorized(TailraceError):
    """The token is missing, wrong, or has no right to this."""


class NotFound(TailraceError):
    """There is no such thing, or no such route at this address."""


class Redirected(TailraceError):
    """The address answers with another one. The client does not follow it with its token."""


class Unavailable(TailraceError):
    """A later attempt may succeed; no lasting error is known.

    The batch may have been stored. `retry_after` is the pause that the service asked for, in
    seconds.
    """


_BY_TYPE = {
    "batch-too-old": BatchTooOld,
    "batch-from-the-future": BatchFromTheFuture,
    "batch-conflict": BatchConflict,
    "run-deleted": RunDeleted,
    "too-large": TooLarge,
}
_HINTS = {
    "batch-too-old": "Read the run's record of this id; if it is missing, send the lines under a"
    " new batch id",
    "run-deleted": "Drop the batch, or send its lines under a new batch id to start the run again",
    "batch-conflict": "A batch id names its bytes for ever: send other bytes under a new id",
}
_BY_STATUS = {
    401: NotAuthorized,
    403: NotAuthorized,
    404: NotFound,
    408: Unavailable,
    413: TooLarge,
    421: NotFound,  # the name of the address is not one of the service's
    425: Unavailable,
    429: Unavailable,
}


def from_answer(
    status: int, body: bytes, *, retry_after: Optional[float] = None, where: str = ""
) -> TailraceError:
    """The exception for an answer that is no success; `where` is the address."""
    problem = _problem(body)
    kind = str(problem.get("type") or "")
    detail = str(problem.get("detail") or problem.get("message") or "")
    message = detail[:_TEXT].rstrip(".") or f"{where} answered {status}"
    hint = str(problem.get("hint") or _HINTS.get(kind, ""))[:_TEXT].rstrip(".")
    cls = _BY_TYPE.get(kind) or _BY_STATUS.get(status)
    if cls is None:
        cls = Unavailable if status >= 500 else InvalidRequest
    error = cls(
        message,
        status=status,
        type=kind,
        hint=hint and hint + ".",
        request_id=str(problem.get("request_id") or "")[:_TEXT],
        retry_after=retry_after,
    )
    if isinstance(error, RunDeleted):
        _add_deletion(error, problem)
    return error


def _add_deletion(error: RunDeleted, problem: Mapping[str, Any]) -> None:
    ago, following = problem.get("deleted_ms_ago"), problem.get("next_batch")
    if isinstance(ago, int) and isinstance(following, str) and is_batch_id(following):
        error.deleted_ms_ago, error.next_batch = ago, following
        error.deleted_through = str(problem.get("deleted_through"))


def _problem(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
