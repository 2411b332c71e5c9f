"""Settings of the routes between nodes."""

from __future__ import annotations

import re

from pydantic import Field, SecretStr, field_validator

from logstore.settings import Section

_URL = re.compile(r"https?://[^/?#\s]+")
_SHORTEST = 16


class NodesSettings(Section):
    """How the nodes on one store find and ask each other."""

    secret: SecretStr = Field(
        default=SecretStr(""),
        description="Secret that all nodes on the store share, at least 16 characters; empty: this"
        " node asks no other node and answers none",
    )
    previous_secret: SecretStr = Field(
        default=SecretStr(""),
        description="The secret before this one, while it is replaced: this node takes it too, and"
        " shows it to a node that refuses `nodes.secret`",
    )
    listen: str = Field(
        default="",
        pattern=r"^(.+:\d{1,5})?$",
        description="`HOST:PORT` at which this node answers others alone, with TLS: they show a"
        " certificate of `nodes.tls_ca`. Empty: at the service's own address, by `nodes.secret`",
    )
    tls_certificate: str = Field(
        default="",
        description="File with this node's certificate (PEM), which it shows to others",
    )
    tls_key: str = Field(
        default="", description="File with its private key (PEM); empty: it is with the certificate"
    )
    tls_ca: str = Field(
        default="", description="File with the authority that signs nodes' certificates (PEM)"
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
        description="How long a reader waits for other nodes; one that is silent is left out, and"
        " the reply says so",
    )
    refresh_seconds: float = Field(
        default=5.0, ge=0.1, description="How often a node looks which other nodes there are"
    )

    shed_journal_share: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="Of three nodes or more, one whose journal is so full refuses batches (429)"
        " whose clients send them elsewhere; 0: not for this reason",
    )
    shed_lag_seconds: float = Field(
        default=120.0,
        ge=0,
        description="The same if lines have waited so long for their segment; 0: not for this"
        " reason",
    )
    shed_delay_seconds: float = Field(
        default=0.5,
        ge=0,
        description="The same if a request waits so long for the processor; 0: not for this reason",
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
        """The secrets that this node takes, its own first."""
        both = (self.secret.get_secret_value(), self.previous_secret.get_secret_value())
        return tuple([secret for secret in both if secret]) if both[0] else ()

    @field_validator("secret", "previous_secret")
    @classmethod
    def _is_long(cls, value: SecretStr) -> SecretStr:
        secret = value.get_secret_value()
        if secret and (len(secret) < _SHORTEST or not secret.isascii() or not secret.isprintable()):
            raise ValueError("a secret has at least 16 characters of printable ASCII")
        return value
