"""Settings of what leaves the node; a part of the table in `service/settings.py`."""

from __future__ import annotations

from pydantic import Field

from logstore.settings import MIB, Bytes, Section


class FlushSettings(Section):
    """When lines leave the node for the object store."""

    segment_seconds: float = Field(
        default=10, gt=0, description="A segment is cut when it is this old"
    )
    segment_bytes: Bytes = Field(
        default=64 * MIB, description="A segment is cut when it holds this much text"
    )
    bulk_milliseconds: int = Field(
        default=250,
        ge=0,
        description="A batch sent as `bulk` is cut into a segment within this time",
    )
    process: bool = Field(
        default=True,
        description="Segments of 16 MiB of text and more are made in a process of its own",
    )
    parallel: int = Field(
        default=3,
        ge=1,
        le=64,
        description="Runs that are flushed at the same time, those that waited longest first; "
        "eight times as many of runs with at most 4 KiB of new text",
    )

    @property
    def bulk_seconds(self) -> float:
        """`bulk_milliseconds` in seconds."""
        return self.bulk_milliseconds / 1000
