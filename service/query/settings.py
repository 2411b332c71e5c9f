"""Settings of searches; a part of the table in `service/settings.py`."""

from __future__ import annotations

from pydantic import Field

from logstore.memory import memory_limit
from logstore.settings import GIB, MIB, Bytes, BytesOrZero, Section


class QuerySettings(Section):
    """Limits of a search."""

    threads: int = Field(default=2, ge=1, le=64, description="Threads of one search")
    memory_bytes: Bytes = Field(default=512 * MIB, ge=64 * MIB, description="Memory of one search")
    spill_bytes: Bytes = Field(
        default=4 * GIB, description="Disk that one search may use beyond its memory"
    )
    index_bytes: Bytes | None = Field(
        default=None,
        description="Memory of a node for what it read of skip indexes of table files, which say"
        " what a search may leave out; empty: a 64th of the memory of machine or container, at"
        " least 64 MiB",
    )
    scan_copies_bytes: BytesOrZero | None = Field(
        default=None,
        description="Disk of a node for copies of table files without compression, which searches"
        " scan three times as fast; empty: half of that memory, 0: none",
    )
    file_cache_bytes: BytesOrZero = Field(
        default=16 * GIB,
        description="Disk of a node for table files of a store on S3 as they are, and their skip"
        " indexes, which searches then read without a request; 0: none",
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

    @property
    def index_budget(self) -> int:
        """`index_bytes`, or what it is without."""
        found = self.index_bytes
        return max(memory_limit() // 64, 64 * MIB) if found is None else found

    @property
    def copies_budget(self) -> int:
        """`scan_copies_bytes`, or what it is without."""
        found = self.scan_copies_bytes
        return memory_limit() // 2 if found is None else found

    def sized(self) -> QuerySettings:
        """The same, with sizes in place of what depends on how much memory there is."""
        sizes = {"index_bytes": self.index_budget, "scan_copies_bytes": self.copies_budget}
        return self.model_copy(update=sizes)
