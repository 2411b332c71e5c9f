"""Layouts: an event as bytes of a file. Each event ends with a newline.

json      an object a line: ulid, ts, fqn, run, level, connector, message, attributes logfmt
key=value pairs a line pattern   logback's conversion words raw       the message alone, as it was
written
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from functools import cached_property
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from tailrace.pipelines.events import ORDER, REASON
from tailrace.pipelines.section import Section, setting

# Layouts without a pattern: the message itself, JSON and logfmt.


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


# logback's patterns: `%d{HH:mm:ss.SSS} %-5level [%run] %msg%n`.
#
# The words that a record of ours can fill, in logback's spelling:
#
#   %d %date{format[, zone]}    time; the format is Java's (`yyyy-MM-dd HH:mm:ss,SSS`), or ISO8601
#   %p %le %level   %m %msg %message   %n
#   %c %lo %logger{n}           attribute `logger`, else the pipeline; shortened to n characters
#   %t %thread                  attribute `thread`
#   %X{name:-default} %mdc      an attribute; without a name, all as `a=b, c=d`
#   %fqn %run %connector %ulid  our own
#   %order                      `late` or `forced` of an event that is out of order
#
# A width may precede a word: `%-5level` pads at the right, `%20logger` at the left, `%.10msg` keeps
# the last 10 characters, `%.-10msg` the first 10. `%%` and `\%` are a percent sign.


Column: TypeAlias = Callable[[pa.Table], pa.Array]

_WORD: Final = re.compile(
    r"%(?:(?P<percent>%)|(?P<left>-?)(?P<least>[0-9]+)?(?:\.(?P<first>-?)(?P<most>[0-9]+))?"
    r"(?P<word>[A-Za-z]+)(?:\{(?P<option>[^}]*)\})?)|(?P<text>(?:\\.|[^%\\])+)|(?P<bad>.)",
    re.DOTALL,
)
_ALIASES: Final = {
    "date": "d", "level": "p", "le": "p", "msg": "m", "message": "m", "logger": "c", "lo": "c",
    "thread": "t", "mdc": "X",
}  # fmt: skip
_ISO: Final = "yyyy-MM-dd HH:mm:ss,SSS"
_JAVA: Final = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|.", re.DOTALL)
_STRFTIME: Final = {
    "yyyy": "%Y", "yy": "%y", "MM": "%m", "MMM": "%b", "MMMM": "%B", "dd": "%d", "HH": "%H",
    "hh": "%I", "mm": "%M", "ss": "%S", "a": "%p", "E": "%a", "EEE": "%a", "EEEE": "%A",
    "XXX": "%:z", "Z": "%z", "z": "%Z",
}  # fmt: skip
_MOST_WORDS: Final = 50
_MOST_PADDING: Final = 1000
"""Characters to which all words of a pattern together may be filled up; logback has no bound."""
_MOST_KEPT: Final = 1_000_000


class Pattern(Section):
    """A logback pattern; a newline is added if it does not end with one."""

    type: Literal["pattern"] = "pattern"
    pattern: str = setting("%d{ISO8601} %-5level [%fqn/%run] %msg%n", "logback's conversion words")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        compiled(value)
        return value

    @cached_property
    def _columns(self) -> Sequence[Column]:
        return compiled(self.pattern)

    def lines(self, events: pa.Table) -> pa.Array:
        """As `Raw.lines`."""
        pieces = [column(events) for column in self._columns]
        return pc.binary_join_element_wise(*pieces, _text(""))


def compiled(pattern: str) -> Sequence[Column]:
    """The columns that make a line. Raises `ValueError` that names the word."""
    found: list[Column] = []
    ends = False
    parts = list(_WORD.finditer(pattern))
    _check_widths(parts)
    for part in parts:
        if part["bad"]:
            raise ValueError(
                f"has {part['bad']!r} at character {part.start() + 1}, and no word there"
            )
        text = "%" if part["percent"] else part["text"]
        if text is not None:
            text = re.sub(r"\\(.)", lambda one: {"n": "\n", "t": "\t"}.get(one[1], one[1]), text)
            found.append(_literal(text))
        else:
            text = "\n" if part["word"] == "n" else ""
            found.append(_padded(part, _word(part["word"], part["option"])))
        ends = text.endswith("\n")
    return found if ends else [*found, _literal("\n")]


def _check_widths(parts: Sequence[re.Match[str]]) -> None:
    """Raises `ValueError` if a short event may become a line of any length."""
    if sum(part["word"] is not None for part in parts) > _MOST_WORDS:
        raise ValueError(f"has more than {_MOST_WORDS} words")
    if sum(_width(part["least"]) for part in parts) > _MOST_PADDING:
        raise ValueError(f"has widths of more than {_MOST_PADDING} characters in sum")
    if any(_width(part["most"]) > _MOST_KEPT for part in parts):
        raise ValueError(f"keeps more than {_MOST_KEPT} characters of a word")


def _width(digits: str | None) -> int:
    """A number of characters; what has 10 digits or more is as good as that with the first 10."""
    return int(digits[:10]) if digits else 0


def _text(value: str) -> pa.Scalar:
    return pa.scalar(value, pa.large_string())


def _literal(text: str) -> Column:
    return lambda events: pa.repeat(_text(text), events.num_rows)


def _word(name: str, option: str | None) -> Column:
    word = _ALIASES.get(name, name)
    simple = {
        "m": "message",
        "fqn": "fqn",
        "run": "run_id",
        "connector": "connector_id",
        "ulid": "ulid",
    }
    if word in simple:
        return _named(simple[word])
    if word == "order":
        return _order
    if word == "n":
        return _literal("\n")
    if word == "p":
        return _named("level")
    if word == "d":
        return _date(option)
    if word == "c":
        return _shortened(_attribute("logger", "fqn"), option)
    if word == "t":
        return _attribute("thread", None)
    if word == "X":
        return _context(option)
    raise ValueError(f"has the word %{name}, which no record of Tailrace can fill")


def _named(name: str) -> Column:
    def column(events: pa.Table) -> pa.Array:
        found = events.column(name).combine_chunks().cast(pa.large_string())
        return pc.fill_null(found, "")

    return column


def _order(events: pa.Table) -> pa.Array:
    if ORDER not in events.column_names:
        return pa.repeat(_text(""), events.num_rows)
    return _named(ORDER)(events)


def _attribute(name: str, otherwise: str | None, default: str = "") -> Column:
    def column(events: pa.Table) -> pa.Array:
        attributes = events.column("attributes").combine_chunks()
        found = pc.map_lookup(attributes, name, "last").cast(pa.large_string())
        if otherwise is None:
            return pc.fill_null(found, default)
        return pc.coalesce(found, _named(otherwise)(events))

    return column


def _context(option: str | None) -> Column:
    if option:
        name, _, default = option.partition(":-")
        return _attribute(name.strip(), None, default)

    def all_of_them(events: pa.Table) -> pa.Array:
        each = events.column("attributes").to_pylist()
        texts = [", ".join([f"{name}={value}" for name, value in one or ()]) for one in each]
        return pa.array(texts, pa.large_string())

    return all_of_them


def _shortened(column: Column, option: str | None) -> Column:
    if not option:
        return column
    if not option.isdigit():
        raise ValueError(f"has %logger{{{option}}}: the option is a number of characters")
    most = int(option)

    def shorter(events: pa.Table) -> pa.Array:
        names = column(events).to_pylist()
        known = {name: _abbreviated(name, most) for name in set(names)}
        return pa.array([known[name] for name in names], pa.large_string())

    return shorter


def _abbreviated(name: str, most: int) -> str:
    """As logback's `TargetLengthBasedClassNameAbbreviator`: parts become letters, from the left."""
    parts = name.split(".")
    if most == 0:
        return parts[-1]
    size = len(name)
    for index, part in enumerate(parts[:-1]):
        if size <= most:
            break
        parts[index] = part[:1]
        size -= max(len(part) - 1, 0)
    return ".".join(parts)


class _Time(NamedTuple):
    """strftime's texts between which the parts of a second stand: how many digits each."""

    formats: tuple[str, ...]
    digits: tuple[int, ...]


def _date(option: str | None) -> Column:
    form, zone = _form_and_zone((option or "ISO8601").strip())
    time = _java_time(_ISO if form in ("", "ISO8601") else form)

    def column(events: pa.Table) -> pa.Array:
        stamps = events.column("ts").cast(pa.int64()).to_pylist()
        seconds: dict[int, tuple[str, ...]] = {}
        texts = []
        for stamp in stamps:
            whole, part = divmod(stamp, 1_000_000)
            known = seconds.get(whole)
            if known is None:
                moment = datetime.fromtimestamp(whole, zone)
                known = seconds[whole] = tuple(_formatted(moment, one) for one in time.formats)
            fraction = f"{part:06d}000"
            texts.append(
                known[0]
                + "".join(
                    [fraction[:n] + rest for n, rest in zip(time.digits, known[1:], strict=True)]
                )
            )
        return pa.array(texts, pa.large_string())

    return column


def _formatted(moment: datetime, form: str) -> str:
    if "%:z" in form:  # Python 3.12 has it, 3.11 has not
        plain = f"{moment:%z}"
        offset = (
            "Z"
            if moment.utcoffset() is not None and not moment.utcoffset()
            else f"{plain[:3]}:{plain[3:]}"
        )
        form = form.replace("%:z", offset)
    return moment.strftime(form)


def _form_and_zone(option: str) -> tuple[str, tzinfo]:
    """A time format, in quotes if it has a comma as logback wants it, and a zone behind one."""
    quoted = re.fullmatch(r'"([^"]*)"(?:\s*,\s*(.*))?', option)
    if quoted is not None:
        return quoted[1], _zone(quoted[2] or "")
    form, comma, name = option.rpartition(",")
    if comma and not re.fullmatch(r"\s*S+", name):  # the parts of a second, as in ISO 8601
        return form.strip(), _zone(name.strip())
    return option, UTC


def _zone(name: str) -> tzinfo:
    if name in ("", "UTC", "GMT", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"has the time zone {name!r}, which is not known") from None


def _java_time(form: str) -> _Time:
    formats, digits = [""], []
    for found in _JAVA.finditer(form):
        token = found[0]
        if token.startswith("S"):
            if len(token) > 9:
                raise ValueError(f"has the time format {form!r}: at most nine digits of a second")
            digits.append(len(token))
            formats.append("")
        elif token in _STRFTIME:
            formats[-1] += _STRFTIME[token]
        elif token.startswith("'"):
            formats[-1] += (token[1:-1].replace("''", "'") or "'").replace("%", "%%")
        elif token[0].isalpha():
            raise ValueError(f"has the time format {form!r}, and {token!r} is not supported")
        else:
            formats[-1] += token.replace("%", "%%")
    return _Time(tuple(formats), tuple(digits))


def _padded(part: re.Match[str], column: Column) -> Column:
    least, most = part["least"], part["most"]
    if least is None and most is None:
        return column

    def fitted(events: pa.Table) -> pa.Array:
        found = column(events)
        if most is not None:
            first = bool(part["first"])
            found = (
                pc.utf8_slice_codeunits(found, 0, int(most))
                if first
                else pc.utf8_slice_codeunits(found, -int(most))
            )
        if least is not None:
            pad = pc.utf8_rpad if part["left"] else pc.utf8_lpad
            found = pad(found, width=int(least), padding=" ")
        return found

    return fitted


__all__ = ["Json", "Layout", "Logfmt", "Pattern", "Raw", "default_layout"]

Layout: TypeAlias = Annotated[Json | Logfmt | Pattern | Raw, Field(discriminator="type")]
"""One of them, by its `type`."""


def default_layout() -> Raw:
    """The layout where none is named."""
    return Raw()
