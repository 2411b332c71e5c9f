"""Operators that parse entries: those of OpenTelemetry that the forwarder has, with their keys.

An operator it does not have is refused by name. Operators run one after the other as they are
listed, so `output` is not needed; `id` is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Discriminator, Tag, model_validator

from forwarder.config.values import Duration, Regex, Section, Size, key
from forwarder.entries.operators.expression import parse_expression
from forwarder.entries.operators.fields import parse_field
from forwarder.entries.operators.severity import level_mapping
from forwarder.entries.operators.times import time_parser

SUPPORTED = (
    "container",
    "json_parser",
    "move",
    "recombine",
    "regex_parser",
    "severity_parser",
    "time_parser",
)


def _field(value: str) -> str:
    parse_field(value)
    return value


def _expression(value: str) -> str:
    parse_expression(value)
    return value


Place = Annotated[str, AfterValidator(_field)]
Expression = Annotated[str, AfterValidator(_expression)]
OnError = Literal["send", "send_quiet", "drop", "drop_quiet"]


class Timestamp(Section):
    """The time of an entry, in a field."""

    parse_from: Place = key(..., "the field that has it")
    layout_type: Literal["strptime", "gotime", "epoch"] = key("strptime", "how `layout` is written")
    layout: str = key(
        ...,
        "such as `%Y-%m-%d %H:%M:%S`; of epochs `s`, `ms`, `us`, `ns`, `s.ms`, `s.us`, `s.ns`",
        otel="one without a year is refused",
    )
    location: str = key("Local", "the time zone of times that name none")
    time_zone_locations: Mapping[str, str] = key({}, "what abbreviations of time zones stand for")

    @model_validator(mode="after")
    def _readable(self) -> Self:
        time_parser(self.layout_type, self.layout, self.location, self.time_zone_locations)
        return self


class Severity(Section):
    """The level of an entry, in a field."""

    parse_from: Place = key(..., "the field that has it")
    preset: Literal["default", "none", "otel", "aliases"] = key("default", "values that are known")
    mapping: Mapping[str, Any] = key({}, "further values of each severity")
    overwrite_text: bool = key(
        False, "accepted", otel="the level is always the severity's name, such as ERROR"
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        level_mapping(self.preset, self.mapping)
        return self


class _Operator(Section):
    id: str = key("", "accepted; operators run in their order")
    on_error: OnError = key("send", "an entry that cannot be parsed is sent as it is, or dropped")
    if_: Expression | None = key(None, "entries of which this is not true pass by", alias="if")


class _Parser(_Operator):
    parse_from: Place = key("body", "the field that is parsed")
    parse_to: Place = key("attributes", "where the result is put")
    timestamp: Timestamp | None = key(None, "takes the time from a field")
    severity: Severity | None = key(None, "takes the level from a field")


class Container(_Operator):
    """Lines of containers as Docker, CRI-O and containerd write them."""

    type: Literal["container"]
    format: Literal["", "docker", "crio", "containerd"] = key("", "empty: each line by its form")
    add_metadata_from_filepath: bool = key(
        True, "`k8s.…` attributes from the path", otel="does not need `include_file_path`"
    )
    max_log_size: Size = key(
        1 << 20,
        "bytes of a line that is joined from its parts",
        otel="those of Docker's too, and those of each stream apart",
    )
    parse_from: Literal["body"] = key("body", "the line")
    parse_to: Literal["attributes"] = key(
        "attributes", "the stream", otel="`time` and `logtag` are not kept"
    )
    severity: Severity | None = key(None, "takes the level from a field")


class JsonParser(_Parser):
    """Fields of an object of JSON."""

    type: Literal["json_parser"]


class Move(_Operator):
    """Takes a field from one place to another."""

    type: Literal["move"]
    from_: Place = key(..., "the field that is moved", alias="from")
    to: Place = key(..., "where it is put; `body` is the message")


class RegexParser(_Parser):
    """The named groups of a regular expression."""

    type: Literal["regex_parser"]
    regex: Regex = key(..., "its named groups are the fields")

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not self.regex.groupindex:
            raise ValueError("regex has no named group, (?P<name>…)")
        return self


class Recombine(_Operator):
    """Joins entries that follow one another."""

    type: Literal["recombine"]
    is_first_entry: Expression | None = key(None, "true of the first of those to join")
    is_last_entry: Expression | None = key(None, "true of the last of those to join")
    combine_field: Place = key(..., "the field whose texts are joined")
    combine_with: str = key("\n", "what is put between them")
    max_batch_size: int = key(1000, "entries that are joined at most; 0: no limit", ge=0)
    max_unmatched_batch_size: int = key(100, "the same before the first match; 0: no limit", ge=0)
    overwrite_with: Literal["newest", "oldest"] = key("newest", "whose other fields are kept")
    source_identifier: Place = key(
        'attributes["log.file.path"]', "entries are joined apart by its value"
    )
    max_sources: int = key(
        1000,
        "values by which entries of a file are joined apart at once; one more: all go out",
        ge=1,
    )
    max_log_size: Size = key(0, "bytes that are joined at most; 0: as the source has it")
    force_flush_period: Duration = key(5.0, "accepted: the source's own counts")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.is_first_entry is None) == (self.is_last_entry is None):
            raise ValueError("needs exactly one of is_first_entry and is_last_entry")
        return self


class SeverityParser(Severity, _Operator):
    """The level of an entry, in a field."""

    type: Literal["severity_parser"]


class TimeParser(Timestamp, _Operator):
    """The time of an entry, in a field."""

    type: Literal["time_parser"]


def _supported(value: object) -> object:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    if kind not in SUPPORTED:
        raise ValueError(
            f"operator {kind!r} is none that the forwarder has; it has {', '.join(SUPPORTED)}"
            if kind
            else f"an operator has a type: {', '.join(SUPPORTED)}"
        )
    return value


def _kind(value: Any) -> str:
    return str(value["type"] if isinstance(value, Mapping) else value.type)


_Any: TypeAlias = Annotated[
    Annotated[Container, Tag("container")]
    | Annotated[JsonParser, Tag("json_parser")]
    | Annotated[Move, Tag("move")]
    | Annotated[Recombine, Tag("recombine")]
    | Annotated[RegexParser, Tag("regex_parser")]
    | Annotated[SeverityParser, Tag("severity_parser")]
    | Annotated[TimeParser, Tag("time_parser")],
    Discriminator(_kind),
]
Operator = Annotated[_Any, BeforeValidator(_supported)]
CLASSES: tuple[type[Section], ...] = (
    Container,
    JsonParser,
    Move,
    RegexParser,
    Recombine,
    SeverityParser,
    TimeParser,
)
