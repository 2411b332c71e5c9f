"""What bounds the memory of a process: shares of its buffers, and pieces of what is given.

Of `pipelines.memory_bytes` the code and its libraries need `_CODE_BYTES`, and the segments that are
kept decoded a part. Of the rest a part is for what waits, and what is left for the turns of `gate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

BUFFER_BYTES: Final = 64 << 20
_CODE_BYTES: Final = 160 << 20
CACHED_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 4 << 20


def for_events(memory_bytes: int) -> int:
    """The bytes that are left for events, beside the code and the segments kept decoded."""
    return max(memory_bytes - _CODE_BYTES - cached(memory_bytes), memory_bytes // 4)


def share(memory_bytes: int, ratio: float, own: int, sizes: Sequence[int]) -> int:
    """The bytes of events that may wait for one part, which asks for `own`; 0: an equal share.

    `sizes` is what all parts of the process ask for. If that is more than there is for events,
    those that ask for most get less, and all of them the same: no pipeline's file makes a process
    need more than it may, or takes the share of another one.
    """
    left = int(for_events(memory_bytes) * ratio)
    equal = max(left // max(len(sizes), 1), 1)
    for number, size in enumerate(sorted(size or equal for size in sizes)):
        level = left // (len(sizes) - number)
        if size > level:
            return max(min(own or equal, level), 1)
        left -= size
    return own or equal


def cached(memory_bytes: int) -> int:
    """The bytes of decoded segments that are kept for whoever asks next."""
    return min(CACHED_BYTES, memory_bytes // 8)


def pieces(events: pa.Table) -> Iterator[pa.Table]:
    """The events in pieces of some megabytes: an appender makes lines of one at a time."""
    rows = max(events.num_rows * _PIECE_BYTES // max(events.nbytes, 1), 1)
    for start in range(0, events.num_rows, rows):
        yield events.slice(start, rows)
