"""`tailrace leases`: lists leases of a store or over HTTP, and changes them.

Without a verb it lists: a table for people; with `--json` one object a line for programs, the same
as from `GET /leases`. Held leases are changed only with `--force`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson

from tailrace.cli.lease_backends import Desk, Row, forget_node, node_lines, nodes, open_desk
from tailrace.cli.terminal import say, say_json
from tailrace.coordination.groups import GroupStart
from tailrace.coordination.partitions import Status
from tailrace.logstore.errors import InvalidInput
from tailrace_client.command import add_ca_file

# Leases for people: a table, and one of them in full.


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


_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(text: str) -> float:
    """`90`, `90s`, `5m`, `1h`, `7d` in seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 10m")
    return float(found[1]) * _UNITS[found[2]]


def configure(parser: argparse.ArgumentParser) -> None:
    """The flags of a list, and the verbs with theirs."""
    _where(parser, None)
    _filters(parser, None)
    verbs = parser.add_subparsers(
        dest="act", metavar="ACT", help="the action (default: list)", required=False
    )
    _filters(_verb(verbs, "list", "List leases."), argparse.SUPPRESS)
    _named(_verb(verbs, "show", "Show one lease, with its progress."))
    reset = _named(_verb(verbs, "reset", "Free a lease at once, from any state."))
    reset.add_argument("--forget", action="store_true", help="also discard its progress")
    _force(reset)
    _named(_verb(verbs, "reopen", "Reopen finished work; it restarts from its saved progress."))
    fail = _named(
        _verb(verbs, "fail", "Block a partition for all workers until it is reset or reopened.")
    )
    fail.add_argument("--reason", metavar="TEXT", required=True, help="the reason, shown in lists")
    _force(fail)
    purge = _verb(verbs, "purge", "Remove partitions that were completed long ago.")
    purge.add_argument("source", metavar="SOURCE", help="name of the source, as shown in the list")
    purge.add_argument(
        "--before",
        metavar="TIME",
        type=seconds,
        required=True,
        help="completed at least this long ago, such as 7d",
    )
    _verb(verbs, "groups", "List consumer groups of the segment queue.")
    shown = _verb(
        verbs, "show-group", "Show a consumer group, with its leases and failed segments."
    )
    shown.add_argument("group", metavar="GROUP", help="its name")
    retry = _verb(verbs, "retry-group", "Retry failed segments of a consumer group.")
    retry.add_argument("group", metavar="GROUP", help="its name")
    retry.add_argument(
        "segment", metavar="SEGMENT", nargs="?", help="only this segment (default: all)"
    )
    again = _verb(
        verbs, "reset-group", "Restart a consumer group at another position; its leases are lost."
    )
    again.add_argument("group", metavar="GROUP", help="its name")
    again.add_argument(
        "--to",
        choices=[start.value for start in GroupStart],
        required=True,
        help="start at the oldest segment that is kept, or with new segments only",
    )
    forget = _verb(
        verbs, "forget-group", "Remove a consumer group; segments are no longer kept for it."
    )
    forget.add_argument("group", metavar="GROUP", help="its name")
    _verb(verbs, "nodes", "List the nodes in the register, and nodes that were let go.")
    let_go = _verb(
        verbs,
        "forget-node",
        "Let go a node that will not return: other nodes stop asking it and waiting for it. "
        "Lines that may be lost are recorded; `nodes` shows them.",
    )
    let_go.add_argument("node", metavar="NODE", help="name of the node, as `nodes` shows it")


def _verb(verbs: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=text, description=text, allow_abbrev=False
    )
    _where(parser, argparse.SUPPRESS)  # else its default would undo a flag before the verb
    return parser


def _where(parser: argparse.ArgumentParser, default: Any) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--data", metavar="DIR", default=default, help="data folder (default: ./data)"
    )
    where.add_argument(
        "--config", metavar="FILE", default=default, help="settings file (default: ./tailrace.yaml)"
    )
    where.add_argument(
        "--url", metavar="U", default=default, help="address of a service to ask instead"
    )
    add_ca_file(parser, default)
    parser.add_argument(
        "--json",
        action="store_true",
        default=default or False,
        help="print complete records, one JSON object per line",
    )


def _filters(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument("--source", metavar="S", default=default, help="only leases of this source")
    parser.add_argument(
        "--status",
        metavar="S",
        default=default,
        type=str.upper,
        choices=[status.value for status in Status],
        help=f"only in this status: {', '.join(status.value for status in Status)}",
    )
    parser.add_argument(
        "--owner",
        metavar="O",
        default=default,
        help="only leases of this owner, or of its identity",
    )
    parser.add_argument("--key", metavar="K", default=default, help="only keys with this prefix")
    parser.add_argument(
        "--older-than",
        metavar="TIME",
        type=seconds,
        default=default,
        help="only leases of at least this age, such as 10m",
    )


def _named(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("source", metavar="SOURCE", help="its source, as shown in the list")
    parser.add_argument("key", metavar="KEY", help="its key, as shown in the list")
    return parser


def _force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="free it even while an owner holds it")


def run(arguments: argparse.Namespace) -> int:
    """Does it. Raises what the store or the service answers."""
    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    if arguments.act in ("nodes", "forget-node"):
        await _nodes(arguments)
        return 0
    where = {name: getattr(arguments, name) for name in ("data", "config", "url", "ca_file")}
    async with open_desk(**where) as desk:
        act = arguments.act or "list"
        if act == "list":
            await _list(desk, arguments)
        elif act == "purge":
            gone = await desk.purge(arguments.source, arguments.before)
            _say({"purged": gone}, f"{gone} removed", as_json=arguments.json)
        elif act == "groups":
            _rows(await desk.groups(), group_table, as_json=arguments.json)
        elif act == "show-group":
            row = await desk.group(arguments.group)
            _say(row, group_details(row), as_json=arguments.json)
        elif act == "retry-group":
            free = await desk.retry_group(arguments.group, arguments.segment)
            _say({"retried": free}, f"{len(free)} free again", as_json=arguments.json)
        elif act == "reset-group":
            row = await desk.reset_group(arguments.group, arguments.to)
            _say(row, group_table([row]), as_json=arguments.json)
        elif act == "forget-group":
            await desk.forget_group(arguments.group)
            _say({"forgotten": arguments.group}, "forgotten", as_json=arguments.json)
        else:
            row = await _act(desk, act, arguments)
            _say(row, details(row), as_json=arguments.json)
    return 0


async def _nodes(arguments: argparse.Namespace) -> None:
    if arguments.url is not None:
        raise InvalidInput(
            "the register of nodes is in the store, and not available over HTTP",
            hint="Name the data folder (--data) or the settings (--config) of a service on that "
            "store.",
        )
    where = {"data": arguments.data, "config": arguments.config}
    if arguments.act == "nodes":
        _rows(await nodes(**where), node_lines, as_json=arguments.json)
    else:
        row = await forget_node(arguments.node, **where)
        _say(row, node_lines([row]), as_json=arguments.json)


async def _act(desk: Desk, act: str, arguments: argparse.Namespace) -> Row:
    if act == "show":
        return await desk.show(arguments.source, arguments.key)
    asked = {name: getattr(arguments, name, None) for name in ("forget", "force", "reason")}
    options = {name: value for name, value in asked.items() if value}
    return await desk.act(act, arguments.source, arguments.key, options)


async def _list(desk: Desk, arguments: argparse.Namespace) -> None:
    filters = {
        "source": arguments.source,
        "status": arguments.status,
        "owner": arguments.owner,
        "prefix": arguments.key,
        "older_than_seconds": arguments.older_than,
    }
    given = {name: value for name, value in filters.items() if value is not None}
    first, after = True, None
    while True:
        rows, after = await desk.page(given, after)
        if rows or (first and after is None):
            _rows(rows, partial(table, heading=first), as_json=arguments.json)
            first = False
        if after is None:
            return


def _rows(rows: Sequence[Row], shown: Callable[[Sequence[Row]], str], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            say_json(orjson.dumps(row).decode())
    else:
        say(shown(rows))


def _say(row: Row, text: str, *, as_json: bool) -> None:
    if as_json:
        say_json(orjson.dumps(row).decode())
    else:
        say(text)
