"""Every limit that a client's request can touch, with its unit in its name, and what is
done with requests beside."""

from __future__ import annotations

from dataclasses import dataclass

# The version of OpenMetadata whose API this is, unless a setting says otherwise.
REPORTED_VERSION = "2.0.7"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of bodies, readers and pages. Sizes are bytes."""

    max_body_bytes: int = 64 << 20
    """A body as it is sent: compressed, escaped or in base64."""
    max_text_bytes: int = 64 << 20
    """The text of a batch, once decoded."""
    max_meta_bytes: int = 16 << 20
    """What the records of a batch carry beside their messages, as the journal keeps it."""
    in_flight_bytes: int = 128 << 20
    """Bodies and texts of all requests at once; past it new bodies wait, none is refused."""
    body_timeout_seconds: float = 60.0
    """From the first byte of a body to its last."""
    offload_bytes: int = 256 << 10
    """Bodies from this size are decoded in a thread, so that others are not held up."""
    decode_threads: int = 2
    """Bodies decoded at the same time."""
    page_lines: int = 1000
    """Lines of a page when `limit` is not given."""
    max_page_lines: int = 100_000
    """Lines of a page at most, whatever `limit` says."""
    max_stream_readers: int = 2000
    """Live readers at once; the next one gets an `error` event."""
    replay_lines: int = 100
    """Lines that a live stream begins with when it is given no cursor."""
    prefix_connector: bool = False
    """Whether a batch's first line begins with `[connectorId] `, as upstream stores it."""
    run_list: int = 10
    """Runs listed when `limit` is not given."""
