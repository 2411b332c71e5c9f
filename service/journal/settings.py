"""Settings of the journal; a part of the table in `service/settings.py`."""

from __future__ import annotations

from pydantic import Field, model_validator

from logstore.settings import Bytes, Section

MIB, GIB = 1 << 20, 1 << 30


class JournalSettings(Section):
    """The node's own disk."""

    file_bytes: Bytes = Field(
        default=64 * MIB,
        ge=MIB,
        description="A journal file is ended at this size and a new one begun",
    )
    max_bytes: Bytes = Field(
        default=8 * GIB,
        ge=4 * MIB,
        description="All journal files together; past it appends get 507",
    )
    min_free_bytes: Bytes = Field(
        default=64 * MIB,
        description="Below this much free disk no batch is taken; cuts and closes still are",
    )
    fast_sync_seconds: float = Field(
        default=1, gt=0, description="A batch sent as `fast` is synced after at most this time"
    )

    @model_validator(mode="after")
    def _holds_two_files(self) -> JournalSettings:
        if self.max_bytes < 2 * self.file_bytes:
            raise ValueError("journal.max_bytes must hold at least two files of journal.file_bytes")
        return self
