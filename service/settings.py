"""Every setting of the service: one table for the file, the environment, flags and the docs.

Each package declares its section, which is handed to its parts as it is: a limit is declared
once. A setting that a hostile or careless user can run into has its unit in its name.
`docs/settings.md` is made from this table (`make docs`).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from coordination.settings import SourceCoordination
from logstore.errors import InvalidInput
from logstore.log_storage import translate
from logstore.objects.settings import (
    CompactionSettings,
    PipelineSettings,
    SegmentRetention,
    StoreSettings,
)
from logstore.runs.retention import time_text
from logstore.settings import PREFIX, load, read_file
from service.access.settings import AccessSettings
from service.http.settings import PageSettings, ServerSettings
from service.ingest.settings import IngestSettings
from service.journal.settings import JournalSettings
from service.peers.settings import NodesSettings
from service.query.settings import QuerySettings
from service.queue.settings import QueueSettings
from service.runs.settings import CoordinationSettings, RunSettings
from service.shipping.settings import FlushSettings
from service.status.settings import OpenMetadataSettings
from service.tail import SseSettings

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
        f"runs.{name} is {time_text(days)}: a run that is open longer than that loses its text"
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
        hint="Name a file of rules in access.rules (docs/access.md), listen on 127.0.0.1, or say"
        " --insecure if the network in front of it is trusted.",
    )


def _check_tls(settings: Settings) -> None:
    server = settings.server
    if server.tls_key and not server.tls_certificate:
        raise InvalidInput("there is a key and no certificate", field="server.tls_certificate")
    if not server.tls_certificate:
        return
    if settings.nodes.ask and not settings.nodes.listen:
        raise InvalidInput(
            "nodes ask one another without TLS",
            field="server.tls_certificate",
            hint="Put a proxy in front of them that speaks TLS, or let nodes ask each other at an"
            " address of their own (nodes.listen).",
        )
    try:
        server.tls_context()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InvalidInput(
            f"there is no certificate with its key in {server.tls_certificate}: {why}",
            field="server.tls_certificate",
            hint="It is a PEM file that the service may read; its key is in server.tls_key.",
        ) from error


def _check_nodes(settings: Settings) -> None:
    """TLS of both sides needs all of its parts, and one process. Raises `InvalidInput`."""
    nodes = settings.nodes
    if bool(nodes.listen) != bool(nodes.tls_certificate and nodes.tls_ca):
        raise InvalidInput(
            "nodes that ask each other with TLS need an address, a certificate and an authority",
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
            "a node that only reads needs the store of the others",
            field="store",
            hint="Name the folder or the s3:// address that they have in `store`.",
        )
    if not settings.nodes.ask:
        raise InvalidInput(
            "a node that only reads must ask the others for their newest lines",
            field="nodes.secret",
            hint="Give it the nodes.secret that they have, or nodes.listen and certificates.",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
