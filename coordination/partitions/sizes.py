"""The limits of a partition in every store, and their checks.

    key        1 to 1,024 bytes of UTF-8    DynamoDB's sort key
    source     1 to 1,024 bytes of UTF-8    DynamoDB's hash key, with a status behind it
    progress   up to 300 KiB of UTF-8       DynamoDB's item has 400 KB, all attributes together
    priority   a number from -1e9 to 1e9    milliseconds of waiting that still are exact

All stores have the same limits, so that a program may change its store.
"""

from __future__ import annotations

from typing import Final

from coordination.partitions.partition import NewPartition
from logstore.errors import InvalidInput, TooLarge

MAX_KEY_BYTES: Final = 1024
MAX_SOURCE_BYTES: Final = 1024
MAX_PROGRESS_BYTES: Final = 300 * 1024
MAX_PRIORITY: Final = 1e9


def check_new(source: str, new: NewPartition) -> None:
    """Raises `InvalidInput`, `TooLarge` for a new partition that breaks a limit."""
    check_name("source", source, MAX_SOURCE_BYTES)
    check_name("key", new.key, MAX_KEY_BYTES)
    check_changed(new.progress, new.priority)


def check_changed(progress: str | None, priority: float) -> None:
    """Raises `InvalidInput`, `TooLarge` for a change that breaks a limit."""
    if progress is not None and _size("progress", progress) > MAX_PROGRESS_BYTES:
        raise TooLarge(
            f"progress has more than {MAX_PROGRESS_BYTES} bytes",
            field="progress",
            hint="Keep what is large in an object of its own, and its key as progress.",
        )
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidInput(f"{priority} is not from -1e9 to 1e9", field="priority")


def check_name(field: str, name: str, most: int) -> None:
    """Raises `InvalidInput` for a name that is empty or longer than `most` bytes."""
    size = _size(field, name)
    if not 0 < size <= most:
        raise InvalidInput(f"a {field} has 1 to {most} bytes, this has {size}", field=field)


def _size(field: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the {field} is not text: {error}", field=field) from error
