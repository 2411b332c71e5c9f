"""Who asks: a name, what it may do, and until when it is known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from service.access.names import Names
from service.access.quota import Quota

if TYPE_CHECKING:
    from service.access.issuers import Issuer

SCOPES: Final = ("ingest", "read", "consume", "admin", "metrics", "node")
"""What a token may be for."""

NOTHING: Final = Names()
Grants = Mapping[str, Names]
"""The pipelines of each scope."""
Fetch = Callable[[str], Awaitable[bytes]]
"""Gives the content at an address. Raises `Unavailable`."""


class KeysNeeded(Exception):
    """The token names a key that is not known; `issuer` may fetch it."""

    def __init__(self, issuer: Issuer) -> None:
        super().__init__()
        self.issuer = issuer


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody who was recognised; `expires_ms` is a time of the wall clock, None: never.

    `key` tells identities apart that have one name: the token's id, or the source of the name.
    """

    name: str
    key: str
    grants: Grants
    expires_ms: int | None = None
    quota: Quota | None = field(default=None, compare=False)
    concurrent: int = field(default=0, compare=False)
    """How many requests it may have in progress; 0: any number."""

    def names(self, scopes: Iterable[str]) -> Names:
        """The pipelines for which it has one of the scopes."""
        found = NOTHING
        for scope in scopes:
            more = self.grants.get(scope)
            if more is not None:
                found = more if found is NOTHING else found.joined(more)
        return found


def merged(grants: Iterable[Grants]) -> Grants:
    """All that any of them grants."""
    found: dict[str, Names] = {}
    for one in grants:
        for scope, names in one.items():
            found[scope] = found[scope].joined(names) if scope in found else names
    return found
