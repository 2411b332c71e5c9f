"""Every limit that a client's request can touch, with its unit in its name, and what is
done with requests beside.

`Bounds` is what decoding one body may cost, handed down to every step of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _on() -> None:
    """Nobody asks for an end."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sizes are bytes."""

    text_bytes: int
    """The text of the batch."""
    meta_bytes: int = 16 << 20
    """What its records carry beside the text, as it is encoded for the journal."""
    go_on: Callable[[], None] = _on
    """Called between pieces, each of a few milliseconds; what it raises ends the decoding."""


# The version of OpenMetadata whose API this is, unless a setting says otherwise.
REPORTED_VERSION = "2.0.7"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of connections, bodies, readers and pages. Sizes are bytes."""

    max_connections: int = 4096
    """Connections at once; the next one gets 503."""
    max_connections_per_peer: int = 3072
    """Connections of one address at once (IPv6: of one /64)."""
    max_header_bytes: int = 64 << 10
    """A request's line and headers together; beyond it 431."""
    max_url_bytes: int = 8 << 10
    """A request's URL; beyond it 414."""
    header_timeout_seconds: float = 30.0
    """From the first byte of a request to the end of its headers."""
    idle_timeout_seconds: float = 75.0
    """Between two requests, and before the first."""
    write_timeout_seconds: float = 60.0
    """In which a client that has replies to read reads nothing."""

    reply_bytes: int = 256 << 20
    """Memory of long replies under way, 1 MiB each; past it requests wait, or get 503."""

    max_body_bytes: int = 64 << 20
    """A body as it is sent: compressed, escaped or in base64."""
    max_text_bytes: int = 64 << 20
    """The text of a batch, once decoded."""
    max_meta_bytes: int = 16 << 20
    """What the records of a batch carry beside their messages, as the journal keeps it."""
    in_flight_bytes: int = 128 << 20
    """What arrived of all bodies, and their texts; past it they wait, and one that stands still
    meanwhile is let go."""
    body_timeout_seconds: float = 60.0
    """From the end of the headers to the last byte of the body."""
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

    @property
    def shortest_timeout_seconds(self) -> float:
        """Of those of a connection."""
        return min(
            self.header_timeout_seconds,
            self.idle_timeout_seconds,
            self.body_timeout_seconds,
            self.write_timeout_seconds,
        )
