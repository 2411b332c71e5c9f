"""Settings of appends; a part of the table in `service/settings.py`."""

from __future__ import annotations

from pydantic import Field

from logstore.settings import KIB, MIB, Bytes, Section

_APART_MS = 60_000  # of two nodes' clocks


class IngestSettings(Section):
    """Which batches are accepted, and how much of them at once."""

    max_age_days: int = Field(
        default=7,
        ge=1,
        description="A client's batch id older than this is refused as `batch-too-old`",
    )
    max_future_seconds: int = Field(
        default=600, ge=0, description="A client's batch id further ahead of the clock is refused"
    )
    max_body_bytes: Bytes = Field(
        default=64 * MIB, description="Size of a request body as it is sent, compressed or not"
    )
    max_text_bytes: Bytes = Field(
        default=64 * MIB, description="Size of one batch's text after decompression and decoding"
    )
    max_meta_bytes: Bytes = Field(
        default=16 * MIB,
        description="Size of the metadata of one batch's records: times, levels, attributes",
    )
    in_flight_bytes: Bytes = Field(
        default=128 * MIB,
        description="Memory of all bodies, as far as they have arrived, and of their texts;"
        " beyond it bodies wait, and one that stalls meanwhile gets 503",
    )
    body_timeout_seconds: float = Field(
        default=60, gt=0, description="Time from the end of a request's headers to its last byte"
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

    @property
    def deleted_ahead_ms(self) -> int:
        """How far ahead the ids lie that a node may have taken that does not answer a deletion."""
        return self.max_future_seconds * 1000 + _APART_MS
