"""Settings of the journal; a part of the table in `service/settings.py`."""

from __future__ import annotations

from pydantic import Field, model_validator

from logstore.settings import GIB, MIB, Bytes, BytesOrZero, Section


class JournalSettings(Section):
    """Limits of the journal on the node's own disk."""

    file_bytes: Bytes = Field(
        default=64 * MIB,
        ge=MIB,
        description="Size at which a journal file ends and a new one begins",
    )
    max_bytes: Bytes = Field(
        default=8 * GIB,
        ge=4 * MIB,
        description="Size of all journal files together; beyond it appends get 507",
    )
    min_free_bytes: Bytes = Field(
        default=64 * MIB,
        description="With less free disk space no batch is accepted; cuts and closes still are",
    )
    reserve_bytes: BytesOrZero = Field(
        default=4 * MIB,
        description="Room that is taken twice on the disk of the data folder, and on that of a"
        " folder store, for a start and for deletions when the disk is full; 0: none",
    )
    fast_sync_seconds: float = Field(
        default=1, gt=0, description="A batch sent as `fast` is synced after at most this time"
    )
    erase_seconds: float = Field(
        default=60,
        ge=0,
        description="After a deletion the journal begins a new file within this time, so that the"
        " file with the deleted lines goes; deletions in between share one",
    )

    @model_validator(mode="after")
    def _holds_two_files(self) -> JournalSettings:
        if self.max_bytes < 2 * self.file_bytes:
            raise ValueError("journal.max_bytes must hold at least two files of journal.file_bytes")
        return self
