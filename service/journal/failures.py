"""Errors of the operating system as errors of the journal.

| the disk says | the error | what it means |
| --- | --- | --- |
| ENOSPC, EDQUOT | `JournalFull` | nothing was written; try again when there is space |
| EMFILE, ENFILE | `NodeNotReady` | nothing was opened, so nothing changed; try again |
| anything else | `JournalFailed` | the disk fails: the node ends and keeps what was synced |
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from logstore.descriptors import NO_DESCRIPTOR
from logstore.errors import JournalFailed, JournalFull, NodeNotReady

FULL = (errno.ENOSPC, errno.EDQUOT)
_HINT = "Raise the limit of open files (ulimit -n, fs.file-max), or have fewer connections."


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Translates each `OSError`. `what` says what was tried, in the past tense, and on what."""
    try:
        yield
    except OSError as error:
        raise journal_error(what, error) from error


def journal_error(what: str, error: OSError) -> JournalFull | JournalFailed | NodeNotReady:
    """The journal's error for `error`."""
    if error.errno in FULL:
        return JournalFull(f"{what}: the disk is full: {error}")
    if error.errno in NO_DESCRIPTOR:
        return NodeNotReady(f"{what}: no file descriptor is free: {error.strerror}", hint=_HINT)
    return JournalFailed(f"{what}: {error}")
