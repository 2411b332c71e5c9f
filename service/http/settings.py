"""Settings of connections, replies and pages; a part of the table in `service/settings.py`."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field, field_validator

from logstore.settings import KIB, MIB, Bytes, Listed, Section, items
from service.ingest.settings import IngestSettings
from service.tail import SseSettings

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
        default=8790, ge=0, le=65535, description="Port to listen on; 0 takes a free one"
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Processes that serve, each a node of its own; about one for each core. What"
        " bounds memory, disk and searches is divided among them",
    )
    role: Literal["all", "ingest", "query"] = Field(
        default="all",
        description="What this node does for others: `ingest` makes no searches; `query` has no"
        " journal and takes nothing, reads runs and searches, and needs `store` and `nodes.secret`",
    )
    insecure: bool = Field(
        default=False,
        description="Listen on an address other machines can reach, also without rules of access",
    )
    tls_certificate: str = Field(
        default="", description="File with the certificate and its chain (PEM); empty: no TLS"
    )
    tls_key: str = Field(
        default="", description="File with its private key (PEM); empty: it is with the certificate"
    )
    stop_seconds: float = Field(
        default=30, gt=0, description="How long a stop waits for requests and for the last flush"
    )
    store_seconds: float = Field(
        default=5.0,
        gt=0,
        le=600,
        description="How long a request that reads waits for an answer of the object store; then"
        " the reply has what the nodes hold, and says so",
    )
    max_connections: int = Field(
        default=4096,
        ge=1,
        description="Connections at once; the next one gets 503. Fewer if the process may"
        " open few files",
    )
    max_connections_per_peer: int = Field(
        default=3072,
        ge=1,
        description="Connections of one address at once (IPv6: one /64); at most three quarters "
        "of all",
    )
    max_header_bytes: Bytes = Field(
        default=64 * KIB,
        ge=KIB,
        description="Size of a request's line and headers; a larger one gets 431",
    )
    max_url_bytes: Bytes = Field(
        default=8 * KIB, ge=KIB, description="Size of a request's URL; a larger one gets 414"
    )
    header_timeout_seconds: float = Field(
        default=30,
        gt=0,
        description="Time from the first byte of a request to the end of its headers",
    )
    idle_timeout_seconds: float = Field(
        default=75,
        gt=0,
        description="A connection without a request for this long is closed, also a new one",
    )
    reply_bytes: Bytes = Field(
        default=256 * MIB,
        ge=MIB,
        description="Memory of pages, downloads, segments and lists in progress, 1 MiB each;"
        " further requests wait up to 10 s, and replies that nobody reads"
        " meanwhile are cut off",
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
        description="Origins (`https://tools.example.com`), separated by commas, whose pages may"
        " ask everything and read the replies (CORS), with a token of their own; empty: none",
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
        """What speaks TLS with the certificate, if there is one. Raises `OSError`."""
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
        default=100_000, ge=1, description="The most lines of a page, for any `limit`"
    )
    run_list: int = Field(default=10, ge=1, description="Runs listed when `limit` is not given")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The sections that requests go by, and what follows from several of them.

    `most_connections` is what the process may have open, however many are set; None: no bound.
    """

    server: ServerSettings = field(default_factory=ServerSettings)
    ingest: IngestSettings = field(default_factory=IngestSettings)
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
        """One client, or all readers, leave connections for others."""
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
