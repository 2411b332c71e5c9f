"""The interface to delta-rs, and the only place where its errors are translated.

delta-rs retries requests itself (`max_retries`), but not if the body of a listing or
of a 404 breaks off half-way: then `read` starts again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from logstore.errors import NotFound, OutcomeUnknown, StoreUnavailable

# Its errors are trees drawn for a terminal, with colours and an arrow before each cause.
_DRAWN: Final = re.compile(r"\x1b\[[0-9;]*m|[↳\s]+")
_LONGEST: Final = 1_000  # characters
_BROKE_OFF: Final = "response body error"
_MORE_TRIES: Final = 3

T = TypeVar("T")


def read(uri: str, call: Callable[[], T]) -> T:
    """The result of `call`, which reads the table by delta-rs; it may be called several times.

    Raises `NotFound` if there is no table, and `StoreUnavailable`.
    """
    left = _MORE_TRIES
    while True:
        try:
            return call()
        except TableNotFoundError as error:
            raise NotFound(f"there is no table at {uri}") from error
        except (DeltaError, OSError) as error:
            if not left or _BROKE_OFF not in str(error):
                raise StoreUnavailable(
                    f"the table at {uri} cannot be read: {_plain(error)}"
                ) from error
            left -= 1


@contextmanager
def writing(uri: str) -> Iterator[None]:
    """Translates what a commit may raise. Any failed commit may have happened: `OutcomeUnknown`."""
    try:
        yield
    except CommitFailedError as error:
        raise OutcomeUnknown(f"a commit to {uri} was not confirmed: {_plain(error)}") from error
    except (DeltaError, OSError) as error:
        raise OutcomeUnknown(f"a commit to {uri} broke off: {_plain(error)}") from error


def _plain(error: Exception) -> str:
    """The error as one line of text."""
    return _DRAWN.sub(lambda found: "" if found[0][0] == "\x1b" else " ", str(error))[:_LONGEST]
