"""The edge to delta-rs: its errors become ours here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from logstore.errors import NotFound, OutcomeUnknown, StoreUnavailable

# Its errors are trees drawn for a terminal, with colours and an arrow before each cause.
_DRAWN: Final = re.compile(r"\x1b\[[0-9;]*m|[↳\s]+")
_LONGEST: Final = 1_000  # characters


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Translates what reading the table may raise: `NotFound`, `StoreUnavailable`."""
    try:
        yield
    except TableNotFoundError as error:
        raise NotFound(f"there is no table at {uri}") from error
    except (DeltaError, OSError) as error:
        raise StoreUnavailable(f"the table at {uri} cannot be read: {_plain(error)}") from error


@contextmanager
def writing(uri: str) -> Iterator[None]:
    """Translates what a commit may raise. Whatever failed may have happened: `OutcomeUnknown`."""
    try:
        yield
    except CommitFailedError as error:
        raise OutcomeUnknown(f"a commit to {uri} was not confirmed: {_plain(error)}") from error
    except (DeltaError, OSError) as error:
        raise OutcomeUnknown(f"a commit to {uri} broke off: {_plain(error)}") from error


def _plain(error: Exception) -> str:
    """The error as one line of text."""
    return _DRAWN.sub(lambda found: "" if found[0][0] == "\x1b" else " ", str(error))[:_LONGEST]
