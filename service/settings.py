"""Every setting of the service: one table for the file, the environment, flags and the docs.

Each section is a class, which its parts get as it is: a limit is declared once. A setting that a
hostile or careless user can run into has its unit in its name. `Tuning` has sizes and pauses that
no operator sets, and that tests make small. `docs/reference/settings.md` is made from this table
(`make docs`).
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from service.doors.settings import DoorSettings
from service.tail import SseSettings
from tailrace.coordination.settings import SourceCoordination
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.objects.config import (
    CompactionSettings,
    PipelineSettings,
    QueueRetention,
    SegmentRetention,
    StoreSettings,
)
from tailrace.logstore.openmetadata_settings import translate
from tailrace.logstore.process import memory_limit
from tailrace.logstore.runs.deletions import RunRetention, time_text
from tailrace.logstore.runs.manifest import INLINE_BYTES
from tailrace.logstore.settings import (
    GIB,
    KIB,
    MIB,
    PREFIX,
    Bytes,
    BytesOrZero,
    Listed,
    Section,
    items,
    load,
    read_file,
)


class AccessSettings(Section):
    """Where the rules are, and where is written what was done and refused."""

    rules: str = Field(
        default="",
        description="File with the rules of access (YAML), reloaded when it changes and at "
        "SIGHUP; empty: anybody who can reach the service may do everything",
    )
    reload_seconds: float = Field(
        default=2, gt=0, description="How often the file of rules is checked for changes"
    )
    audit_log: str = Field(
        default="",
        description="File of the audit log (JSON lines), written if rules of access exist; "
        "empty: `audit.log` in the data folder",
    )


_APART_MS = 60_000  # difference of two nodes' clocks


class IngestSettings(Section):
    """Which batches are accepted, and how much of them at once."""

    max_age_days: int = Field(
        default=7,
        ge=1,
        description="A client's batch id older than this is refused as `batch-too-old`",
    )
    max_future_seconds: int = Field(
        default=600,
        ge=0,
        description="A client's batch id that is further ahead of the clock is refused",
    )
    max_body_bytes: Bytes = Field(
        default=64 * MIB, description="Maximum size of a request body as sent, compressed or not"
    )
    max_text_bytes: Bytes = Field(
        default=64 * MIB,
        description="Maximum size of a batch's text after decompression and decoding",
    )
    max_meta_bytes: Bytes = Field(
        default=16 * MIB,
        description="Maximum size of the metadata of a batch's records: times, levels, attributes",
    )
    in_flight_bytes: Bytes = Field(
        default=128 * MIB,
        description="Memory for all request bodies and their texts. When it is used up, bodies "
        "wait, and a body that stalls gets 503; up to 32 MiB more may arrive meanwhile",
    )
    body_timeout_seconds: float = Field(
        default=60,
        gt=0,
        description="Maximum time from the end of a request's headers to its last byte",
    )
    offload_bytes: Bytes = Field(
        default=256 * KIB, description="Bodies of at least this size are decoded in a thread"
    )
    decode_threads: int = Field(
        default=2, ge=1, le=64, description="Number of bodies that are decoded at the same time"
    )
    prefix_connector: bool = Field(
        default=False,
        description="Start the first line of a batch with `[connectorId] `, as OpenMetadata does",
    )

    @property
    def deleted_ahead_ms(self) -> int:
        """How far ahead the ids of a node may lie that does not answer a deletion."""
        return self.max_future_seconds * 1000 + _APART_MS


_HOST = re.compile(r"\*|(\*?\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


def _each(form: re.Pattern[str], listed: str, what: str) -> str:
    """`listed` if each of its items has the form. Raises `ValueError` with the one that has not."""
    for item in items(listed):
        if not form.fullmatch(item):
            raise ValueError(f"{item!r} is not {what}")
    return listed


class ServerSettings(Section):
    """Where the service listens."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on")
    port: int = Field(
        default=8790, ge=0, le=65535, description="Port to listen on; 0: any free port"
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Worker processes, each a node of its own; about one per core. Limits of "
        "memory, disk and searches are divided among them",
    )
    role: Literal["all", "ingest", "query"] = Field(
        default="all",
        description="Role of this node: `ingest` runs no searches; `query` reads runs and "
        "searches, but has no journal and accepts no lines, and needs `store` and "
        "`nodes.secret`",
    )
    insecure: bool = Field(
        default=False,
        description="Listen on an address that other machines can reach, even without rules of "
        "access",
    )
    tls_certificate: str = Field(
        default="", description="File with the certificate and its chain (PEM); empty: no TLS"
    )
    tls_key: str = Field(
        default="",
        description="File with its private key (PEM); empty: the key is in the certificate's file",
    )
    stop_seconds: float = Field(
        default=30, gt=0, description="How long a stop waits for requests and for the last flush"
    )
    store_seconds: float = Field(
        default=5.0,
        gt=0,
        le=600,
        description="How long a read waits for an answer of the object store; after that, the "
        "reply has only lines that the nodes hold, and is marked",
    )
    max_connections: int = Field(
        default=4096,
        ge=1,
        description="Maximum number of connections; the next one gets 503. Lower if the process "
        "may open few files",
    )
    max_connections_per_peer: int = Field(
        default=3072,
        ge=1,
        description="Maximum number of connections of one address (IPv6: one /64); at most three "
        "quarters of all",
    )
    max_header_bytes: Bytes = Field(
        default=64 * KIB,
        ge=KIB,
        description="Maximum size of a request's line and headers; a larger request gets 431",
    )
    max_url_bytes: Bytes = Field(
        default=8 * KIB,
        ge=KIB,
        description="Maximum size of a request's URL; a longer URL gets 414",
    )
    header_timeout_seconds: float = Field(
        default=30,
        gt=0,
        description="Maximum time from the first byte of a request to the end of its headers",
    )
    idle_timeout_seconds: float = Field(
        default=75,
        gt=0,
        description="A connection without a request for this long is closed, even a new one",
    )
    reply_bytes: Bytes = Field(
        default=256 * MIB,
        ge=MIB,
        description="Memory for pages, downloads, segments and lists in progress, 1 MiB each; "
        "further requests wait up to 10 s, and replies that are not read meanwhile "
        "are cut off",
    )
    write_timeout_seconds: float = Field(
        default=60,
        gt=0,
        description="A client that reads nothing of its reply for this long is disconnected",
    )
    allowed_hosts: Listed = Field(
        default="",
        description="Names that clients and proxies use for the service, besides `localhost`,"
        " IP addresses and this host's name, separated by commas; `.example.com`"
        " includes all names below it, `*` is any name",
    )
    allowed_origins: Listed = Field(
        default="",
        description="Origins (`https://logs.example.com`), separated by commas, whose pages"
        " may change data; needed if a proxy changes `Host`",
    )

    cors_origins: Listed = Field(
        default="",
        description="Origins (`https://tools.example.com`), separated by commas, whose pages may "
        "send all requests and read the replies (CORS), with their own token; empty: "
        "none",
    )

    @field_validator("allowed_hosts")
    @classmethod
    def _are_hosts(cls, listed: str) -> str:
        return _each(_HOST, listed, "a host name without scheme, port and path")

    @field_validator("allowed_origins", "cors_origins")
    @classmethod
    def _are_origins(cls, listed: str) -> str:
        return _each(_ORIGIN, listed, "an origin: scheme://host[:port]")

    def tls_context(self) -> ssl.SSLContext | None:
        """The context for TLS with the certificate; None without one. Raises `OSError`."""
        if not self.tls_certificate:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.tls_certificate, self.tls_key or None)
        return context


class PageSettings(Section):
    """Limits of pages."""

    default_lines: int = Field(
        default=1000, ge=1, description="Lines of a page when `limit` is not given"
    )
    max_lines: int = Field(
        default=100_000, ge=1, description="Maximum number of lines of a page, for any `limit`"
    )
    run_list: int = Field(default=10, ge=1, description="Runs listed when `limit` is not given")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The sections that apply to requests, and limits that follow from several of them.

    `most_connections` is the limit of the process, whatever the settings are; None is no limit.
    """

    server: ServerSettings = field(default_factory=ServerSettings)
    ingest: IngestSettings = field(default_factory=IngestSettings)
    doors: DoorSettings = field(default_factory=DoorSettings)
    pages: PageSettings = field(default_factory=PageSettings)
    sse: SseSettings = field(default_factory=SseSettings)
    most_connections: int | None = None

    @property
    def max_connections(self) -> int:
        """Connections at once; the next one gets 503."""
        wanted = self.server.max_connections
        return wanted if self.most_connections is None else min(wanted, self.most_connections)

    @property
    def max_connections_per_peer(self) -> int:
        """Connections of one address at once (IPv6: of one /64)."""
        return min(self.server.max_connections_per_peer, self._most_of_all)

    @property
    def max_readers(self) -> int:
        """Live readers at once; the next one gets an `error` event."""
        return min(self.sse.max_readers, self._most_of_all)

    @property
    def _most_of_all(self) -> int:
        """The most connections for one client, or all readers, so that others have some left."""
        return max(1, self.max_connections * 3 // 4)

    @property
    def shortest_timeout_seconds(self) -> float:
        """The shortest timeout of a connection."""
        server = self.server
        return min(
            server.header_timeout_seconds,
            server.idle_timeout_seconds,
            server.write_timeout_seconds,
            self.ingest.body_timeout_seconds,
        )


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
        description="Maximum size of all journal files together; beyond it appends get 507",
    )
    min_free_bytes: Bytes = Field(
        default=64 * MIB,
        description="Below this free disk space, batches are refused; cuts and closes still work",
    )
    reserve_bytes: BytesOrZero = Field(
        default=4 * MIB,
        description="Disk space reserved for starts and deletions on a full disk: twice this"
        " size on the disks of the data folder and of a folder store; 0: none",
    )
    fast_sync_seconds: float = Field(
        default=1, gt=0, description="A batch sent as `fast` is synced after at most this time"
    )
    erase_seconds: float = Field(
        default=60,
        ge=0,
        description="After a deletion the journal begins a new file within this time, so that"
        " the old file can be removed; deletions within this time share one new file",
    )

    @model_validator(mode="after")
    def _holds_two_files(self) -> JournalSettings:
        if self.max_bytes < 2 * self.file_bytes:
            raise ValueError("journal.max_bytes must hold at least two files of journal.file_bytes")
        return self


_URL = re.compile(r"https?://[^/?#\s]+")
_SHORTEST = 16


class NodesSettings(Section):
    """How the nodes on one store find and ask each other."""

    secret: SecretStr = Field(
        default=SecretStr(""),
        description="Secret shared by all nodes on the store, at least 16 characters; empty: "
        "this node neither asks nor answers other nodes",
    )
    previous_secret: SecretStr = Field(
        default=SecretStr(""),
        description="The previous secret, during its replacement: this node also accepts it, and "
        "sends it to a node that refuses `nodes.secret`",
    )
    listen: str = Field(
        default="",
        pattern=r"^(.+:\d{1,5})?$",
        description="`HOST:PORT` at which this node answers only other nodes, with TLS and "
        "certificates of `nodes.tls_ca`. Empty: the service's own address, with "
        "`nodes.secret`",
    )
    tls_certificate: str = Field(
        default="",
        description="File with this node's certificate (PEM), which it presents to other nodes",
    )
    tls_key: str = Field(
        default="",
        description="File with its private key (PEM); empty: the key is in the certificate's file",
    )
    tls_ca: str = Field(
        default="",
        description="File with the certificate of the authority that signs the "
        "nodes' certificates (PEM)",
    )
    url: str = Field(
        default="",
        description="URL under which other nodes reach this one (`http://10.0.0.7:8790`); empty:"
        " the address on which it listens",
    )
    timeout_seconds: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="How long a read waits for other nodes; a node that does not answer is left "
        "out, and the reply names it",
    )
    refresh_seconds: float = Field(
        default=5.0, ge=0.1, description="How often a node looks for other nodes"
    )

    shed_journal_share: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="With three or more nodes, a node whose journal is fuller than this refuses "
        "batches (429) of clients that can use another node; 0: not for this reason",
    )
    shed_lag_seconds: float = Field(
        default=120.0,
        ge=0,
        description="The same if lines have waited longer than this for their segment; 0: not "
        "for this reason",
    )
    shed_delay_seconds: float = Field(
        default=0.5,
        ge=0,
        description="The same if a request waits longer than this for the processor; 0: not for "
        "this reason",
    )

    @property
    def ask(self) -> bool:
        """Whether this node asks others, and answers them."""
        return bool(self.secret.get_secret_value() or self.listen)

    @field_validator("url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        if value and not _URL.fullmatch(value.rstrip("/")):
            raise ValueError("not a URL of scheme, host and port alone")
        return value.rstrip("/")

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets that this node accepts, its own first."""
        both = (self.secret.get_secret_value(), self.previous_secret.get_secret_value())
        return tuple([secret for secret in both if secret]) if both[0] else ()

    @field_validator("secret", "previous_secret")
    @classmethod
    def _is_long(cls, value: SecretStr) -> SecretStr:
        secret = value.get_secret_value()
        if secret and (len(secret) < _SHORTEST or not secret.isascii() or not secret.isprintable()):
            raise ValueError("a secret has at least 16 characters of printable ASCII")
        return value


class QuerySettings(Section):
    """Limits of a search."""

    threads: int = Field(default=2, ge=1, le=64, description="Threads of one search")
    memory_bytes: Bytes = Field(default=512 * MIB, ge=64 * MIB, description="Memory of one search")
    spill_bytes: Bytes = Field(
        default=4 * GIB, description="Disk space that one search may use beyond its memory"
    )
    index_bytes: Bytes | None = Field(
        default=None,
        description="Memory of a node for cached skip indexes, with which a search skips parts "
        "of the table; empty: 1/64 of the memory of machine or container, at least "
        "64 MiB",
    )
    scan_copies_bytes: BytesOrZero | None = Field(
        default=None,
        description="Disk of a node for uncompressed copies of table files, which searches scan "
        "three times as fast; empty: half of that memory, 0: none",
    )
    file_cache_bytes: BytesOrZero = Field(
        default=16 * GIB,
        description="Disk of a node for cached table files and skip indexes of a store on S3, "
        "which searches then read without requests; 0: none",
    )
    time_limit_seconds: float = Field(
        default=60,
        gt=0,
        description="Maximum working time of a search, without the time in which it waits for "
        "its client",
    )
    stall_seconds: float = Field(
        default=60, gt=0, description="A search is ended if its client reads nothing for this long"
    )
    max_concurrent: int = Field(default=4, ge=1, description="Number of concurrent searches")
    max_waiting: int = Field(
        default=32, ge=0, description="Number of searches that wait in the queue"
    )
    stream_window_seconds: float = Field(
        default=2,
        ge=0,
        le=60,
        description="A live search delays records by this long, to return them in the order of "
        "their ULIDs",
    )
    max_streams: int = Field(default=32, ge=1, description="Number of different live searches")
    idle_seconds: float = Field(
        default=300, ge=0, description="An unused search database is closed after this long"
    )

    @property
    def index_budget(self) -> int:
        """`index_bytes`, or its default value."""
        found = self.index_bytes
        return max(memory_limit() // 64, 64 * MIB) if found is None else found

    @property
    def copies_budget(self) -> int:
        """`scan_copies_bytes`, or its default value."""
        found = self.scan_copies_bytes
        return memory_limit() // 2 if found is None else found

    def sized(self) -> QuerySettings:
        """The same settings, with sizes instead of values that depend on the memory."""
        sizes = {"index_bytes": self.index_budget, "scan_copies_bytes": self.copies_budget}
        return self.model_copy(update=sizes)


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
        description="A segment that was leased this many times without a commit has failed: the "
        "group skips it",
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
        description="A returned segment is free after this long, doubled with each attempt",
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
        description="Maximum number of waiting consumers at a node; the next one gets 503",
    )
    poll_seconds: float = Field(
        default=1,
        ge=0.05,
        description="How often the store is checked for other nodes' segments while consumers wait",
    )
    report_seconds: float = Field(
        default=30, gt=0, description="How often the lag of all groups is measured, for metrics"
    )
    max_groups: int = Field(
        default=1000,
        ge=1,
        description="Maximum number of consumer groups; a new one replaces an unused one, or "
        "gets 429",
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
        description="A group without a commit and without a call for this long counts as unused",
    )
    decoded_bytes: Bytes = Field(
        default=64 * MIB,
        description="Memory for decoded parts of segments that consumers read; a part that does "
        "not fit is decoded again later",
    )

    @property
    def default_lease_seconds(self) -> float:
        """The lease of a consumer that requests none; at most the longest that it may request."""
        return min(self.lease_seconds, self.max_lease_seconds)


class RunSettings(RunRetention):
    """Run logs; OpenMetadata's names for the same things are accepted too."""

    prefix: str = Field(
        default="pipeline-logs",
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$",
        description="Key prefix of run logs",
    )
    stream_timeout_minutes: float = Field(
        default=1440,
        gt=0,
        description="An open run is closed after this long without a line and without a status "
        "that reports progress",
    )
    lost_minutes: float = Field(
        default=5,
        gt=0,
        description="A run whose client sends heartbeats is `lost` after this long without one; "
        "it continues with the client's next sign of life",
    )
    cleanup_interval_minutes: float = Field(
        default=60, gt=0, description="How often the node looks for abandoned and expired runs"
    )
    partial_flush_interval_minutes: float = Field(
        default=2,
        gt=0,
        description="New lines of a run are flushed to a chunk and `partial.txt` after this time",
    )
    early_flush_watermark_bytes: Bytes = Field(
        default=5 * MIB, description="A run with this much new text is flushed at once"
    )
    pending_flush_alert_after_failures: int = Field(
        default=10,
        ge=1,
        description=(
            "A flush that failed this many times in a row is reported in the log, in "
            "`/health/ready` and to the alert rules"
        ),
    )
    max_concurrent_streams: int = Field(
        default=100,
        ge=1,
        description="Number of runs with state in memory; other runs are served from the journal",
    )
    close_wait_seconds: float = Field(
        default=5,
        ge=0,
        description="A close answers `closing` when finishing takes longer than this",
    )
    reopen_idle_seconds: float = Field(
        default=60,
        gt=0,
        description="A run that a late batch reopened is closed again after this long without "
        "further batches",
    )

    @property
    def lost_seconds(self) -> float:
        """`lost_minutes` in seconds."""
        return self.lost_minutes * 60

    @property
    def stream_timeout_seconds(self) -> float:
        """`stream_timeout_minutes` in seconds."""
        return self.stream_timeout_minutes * 60

    @property
    def cleanup_interval_seconds(self) -> float:
        """`cleanup_interval_minutes` in seconds."""
        return self.cleanup_interval_minutes * 60

    @property
    def partial_flush_interval_seconds(self) -> float:
        """`partial_flush_interval_minutes` in seconds."""
        return self.partial_flush_interval_minutes * 60


class CoordinationSettings(Section):
    """Leases in the store: who does which work."""

    lease_seconds: float = Field(
        default=600,
        ge=15,
        description="A node that is silent for this long counts as lost: other nodes flush"
        " its segments into the runs",
    )


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes and pauses of all parts of run logs."""

    chunk_bytes: int = 8 << 20
    """A flush of more text makes several chunks."""
    inline_bytes: int = INLINE_BYTES
    """A run's manifest holds so much of its text, in chunks that have no objects."""
    watermark_seconds: float = 10.0
    """How often it is stored up to where all of the node's lines are in chunks."""
    merge_above: int = 48
    """A run with more chunks has some of them merged."""
    merge_width: int = 8
    """So many chunks become one."""
    partial_seconds: float | None = None
    """A partial text is published again after this time; None: after the interval of flushes."""
    orphan_seconds: float = 86_400.0
    """Objects that no manifest names are removed at this age."""
    takeover_seconds: float = 60.0
    """How often lost nodes are looked for."""


class FlushSettings(Section):
    """When lines leave the node for the object store."""

    segment_seconds: float = Field(
        default=10, gt=0, description="Maximum age of a segment before it is cut"
    )
    segment_bytes: Bytes = Field(
        default=64 * MIB, description="Maximum size of a segment's text before it is cut"
    )
    bulk_milliseconds: int = Field(
        default=250,
        ge=0,
        description="Lines of `bulk` batches are cut into a segment within this time",
    )
    process: bool = Field(
        default=True, description="Make segments of at least 16 MiB of text in a separate process"
    )
    parallel: int = Field(
        default=3,
        ge=1,
        le=64,
        description="Number of runs that are flushed at the same time, longest wait first; eight "
        "times as many if they have at most 4 KiB of new text",
    )

    @property
    def bulk_seconds(self) -> float:
        """`bulk_milliseconds` in seconds."""
        return self.bulk_milliseconds / 1000


# The version of OpenMetadata whose API the service offers, unless a setting changes it.
REPORTED_VERSION = "2.0.7"


class OpenMetadataSettings(Section):
    """What OpenMetadata's clients are answered, and how their reports are kept."""

    version: str = Field(
        default=REPORTED_VERSION,
        pattern=r"^[0-9]+\.[0-9]+(\.[0-9]+)*$",
        description="Version that `/api/v1/system/version` reports; clients expect their own",
    )
    finish_grace_seconds: float = Field(
        default=10,
        ge=0,
        description="Live streams of a run end this long after its terminal pipelineStatus, or "
        "after a later line",
    )
    report_cache_bytes: Bytes = Field(
        default=16 * MIB,
        description="Memory for statuses and metrics; progress may use as much again",
    )
    report_reply_bytes: Bytes = Field(
        default=8 * MIB,
        description="Maximum size of statuses or metrics in one reply; `paging.next` leads to "
        "the rest",
    )


_FEW_DAYS = 7


class Settings(StoreSettings):
    """All sections. The loader's `warnings` are for the log and no part of the settings."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    node_id: str = Field(
        default="",
        max_length=100,
        pattern=r"^[A-Za-z0-9._-]*$",
        description="The node's name; empty: the host's name",
    )
    server: ServerSettings = ServerSettings()
    nodes: NodesSettings = NodesSettings()
    access: AccessSettings = AccessSettings()
    journal: JournalSettings = JournalSettings()
    ingest: IngestSettings = IngestSettings()
    doors: DoorSettings = DoorSettings()
    flush: FlushSettings = FlushSettings()
    runs: RunSettings = RunSettings()
    pages: PageSettings = PageSettings()
    sse: SseSettings = SseSettings()
    openmetadata: OpenMetadataSettings = OpenMetadataSettings()
    query: QuerySettings = QuerySettings()
    coordination: CoordinationSettings = CoordinationSettings()
    source_coordination: SourceCoordination = SourceCoordination()
    queue: QueueSettings = QueueSettings()
    compaction: CompactionSettings = CompactionSettings()
    segments: SegmentRetention = SegmentRetention()
    pipelines: PipelineSettings = PipelineSettings()

    @property
    def node_name(self) -> str:
        """The configured name, or the host's."""
        return self.node_id or socket.gethostname()


def load_settings(
    flags: Mapping[str, Any] | None = None, *, config: str | None = None
) -> tuple[Settings, list[str]]:
    """Settings from flags (nested, as in the file), environment and file, with warnings.

    Raises `InvalidInput` for a key nobody knows, a value out of its bounds, and an
    address that others can reach without rules of access and without `server.insecure`.
    """
    content, warnings = translate(read_file(config))
    settings = load(Settings, flags=flags or {}, file=content, strict=True)
    _refuse_open_door(settings)
    _check_tls(settings)
    _check_nodes(settings)
    _check_role(settings)
    return settings, warnings + _short_expiry(settings)


def _short_expiry(settings: Settings) -> list[str]:
    runs = settings.runs
    every = {"expiration_days": runs.expiration_days}
    every |= {f"expiration_days_of[{p!r}]": days for p, days in runs.expiration_days_of.items()}
    return [
        f"runs.{name} is {time_text(days)}: a run that stays open longer than this loses its text"
        for name, days in every.items()
        if 0 < days < _FEW_DAYS
    ]


def _refuse_open_door(settings: Settings) -> None:
    server = settings.server
    if server.insecure or settings.access.rules or is_loopback(server.host):
        return
    raise InvalidInput(
        f"refusing to listen on {server.host}: there are no rules of access",
        field="server.host",
        hint="Name a file of rules in access.rules (docs/operate/access.md), listen on 127.0.0.1,"
        " or use --insecure if the network is trusted.",
    )


def _check_tls(settings: Settings) -> None:
    server = settings.server
    if server.tls_key and not server.tls_certificate:
        raise InvalidInput(
            "server.tls_key is set without server.tls_certificate", field="server.tls_certificate"
        )
    if not server.tls_certificate:
        return
    if settings.nodes.ask and not settings.nodes.listen:
        raise InvalidInput(
            "nodes would ask each other without TLS",
            field="server.tls_certificate",
            hint="Put a proxy with TLS in front of the service, or give nodes an address of "
            "their own (nodes.listen).",
        )
    try:
        server.tls_context()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InvalidInput(
            f"no certificate with its key is in {server.tls_certificate}: {why}",
            field="server.tls_certificate",
            hint="Name a PEM file that the service may read, and its key in server.tls_key.",
        ) from error


def _check_nodes(settings: Settings) -> None:
    """TLS of both sides needs all of its parts, and one process. Raises `InvalidInput`."""
    nodes = settings.nodes
    if bool(nodes.listen) != bool(nodes.tls_certificate and nodes.tls_ca):
        raise InvalidInput(
            "TLS between nodes needs an address, a certificate and an authority",
            field="nodes.listen",
            hint="Set nodes.listen, nodes.tls_certificate and nodes.tls_ca, or none of them.",
        )
    if nodes.listen and settings.server.workers > 1:
        raise InvalidInput(
            "several workers cannot share the address in nodes.listen",
            field="nodes.listen",
            hint="Use nodes.secret, or one worker per node.",
        )


def _check_role(settings: Settings) -> None:
    """A node that only reads shows what the store and other nodes have."""
    if settings.server.role != "query":
        return
    if not settings.store:
        raise InvalidInput(
            "a query node needs the store of the other nodes",
            field="store",
            hint="Set `store` to their folder or s3:// address.",
        )
    if not settings.nodes.ask:
        raise InvalidInput(
            "a query node must ask the other nodes for their newest lines",
            field="nodes.secret",
            hint="Give it their nodes.secret, or nodes.listen and certificates.",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
