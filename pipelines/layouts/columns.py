"""Layouts without a pattern: the message itself, JSON and logfmt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.definition.section import Section
from pipelines.events import ORDER, REASON

_PLAIN: Final = re.compile(r"[!#-<>-\[\]-~\x80-\U0010ffff]+")
"""A value of logfmt that needs no quotes: no space, quote, equals sign, backslash, control."""
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MICROSECONDS: Final = 1_000_000


class Raw(Section):
    """The message as it was written."""

    type: Literal["raw"] = "raw"

    def lines(self, events: pa.Table) -> pa.Array:
        """A line for each event, with its newline, as an array of text."""
        message = events.column("message").combine_chunks().cast(pa.large_string())
        newline, nothing = (pa.scalar(text, pa.large_string()) for text in ("\n", ""))
        return pc.binary_join_element_wise(message, newline, nothing)


class Json(Section):
    """An object a line; what an event lacks is left out."""

    type: Literal["json"] = "json"

    def lines(self, events: pa.Table) -> pa.Array:
        """As `Raw.lines`."""
        found = [orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in _each(events)]
        return pa.array(found, pa.large_binary()).cast(pa.large_string())


class Logfmt(Section):
    """`ts=… level=… fqn=… run=… msg="…"` and the attributes."""

    type: Literal["logfmt"] = "logfmt"

    def lines(self, events: pa.Table) -> pa.Array:
        """As `Raw.lines`."""
        return pa.array([_logfmt(record) for record in _each(events)], pa.large_string())


def _each(events: pa.Table) -> Iterator[dict[str, Any]]:
    names = ("ulid", "fqn", "run_id", "level", "connector_id", "message", "attributes")
    columns = [events.column(name).to_pylist() for name in names]
    columns += [orders_of(events), _texts(events, REASON)]
    stamps = events.column("ts").cast(pa.int64()).to_pylist()
    for stamp, (ulid, fqn, run, level, connector, message, attributes, order, reason) in zip(
        stamps, zip(*columns, strict=True), strict=True
    ):
        record = {"ulid": ulid, "ts": moment_text(stamp), "fqn": fqn, "run": run}
        if level is not None:
            record["level"] = level
        if connector is not None:
            record["connector"] = connector
        if order is not None:
            record["order"] = order
        record["message"] = message
        if attributes:
            record["attributes"] = dict(attributes)
        if reason is not None:
            record["reason"] = reason
        yield record


def orders_of(events: pa.Table) -> list[str | None]:
    """`late`, `forced` or `redelivered` for each event that is out of order."""
    return _texts(events, ORDER)


def _texts(events: pa.Table, name: str) -> list[str | None]:
    """A column that is there only where it is needed."""
    if name not in events.column_names:
        return [None] * events.num_rows
    found: list[str | None] = events.column(name).to_pylist()
    return found


def moment_text(microseconds: int) -> str:
    """RFC 3339 in UTC with six digits behind the second."""
    whole, part = divmod(microseconds, _MICROSECONDS)
    moment = datetime.fromtimestamp(whole, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{part:06d}Z"


def _logfmt(record: Mapping[str, Any]) -> str:
    named = {name: value for name, value in record.items() if name not in ("attributes", "message")}
    pairs = {**named, "msg": record["message"], **record.get("attributes", {})}
    return " ".join([f"{_name(name)}={_value(value)}" for name, value in pairs.items()]) + "\n"


def _name(name: str) -> str:
    return re.sub(r'[\s="\\]', "_", name) or "_"


def _value(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    escaped = "".join([_ESCAPES.get(one) or _control(one) for one in value])
    return f'"{escaped}"'


def _control(character: str) -> str:
    return character if character.isprintable() else f"\\u{ord(character):04x}"
