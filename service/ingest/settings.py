"""Settings of appends; a part of the table in `service/settings.py`."""

from __future__ import annotations

from pydantic import Field

from logstore.settings import Bytes, Section

KIB, MIB = 1 << 10, 1 << 20


class IngestSettings(Section):
    """What is taken in, and how much at once."""

    max_age_days: int = Field(
        default=7,
        ge=1,
        description="A client's batch id older than this is refused as `batch-too-old`",
    )
    max_future_seconds: int = Field(
        default=600, ge=0, description="A client's batch id further ahead of the clock is refused"
    )
    max_body_bytes: Bytes = Field(
        default=64 * MIB, description="A request body as it is sent, compressed or not"
    )
    max_text_bytes: Bytes = Field(
        default=64 * MIB, description="The text of one batch after decompression and decoding"
    )
    max_meta_bytes: Bytes = Field(
        default=16 * MIB,
        description="What the records of one batch carry beside their messages: times, levels, "
        "attributes",
    )
    in_flight_bytes: Bytes = Field(
        default=128 * MIB,
        description="What arrived of all bodies, and their texts; past it they wait, and one that "
        "stands still meanwhile gets 503",
    )
    body_timeout_seconds: float = Field(
        default=60, gt=0, description="From the end of a request's headers to its last byte"
    )
    offload_bytes: Bytes = Field(
        default=256 * KIB, description="Bodies from this size on are decoded in a thread"
    )
    decode_threads: int = Field(
        default=2, ge=1, le=64, description="Bodies decoded at the same time"
    )
    prefix_connector: bool = Field(
        default=False,
        description="Begin the first line of a batch with `[connectorId] `, as OpenMetadata does",
    )
