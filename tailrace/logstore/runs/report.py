"""Clients' reports about a run (status, progress, metrics), and the watermarks of nodes.

    coordination/status/{fqn}/{run}            the newest status, changed by compare-and-swap
    coordination/progress/{fqn}/{run}          the newest progress, the same
    coordination/metrics/{fqn}/{run}/{ULID}    a batch of metrics, written once
    coordination/text/{node}                   the watermark of a node

A report is a JSON object: `format` (1), `version` (a fresh ULID in every write, above the run's
deletion, since reports at or below a deletion do not exist), `fqn` and `run` in clear, `created_ms`
and `stored_ms` (times of the first and of this write), `closed` (true, else absent, in a status:
the run was closed after it, and had no lines), and `value`, the JSON object that the client sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson

from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cas import Document, swap
from tailrace.logstore.errors import Damaged, InvalidInput, UnsupportedVersion
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.state import decode_checked, encode_checked, with_check

FORMAT = 1


class Said(NamedTuple):
    """The fields of a status that the service acts on: `pipelineState`, `timestamp` or else
    `startDate`, `startDate`, `endDate`, and `heartbeat`. Times are milliseconds since the epoch.
    None for a field that is missing or invalid.
    """

    state: str | None
    moment_ms: int | None
    started_ms: int | None = None
    ended_ms: int | None = None
    heartbeat: bool = False
    """Whether the client reports again and again while it lives."""
    repeated: bool = False
    """Whether it says so or takes it back: the report has the field `heartbeat`."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """One report. `version` is a ULID; times are ms since the epoch, by the service's clock.

    `body` is the JSON object that the client sent, as text: parsed, it would take twenty times
    the memory.
    """

    key: RunKey
    version: int
    created_ms: int
    stored_ms: int
    body: bytes
    said: Said
    closed: bool = False
    """The run was closed behind it, and had no lines: no manifest says so."""

    @property
    def value(self) -> dict[str, Any]:
        """The body, parsed at each call."""
        value: dict[str, Any] = orjson.loads(self.body)
        return value


def make_report(
    key: RunKey, version: int, created_ms: int, stored_ms: int, value: Mapping[str, Any]
) -> RunReport:
    """The report of what a client sent."""
    return RunReport(key, version, created_ms, stored_ms, orjson.dumps(value), _said(value))


def encode_report(report: RunReport) -> bytes:
    """The bytes of a report."""
    head = orjson.dumps(
        {
            "format": FORMAT,
            "version": ulids.encode(report.version),
            "fqn": report.key.fqn,
            "run": report.key.run,
            "created_ms": report.created_ms,
            "stored_ms": report.stored_ms,
            **({"closed": True} if report.closed else {}),
        }
    )
    return with_check(b'%b,"value":%b}' % (head[:-1], report.body))


def decode_report(body: bytes) -> RunReport:
    """The report that `body` holds. Raises `Damaged`, `UnsupportedVersion`."""
    try:
        value = decode_checked(body)
        if value["format"] > FORMAT:
            raise UnsupportedVersion(f"a report of format {value['format']}")
        report = make_report(
            RunKey(value["fqn"], value["run"]),
            ulids.decode(value["version"]),
            int(value["created_ms"]),
            int(value["stored_ms"]),
            dict(value["value"]),
        )
        return replace(report, closed=True) if value.get("closed") else report
    except (ValueError, TypeError, KeyError, InvalidInput) as error:
        raise Damaged(f"not a report: {error}") from error


def _said(value: Mapping[str, Any]) -> Said:
    state = value.get("pipelineState")
    moment, started, ended = (
        time if type(time := value.get(name)) is int else None
        for name in ("timestamp", "startDate", "endDate")
    )
    return Said(
        state if isinstance(state, str) else None,
        started if moment is None else moment,
        started,
        ended,
        value.get("heartbeat") is True,
        isinstance(value.get("heartbeat"), bool),
    )


# Watermarks: up to which segment a node's lines are in their runs' chunks.
#
# `coordination/text/{node}`, a JSON object changed by compare-and-swap: `seq` (all segments up to
# it are in chunks, or left out as duplicate, deleted or expired), `pos` (one past the last line of
# those), `low` (the low watermark: the lowest segment that is kept), `version` (a fresh ULID).


@dataclass(frozen=True, slots=True)
class Watermark:
    """A node's watermark; all numbers are zero if none was stored yet."""

    seq: int = 0
    pos: int = 0
    low: int = 0
    version: str = ""


def decode_watermark(body: bytes) -> Watermark:
    """The watermark that `body` holds. Raises `Damaged`."""
    try:
        value = decode_checked(body)
        mark = Watermark(value["seq"], value["pos"], value["low"], value["version"])
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"not a watermark: {error}") from error
    numbers = (mark.seq, mark.pos, mark.low)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise Damaged(f"not a watermark: its numbers are {numbers}")
    return mark


async def read_watermark(store: ObjectStore, node: str) -> Watermark:
    """The node's watermark. Raises `Damaged`, `StoreUnavailable`."""
    found = await _document(store, node).read()
    return Watermark() if found is None else found.value


async def raise_watermark(
    store: ObjectStore,
    node: str,
    *,
    fresh_id: Callable[[], str],
    seq: int = 0,
    pos: int = 0,
    low: int = 0,
) -> Watermark:
    """Raises each number that is above the stored one; none ever falls.

    Raises `Damaged`, `StoreUnavailable`, `OutcomeUnknown`.
    """

    async def change(found: Watermark | None) -> Watermark | None:
        mark = found or Watermark()
        raised = replace(
            mark, seq=max(mark.seq, seq), pos=max(mark.pos, pos), low=max(mark.low, low)
        )
        return None if raised == mark else replace(raised, version=fresh_id())

    stored = await swap(_document(store, node), change)
    return Watermark() if stored is None else stored.value


def _document(store: ObjectStore, node: str) -> Document[Watermark]:
    return Document(store, keys.watermark(node), decode_watermark, encode_checked)
