"""The edge to delta-rs: its errors become ours here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from logstore.errors import NotFound, OutcomeUnknown, StoreUnavailable


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Translates what reading the table may raise: `NotFound`, `StoreUnavailable`."""
    try:
        yield
    except TableNotFoundError as error:
        raise NotFound(f"there is no table at {uri}") from error
    except (DeltaError, OSError) as error:
        raise StoreUnavailable(f"the table at {uri} cannot be read: {error}") from error


@contextmanager
def writing(uri: str) -> Iterator[None]:
    """Translates what a commit may raise. Whatever failed may have happened: `OutcomeUnknown`."""
    try:
        yield
    except CommitFailedError as error:
        raise OutcomeUnknown(f"a commit to {uri} was not confirmed: {error}") from error
    except (DeltaError, OSError) as error:
        raise OutcomeUnknown(f"a commit to {uri} broke off: {error}") from error
