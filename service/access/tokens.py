"""Static tokens: `trl_<id>_<secret>`, of which the rules have the id and a SHA-256.

The secret has 256 random bits, so a plain hash is enough: nobody can try them all. What is hashed
is the whole token. A comparison takes as long wherever two hashes differ.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "trl_"
LONGEST_TOKEN: Final = 16 << 10
"""Bytes of any token, those of issuers too."""
_ID_BYTES: Final = 5
_SECRET_BYTES: Final = 32
_TOKEN: Final = re.compile(r"trl_([a-z0-9]{4,32})_[0-9a-f]{64}", re.ASCII)
ID: Final = re.compile(r"[a-z0-9]{4,32}", re.ASCII)
SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NOBODY: Final = "0" * 64


@dataclass(frozen=True, slots=True)
class Secret:
    """The hash of a token, and until when it is valid; None: for ever."""

    sha256: str
    expires_ms: int | None = None


def id_of(token: str) -> str | None:
    """The id in a token, None if it is none."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else None


def make_token(random: Callable[[int], bytes], token_id: str = "") -> tuple[str, str, str]:
    """A new token, its id, and its hash; `random` gives so many unguessable bytes."""
    token_id = token_id or random(_ID_BYTES).hex()
    token = f"{PREFIX}{token_id}_{random(_SECRET_BYTES).hex()}"
    return token, token_id, hashed(token)


def hashed(token: str) -> str:
    """The hash that the rules have of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def matching(token: str, secrets: Sequence[Secret]) -> Secret | None:
    """The secret that the token is, whether expired or not; each is compared with."""
    ours, found = hashed(token), None
    for secret in secrets or (Secret(_NOBODY),):
        if hmac.compare_digest(ours, secret.sha256):
            found = secret
    return found
