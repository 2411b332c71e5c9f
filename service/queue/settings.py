"""Settings of the segment queue; a part of the table in `service/settings.py`."""

from __future__ import annotations

from pydantic import Field

from logstore.objects.settings import QueueRetention
from logstore.settings import Bytes

MIB = 1 << 20


class QueueSettings(QueueRetention):
    """The segment queue: consumer groups over HTTP."""

    lease_seconds: float = Field(
        default=60,
        gt=0,
        description="How long a segment is leased when `lease_seconds` is not given",
    )
    max_lease_seconds: float = Field(
        default=3600, gt=0, description="A consumer may not ask for more; it may renew"
    )
    max_attempts: int = Field(
        default=5,
        ge=1,
        description="A segment that was leased so often without a commit has failed: it is "
        "passed over",
    )
    outstanding: int = Field(
        default=64,
        ge=1,
        le=1000,
        description="Segments of a group that are leased, or wait to be tried again, at most",
    )
    retry_seconds: float = Field(
        default=1,
        ge=0,
        description="A segment that was given back is free after so long, doubled by each attempt",
    )
    longest_retry_seconds: float = Field(
        default=60, ge=0, description="The longest of these pauses"
    )
    max_wait_seconds: float = Field(
        default=60, ge=0, description="`wait` of a consumer at most, whatever it asks for"
    )
    max_waiting: int = Field(
        default=1000, ge=1, description="Consumers that wait at a node; the next one gets 503"
    )
    poll_seconds: float = Field(
        default=1,
        ge=0.05,
        description="How often the store is asked for other nodes' segments while consumers wait",
    )
    report_seconds: float = Field(
        default=30, gt=0, description="How often the lag of all groups is looked at, for metrics"
    )
    max_groups: int = Field(
        default=1000,
        ge=1,
        description="Consumer groups at most; an unused one gives its place, or the next gets 429",
    )
    new_groups_per_hour: int = Field(
        default=100,
        ge=1,
        description="Groups that one address may make in an hour at a node; the next one gets 429",
    )
    unused_group_seconds: float = Field(
        default=3600,
        gt=0,
        description="A group that committed nothing and was not asked for so long is unused",
    )
    decoded_bytes: Bytes = Field(
        default=64 * MIB,
        description="Decoded parts of segments kept while consumers read them, all together; "
        "what does not fit is decoded again when its consumer reads on",
    )

    @property
    def default_lease_seconds(self) -> float:
        """The lease of a consumer that asks for none: never longer than it may ask for."""
        return min(self.lease_seconds, self.max_lease_seconds)
