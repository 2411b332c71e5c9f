"""The forwarder's configuration: sources (receivers), their operators, and the targets.

A source is OpenTelemetry's receiver `file_log`, with its keys and defaults. Keys that OpenTelemetry
does not have are last in each section. If a default or a meaning differs, the `otel` of the key
says how; the reference page is generated from these classes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Tag,
    field_validator,
    model_validator,
)

from tailrace.forwarder.config.values import ConfigSection, Duration, Regex, Size, Text, Texts, key
from tailrace.forwarder.entries.splitting import Codec
from tailrace.forwarder.operators.expression import level_mapping, parse_expression, parse_field
from tailrace.forwarder.operators.times import time_parser

# Operators that parse entries: those of OpenTelemetry that the forwarder has, with their keys.
#
# An unsupported operator is refused by name. Operators run one after the other as they are listed,
# so `output` is not needed; `id` is accepted.


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


class Timestamp(ConfigSection):
    """The time of an entry, in a field."""

    parse_from: Place = key(..., "field that contains it")
    layout_type: Literal["strptime", "gotime", "epoch"] = key("strptime", "syntax of `layout`")
    layout: str = key(
        ...,
        "such as `%Y-%m-%d %H:%M:%S`; for `epoch`: `s`, `ms`, `us`, `ns`, `s.ms`, `s.us`, `s.ns`",
        otel="a layout without a year is refused",
    )
    location: str = key("Local", "time zone of times that have none")
    time_zone_locations: Mapping[str, str] = key({}, "meaning of abbreviated time zones")

    @model_validator(mode="after")
    def _readable(self) -> Self:
        time_parser(self.layout_type, self.layout, self.location, self.time_zone_locations)
        return self


class Severity(ConfigSection):
    """The level of an entry, in a field."""

    parse_from: Place = key(..., "field that contains it")
    preset: Literal["default", "none", "otel", "aliases"] = key("default", "values to recognise")
    mapping: Mapping[str, Any] = key({}, "additional values for each severity")
    overwrite_text: bool = key(
        False,
        "accepted without effect",
        otel="the level is always the severity's name, such as ERROR",
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        level_mapping(self.preset, self.mapping)
        return self


class _Operator(ConfigSection):
    id: str = key("", "accepted without effect: operators run in the order of the list")
    on_error: OnError = key("send", "send an entry that cannot be parsed unchanged, or drop it")
    if_: Expression | None = key(None, "skip entries for which this is false", alias="if")


class _OperatorParser(_Operator):
    parse_from: Place = key("body", "field to parse")
    parse_to: Place = key("attributes", "field for the result")
    timestamp: Timestamp | None = key(None, "reads the time from a field")
    severity: Severity | None = key(None, "reads the level from a field")


class Container(_Operator):
    """Lines of containers as Docker, CRI-O and containerd write them."""

    type: Literal["container"]
    format: Literal["", "docker", "crio", "containerd"] = key("", "empty: detected for each line")
    add_metadata_from_filepath: bool = key(
        True, "`k8s.…` attributes from the path", otel="does not need `include_file_path`"
    )
    max_log_size: Size = key(
        1 << 20,
        "maximum size of a line that is joined from its parts",
        otel="also for Docker, and for each stream separately",
    )
    parse_from: Literal["body"] = key("body", "field with the line")
    parse_to: Literal["attributes"] = key(
        "attributes", "field for the name of the stream", otel="`time` and `logtag` are not kept"
    )
    severity: Severity | None = key(None, "reads the level from a field")


class JsonParser(_OperatorParser):
    """Fields of an object of JSON."""

    type: Literal["json_parser"]


class Move(_Operator):
    """Takes a field from one place to another."""

    type: Literal["move"]
    from_: Place = key(..., "field to move", alias="from")
    to: Place = key(..., "its new place; `body` is the message")


class RegexParser(_OperatorParser):
    """The named groups of a regular expression."""

    type: Literal["regex_parser"]
    regex: Regex = key(..., "its named groups become fields")

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not self.regex.groupindex:
            raise ValueError("regex has no named group, (?P<name>…)")
        return self


class Recombine(_Operator):
    """Joins entries that follow one another."""

    type: Literal["recombine"]
    is_first_entry: Expression | None = key(None, "true for the first entry of a group")
    is_last_entry: Expression | None = key(None, "true for the last entry of a group")
    combine_field: Place = key(..., "field whose texts are joined")
    combine_with: str = key("\n", "separator between the texts")
    max_batch_size: int = key(1000, "maximum number of entries in a group; 0: no limit", ge=0)
    max_unmatched_batch_size: int = key(100, "the same before the first match; 0: no limit", ge=0)
    overwrite_with: Literal["newest", "oldest"] = key("newest", "entry that keeps its other fields")
    source_identifier: Place = key(
        'attributes["log.file.path"]', "field whose values separate the groups"
    )
    max_sources: int = key(
        1000,
        "maximum number of values with an unfinished group in a file; beyond it all are sent",
        ge=1,
    )
    max_log_size: Size = key(0, "maximum size of a group; 0: that of the source")
    force_flush_period: Duration = key(5.0, "accepted without effect: the source's value applies")

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
            f"the operator {kind!r} is not supported; use one of {', '.join(SUPPORTED)}"
            if kind
            else f"an operator needs a type: {', '.join(SUPPORTED)}"
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
CLASSES: tuple[type[ConfigSection], ...] = (
    Container,
    JsonParser,
    Move,
    RegexParser,
    Recombine,
    SeverityParser,
    TimeParser,
)


SortType = Literal["numeric", "alphabetical", "timestamp", "mtime"]
_FLAG = "(?P<"


class SortBy(ConfigSection):
    """One criterion of `ordering_criteria`; of several the last one counts most."""

    sort_type: SortType = key(..., "`numeric`, `alphabetical`, `timestamp` or `mtime`")
    regex_key: str = key("", "named group of `regex` to sort by; not for `mtime`")
    ascending: bool = key(False, "sort the smallest first")
    layout: str = key("", "for `timestamp`: its format in strptime's syntax, such as `%Y-%m-%d`")
    location: str = key("UTC", "for `timestamp`: its time zone, such as Europe/Berlin")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.sort_type != "mtime" and not self.regex_key:
            raise ValueError(f"sort_type {self.sort_type} needs a regex_key")
        if self.sort_type == "timestamp" and not self.layout:
            raise ValueError("sort_type timestamp needs a layout, such as %Y%m%d")
        return self


class OrderingCriteria(ConfigSection):
    """The matching files that are read, selected by their paths."""

    regex: Regex | None = key(None, "applied to the path; has the named groups to sort by")
    group_by: Regex | None = key(
        None, "applied to the path; files with the same first group are sorted together"
    )
    top_n: int = key(1, "number of files of each group that are read; 0: all", ge=0)
    sort_by: tuple[SortBy, ...] = key((), "the criteria; the last one counts most")

    @model_validator(mode="after")
    def _named(self) -> Self:
        for by in self.sort_by:
            if by.sort_type == "mtime":
                continue
            if self.regex is None:
                raise ValueError("sort_by needs a regex with the named groups to sort by")
            if by.regex_key not in self.regex.groupindex:
                raise ValueError(f"regex has no group {_FLAG}{by.regex_key}>…)")
        return self


class Multiline(ConfigSection):
    """How lines are joined to entries: exactly one of the patterns, or a built-in."""

    line_start_pattern: Regex | None = key(None, "an entry begins at a match of this")
    line_end_pattern: Regex | None = key(None, "an entry ends after a match of this")
    omit_pattern: bool = key(
        False, "remove the text that `line_start_pattern` or `line_end_pattern` matched"
    )
    continuation_pattern: Regex | None = key(
        None, "a line that begins with a match of this continues the entry before it"
    )
    builtin: tuple[Literal["python", "java", "go"], ...] = key(
        (), "tracebacks and panics of these languages are one entry each"
    )
    max_lines: int = key(1000, "maximum number of lines of an entry; 0: no limit", ge=0)

    @field_validator("builtin", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one(self) -> Self:
        patterns = (self.line_start_pattern, self.line_end_pattern, self.continuation_pattern)
        if sum(one is not None for one in patterns) + bool(self.builtin) != 1:
            raise ValueError(
                "needs exactly one of line_start_pattern, line_end_pattern, continuation_pattern "
                "and builtin"
            )
        if self.omit_pattern and (self.builtin or self.continuation_pattern is not None):
            raise ValueError("omit_pattern is for line_start_pattern and line_end_pattern")
        return self


class Header(ConfigSection):
    """Lines at the beginning of each file that describe it: attributes of all its records."""

    pattern: Regex = key(..., "the header ends before the first line that does not match")
    metadata_operators: tuple[Operator, ...] = key(
        ..., "operators that read attributes from lines of the header"
    )


class FileSource(ConfigSection):
    """One set of files, and how they are read."""

    name: str = "file_log"

    include: Texts = key(..., "paths to read, with `*`, `**`, `?`, `[a-z]`, `{a,b}`")
    exclude: Texts = key((), "paths of `include` to leave out")
    within: Texts = key(
        (), "folders in which a file must lie after all symbolic links of its path; empty: anywhere"
    )
    exclude_older_than: Duration = key(0.0, "leave out files last changed longer ago; 0: none")
    start_at: Literal["beginning", "end"] = key(
        "end", "where to begin in files that exist at the first start; in later ones: beginning"
    )
    poll_interval: Duration = key(
        0.2, "how often to look for files and new bytes", otel="used only where `hints` fail"
    )
    max_concurrent_files: int = key(
        1024,
        "maximum number of open files",
        ge=2,
        otel="all of them are read, not half; every file gets its turn",
    )
    max_batches: int = key(
        0, "accepted without effect", ge=0, otel="a round is bounded by bytes and time"
    )
    ordering_criteria: OrderingCriteria | None = key(None, "read only the first files of an order")
    archive_include: Texts = key(
        (),
        "rotated files outside of `include`: unknown ones are read, oldest first, and a file that"
        " moved there is recognised",
    )
    hints: bool = key(
        True, "use notifications of the kernel (Linux); false: look every `poll_interval`"
    )
    reconcile_interval: Duration = key(5.0, "how often to look for files without a notification")
    order: Literal["fair", "oldest"] = key(
        "fair", "which file is read next: each in turn, or the one with the oldest unread byte"
    )
    duplicates: Literal["once", "each"] = key(
        "once",
        "read files with the same content once, or each of them, if the name of one marks it as a"
        " rotation of the other",
    )

    encoding: str = key(
        "utf-8",
        "`utf-8`, `utf-8-raw`, `nop`, `utf-16le`, `utf-16be`, `ascii`, `big5`, others of Python",
        otel="bytes that are not UTF-8 are stored as U+FFFD, also with `utf-8-raw` and `nop`",
    )
    fingerprint_size: Size = key(
        1000,
        "number of first bytes that identify a file",
        ge=16,
        otel="the bytes before the offset count too; of compressed files, the content counts",
    )
    initial_buffer_size: Size = key(
        16 << 10, "accepted without effect", ge=1, otel="files are read in blocks of 1 MiB"
    )
    max_log_size: Size = key(1 << 20, "maximum size of an entry", ge=1, le=2 << 20)
    max_log_size_behavior: Literal["split", "truncate"] = key(
        "split",
        "split a longer entry into several records, or keep only its first part",
        otel="pieces have the attribute `log.record.part`, cut ones `log.record.truncated`",
    )
    force_flush_period: Duration = key(
        0.5,
        "an entry that may continue is sent after this time without new bytes; 0: never",
        otel="an unfinished last line waits for `unfinished_wait`, if that is longer",
    )
    unfinished_wait: Duration = key(
        300.0,
        "how long an unfinished last line waits for its next change, before it is sent as it is;"
        " live views show it meanwhile. 0: it is not shown, and waits for `force_flush_period`",
    )
    overwritten: Literal["last", "all"] = key(
        "last",
        "what is sent of a line with carriage returns, such as a progress bar: its last state, or"
        " all of it",
    )
    multiline: Multiline | None = key(None, "how lines are joined into entries")
    preserve_leading_whitespaces: bool = key(False, "keep white space before an entry")
    preserve_trailing_whitespaces: bool = key(False, "keep white space after an entry")
    compression: Literal["", "gzip", "zstd", "auto"] = key(
        "",
        "`gzip`, `zstd`, `auto` or empty: the first bytes of a file say how it is compressed. Only"
        " with `encoding: nop`, empty reads compressed files as they are",
        otel="empty reads none; `zstd` is new",
    )
    header: Header | None = key(
        None, "lines at the beginning of each file that describe it", otel="without a feature gate"
    )
    file_cache_advise: bool = key(False, "tell the kernel to drop read data from its cache")
    acquire_fs_lock: bool = key(False, "lock a file while it is read; leave locked files for later")

    include_file_name: bool = key(True, "attribute `log.file.name`")
    include_file_path: bool = key(False, "attribute `log.file.path`")
    include_file_name_resolved: bool = key(False, "attribute `log.file.name_resolved`")
    include_file_path_resolved: bool = key(False, "attribute `log.file.path_resolved`")
    include_file_owner_name: bool = key(False, "attribute `log.file.owner.name`")
    include_file_owner_group_name: bool = key(False, "attribute `log.file.owner.group.name`")
    include_file_permissions: bool = key(False, "attribute `log.file.permissions`, in octal")
    include_file_record_number: bool = key(
        False, "attribute `log.file.record_number`, from 1", otel="text, as all attributes"
    )
    include_file_record_offset: bool = key(False, "attribute `log.file.record_offset`, in bytes")
    attributes: Mapping[str, Text] = key({}, "attributes of every record")
    resource: Mapping[str, Text] = key(
        {}, "attributes of every record", otel="stored as attributes: a record has no resource"
    )
    operators: tuple[Operator, ...] = key(
        (), "parsers of entries, applied in order", otel="those below; any other is refused"
    )

    on_truncate: Literal["content", "read_whole_file"] = key(
        "content",
        "accepted without effect: a file whose content is not the part that was read is read from "
        "its beginning",
        otel="default `ignore`; `ignore` and `read_new` are refused, because they lose lines",
    )
    delete_after_read: bool = key(
        False,
        "delete a file that was read to its end",
        otel="when all of it is acknowledged; without a feature gate",
    )
    polls_to_archive: int = key(
        0, "accepted without effect", ge=0, otel="`forget_after` says how long files are known"
    )
    forget_after: Duration = key(604_800.0, "how long a file that is gone is remembered")
    rotate_wait: Duration = key(5.0, "how long a rotated file is watched after its last new byte")
    close_after: Duration = key(
        0.0, "close the run of a file after this time without new bytes; 0: never"
    )

    report_runs: bool = key(
        True,
        "report a run when its file appears, and while the file is followed: the run is lost if the"
        " forwarder dies",
    )

    template: Literal["", "pods", "kubernetes", "airflow"] = key(
        "",
        "built-in `fqn` and `run`: `pods` for Kubernetes by paths, `kubernetes` by labels of pods,"
        " `airflow` for tasks of Airflow",
    )
    path_pattern: Regex | None = key(
        None, "applied to the whole path; `fqn` and `run` may use its named groups"
    )
    fqn: str = key(
        "", "the pipeline; may contain `{group}`, `{name}`, `{stem}`, `{-2}` and other places"
    )
    run: str = key("", "the run; empty: `{id}`, one for each generation of the file")

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if not self.include:
            raise ValueError("include must name at least one path")
        if self.delete_after_read and self.start_at == "end":
            raise ValueError("delete_after_read needs start_at: beginning")
        if self.header is not None and self.start_at == "end":
            raise ValueError("header needs start_at: beginning")
        if self.encoding.lower() == "nop" and (self.multiline is not None or self.operators):
            raise ValueError("encoding nop has no lines: leave out multiline and operators")
        if self.template and (self.fqn or self.path_pattern is not None):
            raise ValueError("template sets fqn and run: leave out fqn and path_pattern")
        if not self.template and not self.fqn:
            raise ValueError("needs fqn, the pipeline that files belong to, or a template")
        return self

    @field_validator("on_truncate", mode="before")
    @classmethod
    def _loses_nothing(cls, value: object) -> object:
        if value in ("ignore", "read_new"):
            raise ValueError(
                "it would lose lines: leave it out, because the content decides where to read"
            )
        return value

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str) -> str:
        Codec(value)
        return value

    @field_validator("include", "exclude", "archive_include")
    @classmethod
    def _globs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for glob in value:
            if not glob or glob.count("{") != glob.count("}") or re.search(r"\[[^\]]*$", glob):
                raise ValueError(f"{glob!r} is not a pattern of paths")
        return value


# The whole configuration: the targets, the folder of the state, and the sources.


Durability = Literal["", "fast", "durable", "bulk"]
_ROOTS_STORAGE = "/var/lib/tailrace/forwarder"
_USERS_STORAGE = "~/.local/state/tailrace/forwarder"


class MetricsEndpoint(ConfigSection):
    """Where Prometheus finds the forwarder's metrics."""

    listen: str = key(
        "",
        "`host:port`, such as 127.0.0.1:8791, for /metrics, /health/live and /health/ready;"
        " empty: none",
    )


class RetryTimes(ConfigSection):
    """How long the forwarder waits before it sends a batch again. It never gives up."""

    enabled: Literal[True] = key(True, "cannot be switched off", otel="default false")
    initial_interval: Duration = key(1.0, "the first pause")
    max_interval: Duration = key(30.0, "the longest pause")
    max_elapsed_time: Duration = key(
        0.0, "0: never give up; nothing else is accepted", otel="default 5m, then the batch is lost"
    )

    @field_validator("max_elapsed_time")
    @classmethod
    def _for_ever(cls, value: float) -> float:
        if value:
            raise ValueError(
                "a batch is sent until it is acknowledged: leave it out, or set it to 0"
            )
        return value


class Forwarder(ConfigSection):
    """The configuration of `tailrace forward --config`."""

    targets: Texts = key(
        ..., "services that share one store: `host:port`, `https://host`, `srv+http://name`"
    )
    token: str = key("", "sent as `Authorization: Bearer` to the targets only")
    token_file: str = key("", "file with the token; read again when a target refuses the token")
    ca_file: str = key("", "file with the certificates (PEM) to trust for `https` targets")
    durability: Durability = key("", "what an acknowledgement means; empty: `durable`")
    body_encoding: Literal["", "gzip", "zstd"] = key(
        "", "compression of request bodies; it takes more CPU than all other work"
    )
    storage: str = key(
        "",
        f"folder of the checkpoints. `{_ROOTS_STORAGE}` for root, else `{_USERS_STORAGE}`",
        otel="always on; a folder instead of an extension, for one forwarder at a time",
    )
    metrics: MetricsEndpoint = key(MetricsEndpoint(), "where Prometheus reads metrics")
    shutdown_timeout: Duration = key(10.0, "how long a stop waits for acknowledgements")
    retry_on_failure: RetryTimes = key(RetryTimes(), "pauses between attempts")
    senders: int = key(4, "number of batches that are sent at the same time", ge=1, le=64)
    batch_bytes: Size = key(1 << 20, "approximate size of a batch's body", ge=1 << 10, le=4 << 20)
    memory_bytes: Size = key(
        16 << 20, "memory for batches that are prepared or being sent", ge=1 << 20
    )
    sources: tuple[FileSource, ...] = key(..., "what is read")

    @property
    def folder(self) -> str:
        """Where the checkpoints are: `storage`, or its default for this user."""
        return self.storage or default_storage()

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if not self.targets:
            raise ValueError("targets must name at least one service, such as 127.0.0.1:8790")
        if self.token and self.token_file:
            raise ValueError("give token or token_file, not both")
        return self


def default_storage() -> str:
    """The folder of the checkpoints for root, or below the home of another user."""
    return _ROOTS_STORAGE if os.geteuid() == 0 else os.path.expanduser(_USERS_STORAGE)
