"""Settings of what clients report; a part of the table in `service/settings.py`."""

from __future__ import annotations

from pydantic import Field

from logstore.settings import MIB, Bytes, Section

# The version of OpenMetadata whose API this is, unless a setting says otherwise.
REPORTED_VERSION = "2.0.7"


class OpenMetadataSettings(Section):
    """What OpenMetadata's clients are answered, and how their reports are kept."""

    version: str = Field(
        default=REPORTED_VERSION,
        pattern=r"^[0-9]+\.[0-9]+(\.[0-9]+)*$",
        description="Version that `/api/v1/system/version` reports: that of the clients",
    )
    finish_grace_seconds: float = Field(
        default=10,
        ge=0,
        description="Live streams of a run end this long after its terminal pipelineStatus,"
        " or after the last line that follows it",
    )
    report_cache_bytes: Bytes = Field(
        default=16 * MIB,
        description="Memory for statuses and metrics, and the same again for progress",
    )
    report_reply_bytes: Bytes = Field(
        default=8 * MIB,
        description="Size of statuses or metrics in one reply; `paging.next` leads to the rest",
    )
