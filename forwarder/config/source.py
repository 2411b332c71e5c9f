"""What is read, and how: one receiver of OpenTelemetry's, `file_log`, with its keys and defaults.

Keys that OpenTelemetry does not have stand at the end of each section. Where a default or a meaning
differs, the `otel` of the key says how; the reference page is made of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import field_validator, model_validator

from forwarder.config.operators import Operator
from forwarder.config.values import Duration, Regex, Section, Size, Text, Texts, key
from forwarder.entries.codec import Codec

SortType = Literal["numeric", "alphabetical", "timestamp", "mtime"]
_FLAG = "(?P<"


class SortBy(Section):
    """One criterion of `ordering_criteria`; of several the last one counts most."""

    sort_type: SortType = key(..., "`numeric`, `alphabetical`, `timestamp` or `mtime`")
    regex_key: str = key("", "the named group of `regex` that is compared; not with `mtime`")
    ascending: bool = key(False, "smallest first")
    layout: str = key("", "for `timestamp`: how it is written, as strptime has it (`%Y-%m-%d`)")
    location: str = key("UTC", "for `timestamp`: the time zone, such as Europe/Berlin")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.sort_type != "mtime" and not self.regex_key:
            raise ValueError(f"sort_type {self.sort_type} needs a regex_key")
        if self.sort_type == "timestamp" and not self.layout:
            raise ValueError("sort_type timestamp needs a layout, such as %Y%m%d")
        return self


class OrderingCriteria(Section):
    """Which of the matching files are read, by what their paths say."""

    regex: Regex | None = key(None, "applied to the path; its named groups are sorted by")
    group_by: Regex | None = key(
        None, "files whose first group of this is the same are sorted among themselves"
    )
    top_n: int = key(1, "how many files of each group are read; 0: all of them", ge=0)
    sort_by: tuple[SortBy, ...] = key((), "the criteria; the last one counts most")

    @model_validator(mode="after")
    def _named(self) -> Self:
        for by in self.sort_by:
            if by.sort_type == "mtime":
                continue
            if self.regex is None:
                raise ValueError("sort_by needs a regex, whose named groups are sorted by")
            if by.regex_key not in self.regex.groupindex:
                raise ValueError(f"regex has no group {_FLAG}{by.regex_key}>…)")
        return self


class Multiline(Section):
    """How lines are joined to entries: exactly one of the patterns, or a built-in."""

    line_start_pattern: Regex | None = key(None, "an entry begins where this matches")
    line_end_pattern: Regex | None = key(None, "an entry ends behind what this matches")
    omit_pattern: bool = key(
        False, "leave out what `line_start_pattern` or `line_end_pattern` matched"
    )
    continuation_pattern: Regex | None = key(
        None, "a line in which this matches at its begin belongs to the entry before it"
    )
    builtin: tuple[Literal["python", "java", "go"], ...] = key(
        (), "tracebacks and panics of these languages are one entry each"
    )
    max_lines: int = key(1000, "an entry ends after so many lines; 0: no limit", ge=0)

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


class Header(Section):
    """Lines at the begin of each file that describe it: attributes of all its records."""

    pattern: Regex = key(..., "lines that match are the header, up to the first that does not")
    metadata_operators: tuple[Operator, ...] = key(
        ..., "operators that take attributes from a line of the header"
    )


class Source(Section):
    """One set of files, and how they are read."""

    name: str = "file_log"

    include: Texts = key(..., "paths to read, with `*`, `**`, `?`, `[a-z]`, `{a,b}`")
    exclude: Texts = key((), "paths of `include` to leave out")
    within: Texts = key(
        (),
        "folders in which a file must lie after all symbolic links of its path; empty: anywhere",
    )
    exclude_older_than: Duration = key(0.0, "leave out files that were changed before; 0: none")
    start_at: Literal["beginning", "end"] = key(
        "end", "where to begin in files that are there at the first start; later ones: beginning"
    )
    poll_interval: Duration = key(
        0.2, "how often files are looked for and read", otel="with `hints` only where those fail"
    )
    max_concurrent_files: int = key(
        1024,
        "how many files may be open",
        ge=2,
        otel="all of them for reading, rather than half; every file gets its turn",
    )
    max_batches: int = key(
        0, "accepted without effect", ge=0, otel="a round is bounded by bytes and time"
    )
    ordering_criteria: OrderingCriteria | None = key(None, "read the first few files by an order")
    archive_include: Texts = key(
        (),
        "rotated files outside of `include`: those that were never seen are read, oldest first, and"
        " files that moved there are found again",
    )
    hints: bool = key(
        True, "be told of changes by the kernel (Linux); without, look every `poll_interval`"
    )
    reconcile_interval: Duration = key(
        5.0, "how often files are looked for although hints say nothing"
    )
    order: Literal["fair", "oldest"] = key(
        "fair", "which file is read next: each in turn, or the one with the oldest unread byte"
    )
    duplicates: Literal["once", "each"] = key(
        "once",
        "whether files with the same content, of which one has the name of a rotation of the other,"
        " are read once, or each of them",
    )

    encoding: str = key(
        "utf-8",
        "`utf-8`, `utf-8-raw`, `nop`, `utf-16le`, `utf-16be`, `ascii`, `big5`, others of Python's",
        otel="also with `utf-8-raw` and `nop`, bytes that are no UTF-8 are U+FFFD in the store",
    )
    fingerprint_size: Size = key(
        1000,
        "the first bytes by which a file is known",
        ge=16,
        otel="also compared: the bytes before the offset. Of the decompressed content",
    )
    initial_buffer_size: Size = key(
        16 << 10, "accepted without effect", ge=1, otel="files are read in blocks of 1 MiB"
    )
    max_log_size: Size = key(1 << 20, "bytes of an entry", ge=1, le=2 << 20)
    max_log_size_behavior: Literal["split", "truncate"] = key(
        "split",
        "what becomes of longer ones: several records, or the first alone",
        otel="pieces have the attribute `log.record.part`, cut ones `log.record.truncated`",
    )
    force_flush_period: Duration = key(
        0.5,
        "after this time without new bytes an entry is sent that may go on; 0: never",
        otel="an unfinished last line waits for `unfinished_wait`, if that is longer",
    )
    unfinished_wait: Duration = key(
        300.0,
        "how long an unfinished last line waits for its next change, before it is sent as it is;"
        " live views show it meanwhile. 0: it is not shown, and waits for `force_flush_period`",
    )
    overwritten: Literal["last", "all"] = key(
        "last",
        "how a line with carriage returns is sent, such as a progress bar: its last state, or all"
        " of it",
    )
    multiline: Multiline | None = key(None, "entries of several lines")
    preserve_leading_whitespaces: bool = key(False, "keep white space before an entry")
    preserve_trailing_whitespaces: bool = key(False, "keep white space behind an entry")
    compression: Literal["", "gzip", "zstd", "auto"] = key(
        "",
        "`gzip`, `zstd`, `auto` or empty: each file is what its first bytes say; only with"
        " `encoding: nop`, empty reads compressed files as they are",
        otel="empty reads none; `zstd` is new",
    )
    header: Header | None = key(
        None, "lines at the begin of each file that describe it", otel="without a feature gate"
    )
    file_cache_advise: bool = key(False, "tell the kernel to drop what was read from its cache")
    acquire_fs_lock: bool = key(False, "lock files while they are read; locked ones wait")

    include_file_name: bool = key(True, "attribute `log.file.name`")
    include_file_path: bool = key(False, "attribute `log.file.path`")
    include_file_name_resolved: bool = key(False, "attribute `log.file.name_resolved`")
    include_file_path_resolved: bool = key(False, "attribute `log.file.path_resolved`")
    include_file_owner_name: bool = key(False, "attribute `log.file.owner.name`")
    include_file_owner_group_name: bool = key(False, "attribute `log.file.owner.group.name`")
    include_file_permissions: bool = key(False, "attribute `log.file.permissions`, in octal")
    include_file_record_number: bool = key(
        False, "attribute `log.file.record_number`, from 1", otel="a text, as all attributes are"
    )
    include_file_record_offset: bool = key(False, "attribute `log.file.record_offset`, in bytes")
    attributes: Mapping[str, Text] = key({}, "attributes of every record")
    resource: Mapping[str, Text] = key(
        {}, "attributes of every record", otel="a record has no resource beside its attributes"
    )
    operators: tuple[Operator, ...] = key(
        (), "parsers of entries, one after the other", otel="those below; any other is refused"
    )

    on_truncate: Literal["content", "read_whole_file"] = key(
        "content",
        "accepted without effect: what was read is compared with what is there, and a file with "
        "other content is read from its beginning",
        otel="default `ignore`; that and `read_new` are refused, since they lose lines",
    )
    delete_after_read: bool = key(
        False,
        "delete a file that was read to its end",
        otel="when all of it is acknowledged; without a feature gate",
    )
    polls_to_archive: int = key(
        0, "accepted without effect", ge=0, otel="`forget_after` says how long files are known"
    )
    forget_after: Duration = key(604_800.0, "how long a file that is gone is still known")
    rotate_wait: Duration = key(
        5.0, "how long a file that was rotated away is watched after its last byte"
    )
    close_after: Duration = key(
        0.0, "close the run of a file that had no new bytes for so long; 0: never"
    )

    report_runs: bool = key(
        True,
        "report that a run has begun when its file appears, and that the file is followed: the run"
        " is lost if the forwarder dies",
    )

    template: Literal["", "pods", "airflow"] = key(
        "", "a shipped rule for `fqn` and `run`: of Kubernetes' pods, or Airflow's tasks"
    )
    path_pattern: Regex | None = key(
        None, "applied to the path; `fqn` and `run` use its named groups"
    )
    fqn: str = key(
        "", "the pipeline of a file's run: a text with `{group}`, `{name}`, `{stem}`, `{-2}`"
    )
    run: str = key("", "the run; empty: one for each generation of the file, `{id}`")

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
            raise ValueError("template says what fqn and run are: leave out fqn and path_pattern")
        if not self.template and not self.fqn:
            raise ValueError("needs fqn, the pipeline that files belong to, or a template")
        return self

    @field_validator("on_truncate", mode="before")
    @classmethod
    def _loses_nothing(cls, value: object) -> object:
        if value in ("ignore", "read_new"):
            raise ValueError("it would lose lines; leave it out: content decides what is read")
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
                raise ValueError(f"{glob!r} is no pattern of paths")
        return value
