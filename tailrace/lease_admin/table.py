"""Leases for people: a table, and one of them in full."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

_HEADS: Final = (
    *("SOURCE", "KEY", "STATUS", "OWNER", "EPOCH", "AGE", "UNTIL", "ATTEMPTS", "LAG", "ERROR"),
)
_GROUP_HEADS: Final = (
    *("GROUP", "STATE", "SEGMENTS", "BYTES", "LAG", "LEASED", "FAILED", "COMMITTED"),
    *("EVICTIONS", "EVICTED"),
)
_OPEN_HEADS: Final = ("SEGMENT", "STATE", "EPOCH", "ATTEMPTS", "UNTIL", "REASON")
_WIDEST: Final = 60
_NONE: Final = "-"


def table(rows: Sequence[Mapping[str, Any]], *, heading: bool) -> str:
    """Rows in columns; those of a later page have no heading, and may be of another width."""
    return _columns(_HEADS, [_cells(row) for row in rows], heading=heading)


def group_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Consumer groups in columns; an evicted one has no lag, and says why it lost its place."""
    return _columns(_GROUP_HEADS, [_group_cells(row) for row in rows], heading=True)


def group_details(row: Mapping[str, Any]) -> str:
    """A consumer group, and what is leased, waits to be tried again or has failed in it."""
    cells = [
        [
            one["id"],
            one["state"],
            str(one["epoch"]),
            str(one["attempts"]),
            one["lease_until"] or _NONE,
            _short(one["reason"] or _NONE),
        ]
        for one in row["open"]
    ]
    return f"{group_table([row])}\n\n{_columns(_OPEN_HEADS, cells, heading=True)}"


def details(row: Mapping[str, Any]) -> str:
    """Everything of one lease, a line each; its progress as it was saved, last."""
    lines = []
    for name, value in row.items():
        if name.endswith("_seconds"):
            shown = duration(value)
        elif name in ("until", "created_at", "available_at", "ended_at"):
            shown = _moment(value)
        elif name == "progress":
            continue
        else:
            shown = _NONE if value is None else _plain(value)
        lines.append(f"{name.removesuffix('_seconds'):<13} {shown}")
    progress = row.get("progress")
    return "\n".join([*lines, f"{'progress':<13} {_NONE if progress is None else progress}"])


def duration(seconds: float | None) -> str:
    """`950ms` is `1s`; two units at most: `3h12m`."""
    if seconds is None:
        return _NONE
    left = round(seconds)
    parts = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
        elif parts:
            break
    return "".join(parts[:2]) or "0s"


def _columns(heads: Sequence[str], cells: Sequence[Sequence[str]], *, heading: bool) -> str:
    lines = [heads, *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (lines if heading else cells)
    )


def _group_cells(row: Mapping[str, Any]) -> list[str]:
    lag, evicted = row["lag"], row["evicted"]
    return [
        _short(row["group"]),
        row["state"],
        _NONE if lag is None else str(lag["segments"]),
        _NONE if lag is None else str(lag["bytes"]),
        _NONE if lag is None else duration(lag["seconds"]),
        str(row["leased"]),
        str(row["failed"]),
        str(row["committed_segments"]),
        str(row["evictions"]),
        _NONE if evicted is None else _short(f"{evicted['at']}: {evicted['reason']}"),
    ]


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        _short(row["source"]),
        _short(row["key"]),
        row["status"],
        _short(_owner(row)),
        str(row["epoch"]),
        duration(row["age_seconds"]),
        _moment(row["until"]),
        str(row["attempts"]),
        duration(row["lag_seconds"]),
        _short(row["last_error"] or _NONE),
    ]


def _owner(row: Mapping[str, Any]) -> str:
    """An owner whose time is over is shown, and that it is over."""
    owner = row["owner"]
    if owner is None:
        return _NONE
    return str(owner) if row["held"] or row["status"] != "ASSIGNED" else f"({owner})"


def _moment(ms: int | None) -> str:
    if ms is None:
        return _NONE
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))


def _short(text: object) -> str:
    shown = _plain(text)
    return shown if len(shown) <= _WIDEST else f"{shown[: _WIDEST - 1]}…"


def _plain(value: object) -> str:
    """Text without what would move the terminal's cursor."""
    text = str(value)
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)[1:-1]
