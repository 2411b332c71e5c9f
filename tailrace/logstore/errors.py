"""Every error that Tailrace raises on purpose, as one tree.

    TailraceError
    ├── InvalidInput              fix the input: sending it again will fail again
    │   ├── InvalidName           an fqn, run or node name that cannot be a key
    │   ├── InvalidCursor         a cursor this service did not give out
    │   ├── BatchTooOld           a batch ULID older than `ingest.max_age_days`
    │   ├── BatchFromTheFuture    a batch ULID ahead of the node's clock
    │   └── TooLarge              a body, batch or line count above its limit
    ├── Conflict                  the state forbids it; look at the state before going on
    │   ├── BatchConflict         a known batch id with other bytes
    │   ├── RunDeleted            the run was deleted at or after this batch
    │   ├── LeaseLost             the lease ran out, or somebody else has it: drop the work
    │   ├── GroupEvicted          a consumer group lost its place in the queue
    │   └── FolderLocked          another process holds the data folder
    ├── NotAuthenticated          no token, or none that is valid: get another one
    ├── Forbidden                 the token is valid, and not for this
    ├── NotFound                  no such object, run or pipeline
    ├── PreconditionFailed        lost a compare-and-swap: read again, then decide again
    ├── Unavailable               try again later, nothing was changed
    │   ├── StoreUnavailable      the object store refused or did not answer
    │   ├── NodeNotReady          starting, stopping, or not registered yet
    │   ├── JournalFull           `journal.max_bytes` reached, or the disk is full
    │   ├── Overloaded            this node has too much to do: another one may have less
    │   └── OverQuota             one client wants more than its part
    │       └── TooManyAtOnce     … requests in progress than it may have
    ├── LimitReached              the operation was cut off by its own time or memory limit
    ├── OutcomeUnknown            it may have happened: look for your own id before a retry
    └── Damaged                   bytes that are not what was written
        ├── ChunkLost             a part of a run's text is gone; the rest of it still reads
        ├── UnsupportedVersion    written by a newer Tailrace, or by others: stop, do not guess
        └── JournalFailed         a failed fsync: the node must stop, never retry

A class exists only where a caller would act differently. Errors of vendors
(botocore, deltalake, the operating system) become one of these where they
arise. `hint` tells a person what to do next.
"""

from __future__ import annotations


class TailraceError(Exception):
    """The base of all errors: `str(error)` says what happened, `hint` what to do."""

    hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


def with_hint(error: Exception) -> str:
    """Returns the message of an error, followed by its hint if it has one."""
    hint = error.hint if isinstance(error, TailraceError) else None
    return f"{error} ({hint})" if hint else str(error)


class InvalidInput(TailraceError):
    """The input is wrong; `field` names the part of it, if there is one."""

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.field = field


class InvalidName(InvalidInput):
    """A name that is empty, too long, or not text."""


class InvalidCursor(InvalidInput):
    """A cursor that cannot be decoded."""

    hint = "Pass a cursor back exactly as it was given, or leave it out to start over."


class BatchTooOld(InvalidInput):
    """The time of the batch's ULID is older than what is accepted."""

    hint = "Send the lines under a new batch id, or without one."


class BatchFromTheFuture(InvalidInput):
    """The time of the batch's ULID is more than ten minutes ahead of this node's clock."""

    hint = "Correct the client's clock, or send the batch without an id."


class TooLarge(InvalidInput):
    """More bytes or lines than a limit allows."""

    hint = "Send it in smaller batches."


class Conflict(TailraceError):
    """The state of the resource forbids the operation."""


class BatchConflict(Conflict):
    """The batch id was used before, for other bytes."""

    hint = "A batch id names its bytes for ever. Send other bytes under a new id."


class RunDeleted(Conflict):
    """The run was deleted, and the deletion covers the batch's ULID.

    See "After a deletion" in docs/use/client.md.

    `deleted_through` is the deletion's ULID, `deleted_ms` its moment and `age_ms` how long ago that
    was. `next_batch` is an id above it that was given to nobody.
    """

    hint = (
        "Drop lines that were logged before the deletion (deleted_ms_ago). Send later lines"
        " under the new batch id next_batch, or without an id."
    )

    def __init__(
        self,
        message: str,
        *,
        deleted_through: int = 0,
        deleted_ms: int = 0,
        age_ms: int = 0,
        next_batch: int = 0,
    ) -> None:
        super().__init__(message)
        self.deleted_through = deleted_through
        self.deleted_ms = deleted_ms
        self.age_ms = age_ms
        self.next_batch = next_batch


class LeaseLost(Conflict):
    """The lease ran out, or another owner has it."""

    hint = "Drop the work, and ask for the next one."


class GroupEvicted(Conflict):
    """The consumer group was away for so long that segments it had not read may be gone."""

    hint = "Reset it: POST /segments/groups/{group}/reset?to=oldest, or to=now."


class FolderLocked(Conflict):
    """Another process has the data folder open."""

    hint = "Stop the other process, or give this one another data folder."


class NotAuthenticated(TailraceError):
    """The request has no token, or one that the rules of access do not know."""

    hint = "Send a valid token as `Authorization: Bearer …`; `tailrace token make` makes one."
    invalid = True
    """Whether a token was sent."""


class Forbidden(TailraceError):
    """The token is valid, and its scopes do not allow the request."""

    hint = "Grant the token this scope for this pipeline in the rules of access."


class NotFound(TailraceError):
    """There is no such resource."""


class PreconditionFailed(TailraceError):
    """The write was conditional, and the object exists already or has changed."""


class Unavailable(TailraceError):
    """Nothing was changed; the same call may succeed later."""

    retry_after_seconds = 5


class StoreUnavailable(Unavailable):
    """The object store refused, or did not answer in time: reads wait `server.store_seconds`."""


class NodeNotReady(Unavailable):
    """The node does not accept writes now."""


class OverQuota(Unavailable):
    """The client has used its share: it must wait, other clients need not."""

    hint = "Try again after the time in Retry-After, or use what you have."

    def __init__(
        self, message: str, *, retry_after_seconds: int = 60, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_seconds = retry_after_seconds


class TooManyAtOnce(OverQuota):
    """The client has as many requests in progress as it may."""

    hint = "Wait for replies, and end streams that nobody reads."

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after_seconds=1)


class Overloaded(Unavailable):
    """The node is overloaded, and the client can send the batch to another node."""

    retry_after_seconds = 1
    hint = "Send it to another node, or later, with the same id."


class JournalFull(Unavailable):
    """The journal or its disk has no room for the batch."""

    retry_after_seconds = 30
    hint = "Free disk space or restore the object store; reads go on meanwhile."


class LimitReached(TailraceError):
    """The operation was stopped by its own limit of time or memory."""


class OutcomeUnknown(TailraceError):
    """The write may or may not have happened."""


class Damaged(TailraceError):
    """Stored bytes fail their checksum or schema."""


class ChunkLost(Damaged):
    """A chunk vanished from the store, and its lines are neither in a segment nor in the table."""

    hint = "Restore the object from a copy of the bucket, or read the lines after it."


class UnsupportedVersion(Damaged):
    """A format newer than this program, or a table that another program has changed."""

    hint = "Run a Tailrace at least as new as the one that wrote this."


class JournalFailed(Damaged):
    """The journal's disk failed; what was not acknowledged may be lost."""

    hint = "Replace the disk, then start again: recovery keeps all that was synced."
