"""Settings of the segment queue; a part of the table in `service/settings.py`."""

from __future__ import annotations

from pydantic import Field

from logstore.objects.settings import QueueRetention
from logstore.settings import MIB, Bytes


class QueueSettings(QueueRetention):
    """Limits of the segment queue, which is consumer groups over HTTP."""

    lease_seconds: float = Field(
        default=60,
        gt=0,
        description="How long a segment is leased when `lease_seconds` is not given",
    )
    max_lease_seconds: float = Field(
        default=3600,
        gt=0,
        description="The longest lease that a consumer may ask for; it may renew",
    )
    max_attempts: int = Field(
        default=5,
        ge=1,
        description="A segment that was leased this often without a commit has failed: the"
        " group passes over it",
    )
    outstanding: int = Field(
        default=64,
        ge=1,
        le=1000,
        description="The most segments of a group that are leased or wait for a retry",
    )
    retry_seconds: float = Field(
        default=1,
        ge=0,
        description="A segment that was given back is free after this long, doubled with each"
        " attempt",
    )
    longest_retry_seconds: float = Field(
        default=60, ge=0, description="The longest of these pauses"
    )
    max_wait_seconds: float = Field(
        default=60, ge=0, description="The longest `wait` of a consumer"
    )
    max_waiting: int = Field(
        default=1000,
        ge=1,
        description="The most consumers that wait at a node; the next one gets 503",
    )
    poll_seconds: float = Field(
        default=1,
        ge=0.05,
        description="How often the store is asked for other nodes' segments while consumers wait",
    )
    report_seconds: float = Field(
        default=30, gt=0, description="How often the lag of all groups is measured, for metrics"
    )
    max_groups: int = Field(
        default=1000,
        ge=1,
        description="The most consumer groups; a new one replaces an unused one, or gets 429",
    )
    new_groups_per_hour: int = Field(
        default=100,
        ge=1,
        description="Groups that one address may create in an hour at a node; the next one"
        " gets 429",
    )
    unused_group_seconds: float = Field(
        default=3600,
        gt=0,
        description="A group that committed nothing and got no call for this long is unused",
    )
    decoded_bytes: Bytes = Field(
        default=64 * MIB,
        description="Memory for decoded parts of segments that consumers read; a part that"
        " does not fit is decoded again when its consumer continues",
    )

    @property
    def default_lease_seconds(self) -> float:
        """The lease of a consumer that asks for none: never longer than it may ask for."""
        return min(self.lease_seconds, self.max_lease_seconds)
