"""Every limit of a search that a hostile user can touch, with its unit in its name."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Defaults suit a node of two cores."""

    threads: int = 2  # per search
    memory_bytes: int = 512 * MIB  # per search
    spill_bytes: int = 4_096 * MIB  # on disk, per search
    max_seconds: float = 60.0  # of work; time that the client takes to read is not work
    stall_seconds: float = 60.0  # a client that takes nothing for so long is let go
    unread_seconds: float = 0.1  # a client that takes nothing for so long makes room for others
    concurrent: int = 4  # searches at once
    waiting: int = 32  # searches in the queue behind them
    expression_chars: int = 10_000  # length of `q`
    first_tile_bytes: int = 16 * MIB  # stored bytes of the first piece of time
    largest_tile_bytes: int = 1_024 * MIB
    busy_tile_rows: int = 50_000  # a piece of time with as many matches is not enlarged
