"""When a journal file is full, and how much of the disk the journal may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """When a file is full, how much all files may take, how long `fast` waits for its sync.

    While less than `min_free_bytes` is left on the disk no batch is taken, so that there
    is room for the cuts without which nothing could be shipped and let go.
    `spare_files` is how many files that were let go stay to be written over.
    """

    file_bytes: int = 64 << 20
    max_bytes: int = 8 << 30
    min_free_bytes: int = 64 << 20
    fast_sync_seconds: float = 1.0
    spare_files: int = 2
