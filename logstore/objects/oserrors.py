"""Translates errors of the operating system into errors of the store."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from logstore.errors import Conflict, InvalidName, OutcomeUnknown, StoreUnavailable, TailraceError

_HINTS = {
    errno.ENOSPC: "Free disk space on the store's disk.",
    errno.EDQUOT: "Raise the disk quota of the store's user, or free space.",
    errno.EROFS: "The store's disk is read-only: check the kernel's log for why.",
    errno.EACCES: "Give this user the right to read and write the store's folder.",
    errno.EPERM: "Give this user the right to read and write the store's folder.",
    errno.EIO: "The store's disk fails: check the kernel's log, and replace it.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
    errno.ENFILE: "Raise the machine's limit of open files (fs.file-max).",
    errno.ENOENT: "The store's folder is gone: mount or restore it, then restart.",
}
_IN_THE_WAY = frozenset({errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
# A rename that failed with one of these did nothing for certain.
_DEFINITE = _IN_THE_WAY | {
    errno.ENOENT,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENAMETOOLONG,
}


def means_absent(error: OSError) -> bool:
    """Whether the error of a read means that nothing is there, or can be under such a name."""
    return error.errno in _ABSENT


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Translates every `OSError` of the block. `what` names the operation and its key."""
    try:
        yield
    except OSError as error:
        raise _store_error(what, error) from error


@contextmanager
def unknown_outcome(what: str, *, started: bool) -> Iterator[None]:
    """For the step that makes a write visible: an error may come after its effect.

    With `started`, the effect certainly happened, and only its durability is unknown.
    """
    try:
        yield
    except OSError as error:
        if not started and error.errno in _DEFINITE:
            raise
        raise OutcomeUnknown(
            f"{what}: {error.strerror or error}; the object may have been written",
            hint=_HINTS.get(error.errno or 0, "Look at the object before you write again."),
        ) from error


def _store_error(what: str, error: OSError) -> TailraceError:
    number = error.errno or 0
    reason = error.strerror or str(error)
    if number in _IN_THE_WAY:
        return Conflict(
            f"{what}: an object stands where the key needs a folder, or a folder where it ends",
            hint="A local store cannot hold both x and x/y. Use another key.",
        )
    if number == errno.ENAMETOOLONG:
        return InvalidName(f"{what}: {reason}", field="key")
    return StoreUnavailable(f"{what}: {reason}", hint=_HINTS.get(number))
