"""A lease in the store: a piece of work, who does it, until when.

`coordination/leases/{source}/{partition…}`, a JSON object changed by compare-and-swap:

    source_identifier   what kind of work: `text` (the lines of a node into their runs),
                        `sweep` (closing a run that nobody closed)
    partition_key       which: a node; a pipeline and a run, encoded, with `/` between
    status              ASSIGNED | UNASSIGNED
    owner               `{node}/{ULID of the process}`, null when it is free
    epoch               rises with every owner, also over a removal of the object
    owner_timeout       until when it is the owner's, milliseconds of the store's clock
    created_at          when the object was made, milliseconds of the store's clock
    version             a fresh ULID in every write, so that no two versions have equal bytes

Keys that this version does not know survive a rewrite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from logstore import keys
from logstore.batch import RunKey
from logstore.checked import decode_checked, encode_checked
from logstore.errors import Damaged
from logstore.names import encode

TEXT = "text"
SWEEP = "sweep"

_NAMES = "source_identifier partition_key status owner epoch owner_timeout created_at version"
_KNOWN = frozenset(_NAMES.split(" "))


class LeaseName(NamedTuple):
    """The name of a lease: a kind of work, and the parts that identify one piece of it."""

    source: str
    parts: tuple[str, ...]

    @property
    def key(self) -> str:
        """The key of the lease's object."""
        return keys.lease(self.source, self.parts)

    @property
    def partition(self) -> str:
        """The parts as one text."""
        return "/".join([encode(part) for part in self.parts])


def text_lease(node: str) -> LeaseName:
    """The right to bring the segments of `node` into their runs."""
    return LeaseName(TEXT, (node,))


def sweep_lease(key: RunKey) -> LeaseName:
    """The right to close a run that nobody closed."""
    return LeaseName(SWEEP, key)


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One version of a lease. Times are milliseconds of the store's clock."""

    name: LeaseName
    owner: str | None = None
    epoch: int = 0
    until_ms: int = 0
    created_ms: int = 0
    version: str = ""
    others: Mapping[str, Any] = field(default_factory=dict)


def encode_lease(lease: LeaseRecord, *, partition: str | None = None) -> bytes:
    """The bytes of a lease; `partition` is for a caller that knows only the key."""
    return encode_checked(
        {
            **lease.others,
            "source_identifier": lease.name.source,
            "partition_key": lease.name.partition if partition is None else partition,
            "status": "UNASSIGNED" if lease.owner is None else "ASSIGNED",
            "owner": lease.owner,
            "epoch": lease.epoch,
            "owner_timeout": lease.until_ms,
            "created_at": lease.created_ms,
            "version": lease.version,
        }
    )


def decode_lease(name: LeaseName, body: bytes) -> LeaseRecord:
    """The lease that `body` holds. Raises `Damaged`."""
    try:
        value = decode_checked(body)
        return LeaseRecord(
            name,
            owner=value["owner"],
            epoch=int(value["epoch"]),
            until_ms=int(value["owner_timeout"]),
            created_ms=int(value["created_at"]),
            version=value["version"],
            others={key: kept for key, kept in value.items() if key not in _KNOWN},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{name.key} is not a lease: {error}") from error
