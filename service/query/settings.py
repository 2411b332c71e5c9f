"""Settings of searches; a part of the table in `service/settings.py`."""

from __future__ import annotations

from pydantic import Field

from logstore.settings import Bytes, BytesOrZero, Section

MIB, GIB = 1 << 20, 1 << 30


class QuerySettings(Section):
    """Limits of a search."""

    threads: int = Field(default=2, ge=1, le=64, description="Threads of one search")
    memory_bytes: Bytes = Field(default=512 * MIB, ge=64 * MIB, description="Memory of one search")
    spill_bytes: Bytes = Field(
        default=4 * GIB, description="Disk that one search may use beyond its memory"
    )
    index_bytes: Bytes = Field(
        default=64 * MIB,
        description="Memory of a node for skip indexes of table files, which say what a search"
        " may leave out",
    )
    scan_copies_bytes: BytesOrZero | None = Field(
        default=None,
        description="Disk of a node for copies of table files without compression, which searches"
        " scan three times as fast; empty: a quarter of the machine's memory, 0: none",
    )
    time_limit_seconds: float = Field(
        default=60,
        gt=0,
        description="Working time of one search, without waiting for the client to read",
    )
    stall_seconds: float = Field(
        default=60, gt=0, description="A search whose client reads nothing for this long is ended"
    )
    max_concurrent: int = Field(default=4, ge=1, description="Searches at once")
    max_waiting: int = Field(default=32, ge=0, description="Searches in the queue behind them")
    stream_window_seconds: float = Field(
        default=2,
        ge=0,
        le=60,
        description="A live search holds records back for this long and gives them in the order of"
        " their ULIDs",
    )
    max_streams: int = Field(
        default=32, ge=1, description="Different searches that are followed live at once"
    )
    idle_seconds: float = Field(
        default=300,
        ge=0,
        description="A database that no search has used for this long is closed",
    )
