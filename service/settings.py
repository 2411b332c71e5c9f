"""Every setting of the service: one table for the file, the environment, flags and the docs.

A setting that a hostile or careless user can run into is a limit with its unit in its
name. `docs/settings.md` is made from this file (`make docs`).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from coordination.settings import SourceCoordination
from logstore.errors import InvalidInput
from logstore.log_storage import translate
from logstore.objects.settings import CompactionSettings, StoreSettings
from logstore.runs.retention import RunRetention
from logstore.settings import PREFIX, Bytes, Listed, Section, items, load, read_file
from service.http.limits import REPORTED_VERSION
from service.query.settings import Query, Queue

_FEW_DAYS = 7
_HOST = re.compile(r"\*|(\*?\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def _each(form: re.Pattern[str], listed: str, what: str) -> str:
    """`listed` if each of its items has the form. Raises `ValueError` with the one that has not."""
    for item in items(listed):
        if not form.fullmatch(item):
            raise ValueError(f"{item!r} is not {what}")
    return listed


class Server(Section):
    """Where the service listens."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on")
    port: int = Field(
        default=8790, ge=0, le=65535, description="Port to listen on; 0 takes a free one"
    )
    insecure: bool = Field(
        default=False,
        description="Listen on an address other machines can reach, without authentication",
    )
    stop_seconds: float = Field(
        default=30, gt=0, description="How long a stop waits for requests and for the last flush"
    )
    max_connections: int = Field(
        default=4096,
        ge=1,
        description="Connections at once, the next one gets 503; fewer where the process may "
        "open few files",
    )
    max_connections_per_peer: int = Field(
        default=3072,
        ge=1,
        description="Connections of one address at once (IPv6: one /64); at most three quarters "
        "of all",
    )
    max_header_bytes: Bytes = Field(
        default=64 * KIB, ge=KIB, description="A request's line and headers; past it 431"
    )
    max_url_bytes: Bytes = Field(
        default=8 * KIB, ge=KIB, description="A request's URL; past it 414"
    )
    header_timeout_seconds: float = Field(
        default=30, gt=0, description="From the first byte of a request to the end of its headers"
    )
    idle_timeout_seconds: float = Field(
        default=75,
        gt=0,
        description="A connection without a request for so long is closed, a new one too",
    )
    reply_bytes: Bytes = Field(
        default=256 * MIB,
        ge=MIB,
        description="Pages, downloads, segments and lists under way, 1 MiB each; past it requests "
        "wait up to 10 s, and what nobody reads meanwhile is cut off",
    )
    write_timeout_seconds: float = Field(
        default=60,
        gt=0,
        description="A client that reads nothing of its reply for so long is let go",
    )
    allowed_hosts: Listed = Field(
        default="",
        description="Names that clients and proxies use for the service, beside `localhost`, IP "
        "addresses, and this host's: with commas; `.example.com` is all below it too, `*` any",
    )
    allowed_origins: Listed = Field(
        default="",
        description="Origins (`https://logs.example.com`), with commas, whose pages may change "
        "things; needed where a proxy changes `Host`",
    )

    @field_validator("allowed_hosts")
    @classmethod
    def _are_hosts(cls, listed: str) -> str:
        return _each(_HOST, listed, "a host name without scheme, port and path")

    @field_validator("allowed_origins")
    @classmethod
    def _are_origins(cls, listed: str) -> str:
        return _each(_ORIGIN, listed, "an origin: scheme://host[:port]")


class Journal(Section):
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
    def _holds_two_files(self) -> Journal:
        if self.max_bytes < 2 * self.file_bytes:
            raise ValueError("journal.max_bytes must hold at least two files of journal.file_bytes")
        return self


class Ingest(Section):
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


class Flush(Section):
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
    parallel: int = Field(
        default=3,
        ge=1,
        le=64,
        description="Runs whose news become chunks at the same time, those that waited longest "
        "first",
    )


class Runs(RunRetention):
    """The text of runs; OpenMetadata's names for the same things are accepted too."""

    prefix: str = Field(
        default="pipeline-logs",
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$",
        description="Key prefix of run texts",
    )
    stream_timeout_minutes: float = Field(
        default=1440,
        gt=0,
        description="A run that nobody closed is closed after so long without a line",
    )
    cleanup_interval_minutes: float = Field(
        default=60, gt=0, description="How often abandoned and expired runs are looked for"
    )
    partial_flush_interval_minutes: float = Field(
        default=2,
        gt=0,
        description="A run's news becomes a chunk and its partial text after this time",
    )
    early_flush_watermark_bytes: Bytes = Field(
        default=5 * MIB,
        description="A run with so much news becomes a chunk without waiting for the time",
    )
    pending_flush_alert_after_failures: int = Field(
        default=10,
        ge=1,
        description=(
            "A flush that failed so often in a row is a problem: in the log, in `/health/ready` "
            "and for the alert rules"
        ),
    )
    max_concurrent_streams: int = Field(
        default=100,
        ge=1,
        description="Runs with state in memory; others are served from the journal",
    )
    close_wait_seconds: float = Field(
        default=5,
        ge=0,
        description="A close answers `closing` when finishing takes longer than this",
    )
    reopen_idle_seconds: float = Field(
        default=60,
        gt=0,
        description="A run that a late batch reopened is closed again after so long without one",
    )


class Pages(Section):
    """Limits of reading."""

    default_lines: int = Field(
        default=1000, ge=1, description="Lines of a page when `limit` is not given"
    )
    max_lines: int = Field(
        default=100_000, ge=1, description="Lines of a page at most, whatever `limit` says"
    )
    run_list: int = Field(default=10, ge=1, description="Runs listed when `limit` is not given")


class Sse(Section):
    """The live tail."""

    max_readers: int = Field(
        default=2000,
        ge=1,
        description="Live readers at once, the next one gets an error event; at most three "
        "quarters of all connections",
    )
    heartbeat_seconds: float = Field(
        default=25, gt=0, description="A silent stream sends a comment this often"
    )
    ring_bytes: Bytes = Field(
        default=2 * MIB,
        description="Newest frames kept per watched run; readers further back read storage",
    )
    coalesce_milliseconds: float = Field(
        default=4, ge=0, description="Lines that arrive within this time wake a reader once"
    )


class OpenMetadata(Section):
    """What OpenMetadata's clients are told and how their reports are taken."""

    version: str = Field(
        default=REPORTED_VERSION,
        pattern=r"^[0-9]+\.[0-9]+(\.[0-9]+)*$",
        description="Version that `/api/v1/system/version` reports: that of the clients",
    )
    finish_grace_seconds: float = Field(
        default=10,
        ge=0,
        description="Live streams of a run end so long after its terminal pipelineStatus, "
        "or after the last line that comes behind it",
    )
    report_cache_bytes: Bytes = Field(
        default=16 * MIB,
        description="Statuses and metrics that are kept in memory, and as much of progress",
    )
    report_reply_bytes: Bytes = Field(
        default=8 * MIB,
        description="Statuses or metrics in one reply; `paging.next` gets what follows",
    )


class Coordination(Section):
    """Leases in the store: who does which work."""

    lease_seconds: float = Field(
        default=600,
        ge=15,
        description="A node that is silent for so long is taken for lost: others bring what it "
        "had in the store into the runs",
    )


class Settings(StoreSettings):
    """All of it. `warnings` of the loader are for the log, not part of it."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    node_id: str = Field(
        default="",
        max_length=100,
        pattern=r"^[A-Za-z0-9._-]*$",
        description="The node's name; empty: the host's name",
    )
    server: Server = Server()
    journal: Journal = Journal()
    ingest: Ingest = Ingest()
    flush: Flush = Flush()
    runs: Runs = Runs()
    pages: Pages = Pages()
    sse: Sse = Sse()
    openmetadata: OpenMetadata = OpenMetadata()
    query: Query = Query()
    coordination: Coordination = Coordination()
    source_coordination: SourceCoordination = SourceCoordination()
    queue: Queue = Queue()
    compaction: CompactionSettings = CompactionSettings()

    @property
    def node_name(self) -> str:
        """The configured name, or the host's."""
        return self.node_id or socket.gethostname()


def load_settings(
    flags: Mapping[str, Any] | None = None, *, config: str | None = None
) -> tuple[Settings, list[str]]:
    """Settings from flags (nested, as in the file), environment and file, with warnings.

    Raises `InvalidInput` for a key nobody knows, a value out of its bounds, and an
    address that others can reach without `server.insecure`.
    """
    content, warnings = translate(read_file(config))
    settings = load(Settings, flags=flags or {}, file=content, strict=True)
    _refuse_open_door(settings.server)
    return settings, warnings + _short_expiry(settings)


def _short_expiry(settings: Settings) -> list[str]:
    runs = settings.runs
    every = {"expiration_days": runs.expiration_days}
    every |= {f"expiration_days_of[{p!r}]": days for p, days in runs.expiration_days_of.items()}
    return [
        f"runs.{name} is {days}: a run that is open longer than that loses its text"
        for name, days in every.items()
        if 0 < days < _FEW_DAYS
    ]


def _refuse_open_door(server: Server) -> None:
    if server.insecure or is_loopback(server.host):
        return
    raise InvalidInput(
        f"refusing to listen on {server.host}: there is no authentication",
        field="server.host",
        hint="Listen on 127.0.0.1, or say --insecure if the network in front of it is trusted.",
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
