"""The whole configuration: where to, where the state is kept, and the sources."""

from __future__ import annotations

import os
from typing import Literal, Self

from pydantic import field_validator, model_validator

from forwarder.config.source import Source
from forwarder.config.values import Duration, Section, Size, Texts, key

Durability = Literal["", "fast", "durable", "bulk"]
_ROOTS_STORAGE = "/var/lib/tailrace/forwarder"
_USERS_STORAGE = "~/.local/state/tailrace/forwarder"


class Metrics(Section):
    """Where Prometheus finds the forwarder's metrics."""

    listen: str = key(
        "",
        "`host:port`, such as 127.0.0.1:8791, for /metrics, /health/live and /health/ready;"
        " empty: nowhere",
    )


class Retry(Section):
    """How long the forwarder waits before it sends a batch again. It never gives up."""

    enabled: Literal[True] = key(True, "cannot be switched off", otel="default false")
    initial_interval: Duration = key(1.0, "the first pause")
    max_interval: Duration = key(30.0, "the longest pause")
    max_elapsed_time: Duration = key(
        0.0, "0: never give up; nothing else is accepted", otel="default 5m, then the batch is lost"
    )

    @field_validator("max_elapsed_time")
    @classmethod
    def _for_ever(cls, value: float) -> float:
        if value:
            raise ValueError(
                "a batch is sent until it is acknowledged: leave it out, or set it to 0"
            )
        return value


class Forwarder(Section):
    """What `tailrace forward --config` is told."""

    targets: Texts = key(
        ..., "services, each with the same store: `host:port`, `https://host`, `srv+http://name`"
    )
    token: str = key("", "sent as `Authorization: Bearer` to the targets only")
    token_file: str = key("", "a file that has the token; it is read again when it changes")
    ca_file: str = key("", "certificates by which targets with `https` are trusted")
    durability: Durability = key("", "what an acknowledgement means; empty: as the service is set")
    body_encoding: Literal["", "gzip", "zstd"] = key(
        "", "how bodies are compressed on their way; costs more of the CPU than all the rest"
    )
    storage: str = key(
        "",
        f"folder of the checkpoints. `{_ROOTS_STORAGE}` for root, else `{_USERS_STORAGE}`",
        otel="always on, and no extension: a folder, for one forwarder at a time",
    )
    metrics: Metrics = key(Metrics(), "Prometheus")
    shutdown_timeout: Duration = key(10.0, "how long a stop waits for acknowledgements")
    retry_on_failure: Retry = key(Retry(), "pauses between attempts")
    senders: int = key(4, "how many batches are on their way at once", ge=1, le=64)
    batch_bytes: Size = key(1 << 20, "bytes of a batch's body, about", ge=1 << 10, le=4 << 20)
    memory_bytes: Size = key(
        16 << 20, "bytes of batches that are prepared or on their way", ge=1 << 20
    )
    sources: tuple[Source, ...] = key(..., "what is read")

    @property
    def folder(self) -> str:
        """Where the checkpoints are: `storage`, or its default for this user."""
        return self.storage or default_storage()

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if not self.targets:
            raise ValueError("targets must name at least one service, such as 127.0.0.1:8790")
        if self.token and self.token_file:
            raise ValueError("give token or token_file, not both")
        return self


def default_storage() -> str:
    """The folder of the checkpoints for root, or below the home of another user."""
    return _ROOTS_STORAGE if os.geteuid() == 0 else os.path.expanduser(_USERS_STORAGE)
