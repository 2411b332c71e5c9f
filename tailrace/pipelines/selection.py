"""Selects an appender's records: by level, pipeline, run, logger, message and expression.

All given conditions must hold. Names are globs as in a shell: `*` is any text, `?` a character.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import field_validator

from tailrace.logstore.errors import InvalidInput, TooLarge
from tailrace.logstore.patterns import TextTest, wildcard_test
from tailrace.logstore.segments.file_format import LEVELS
from tailrace.pipelines.events import records_of
from tailrace.pipelines.section import Section, Texts, setting

if TYPE_CHECKING:
    from tailrace.pipelines.expression import Expression


class Selection(Section):
    """A filter; without any key it takes everything."""

    level: str = setting("", "the lowest level, such as WARN; records without a level are left out")
    fqn: Texts = setting((), "globs of pipelines' names")
    exclude_fqn: Texts = setting((), "globs of pipelines to leave out")
    run: Texts = setting((), "globs of runs' ids")
    logger: Texts = setting((), "globs of the attribute `logger`, as `com.acme.*`")
    loggers: dict[str, str] = setting(
        {},
        "the lowest level of each logger and those below it; `root` is for all others, ALL takes"
        " records without a level too, OFF nothing",
    )
    contains: str = setting("", "text that the message contains")
    matches: str = setting("", "a regular expression (RE2) that the message contains")

    where: str = setting("", "an expression in the language of searches, as `q` of `GET /query`")

    @field_validator("where")
    @classmethod
    def _expressed(cls, value: str) -> str:
        if not value:
            return value
        # Here: who has no such filter does without the parser and DuckDB.
        from tailrace.pipelines.expression import expression

        try:
            expression(value)
        except (InvalidInput, TooLarge) as error:
            said = str(error).removeprefix("q, ").removeprefix("q ")
            raise ValueError(f"{said}{f' ({error.hint})' if error.hint else ''}") from None
        return value

    @field_validator("loggers")
    @classmethod
    def _has_root(cls, value: dict[str, str]) -> dict[str, str]:
        known = ("ALL", *LEVELS, "OFF")
        found = {name: str(level).upper() for name, level in value.items()}
        for name, level in found.items():
            if level not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}")
        if found and "root" not in found:
            raise ValueError("must set root, the level of all other loggers")
        return found

    @field_validator("level")
    @classmethod
    def _known(cls, value: str) -> str:
        if value and value.upper() not in LEVELS:
            raise ValueError(f"must be one of {', '.join(LEVELS)}")
        return value.upper()

    @field_validator("matches")
    @classmethod
    def _regular(cls, value: str) -> str:
        try:
            pc.match_substring_regex(pa.array([""]), value)
        except pa.ArrowInvalid as error:
            raise ValueError(f"is not a regular expression: {error}") from None
        return value

    @field_validator("fqn", "exclude_fqn", "run", "logger")
    @classmethod
    def _globs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for glob in value:
            try:
                wildcard_test(glob)
            except ValueError as error:
                raise ValueError(f"{glob[:80]!r} {error}") from None
        return value

    @cached_property
    def _tests(self) -> Mapping[str, Sequence[TextTest]]:
        given = {"fqn": self.fqn, "exclude_fqn": self.exclude_fqn, "run": self.run}
        given["logger"] = self.logger
        return {name: [wildcard_test(glob) for glob in globs] for name, globs in given.items()}

    @cached_property
    def _expression(self) -> Expression:
        from tailrace.pipelines.expression import expression

        return expression(self.where)

    def of(self, events: pa.Table) -> pa.Table:
        """The events that it takes, in the same order."""
        if self.level:
            wanted = pa.array(LEVELS[LEVELS.index(self.level) :])
            events = events.filter(pc.is_in(events.column("level"), wanted))
        if self.fqn:
            events = _filtered(events, "fqn", self._tests["fqn"])
        if self.exclude_fqn:
            events = _filtered(events, "fqn", self._tests["exclude_fqn"], wanted=False)
        if self.run:
            events = _filtered(events, "run_id", self._tests["run"])
        if self.logger:
            loggers = pc.map_lookup(events.column("attributes").combine_chunks(), "logger", "last")
            named = events.append_column("logger", loggers)
            events = _filtered(named, "logger", self._tests["logger"]).drop_columns(["logger"])
        if self.loggers:
            events = _by_loggers(events, self.loggers)
        if self.contains:
            events = events.filter(pc.match_substring(events.column("message"), self.contains))
        if self.matches:
            found = pc.match_substring_regex(events.column("message"), self.matches)
            events = events.filter(found)
        if self.where:
            events = self._expression.of(events)
        return events

    def records_of(self, events: pa.Table) -> pa.Table:
        """The events that it takes: of one that others continue it alone, unless it asks for text.

        This is what searches count, too.
        """
        taken, asks = self.of(events), bool(self.contains or self.matches)
        if self.where and not asks:
            asks = self._expression.asks_for_text
        return taken if asks else records_of(taken)


def _by_loggers(events: pa.Table, loggers: dict[str, str]) -> pa.Table:
    """The events that have the level of the nearest logger above theirs, or a higher one."""
    named = pc.map_lookup(events.column("attributes").combine_chunks(), "logger", "last")
    by_level: dict[str, list[str]] = {}
    names = pc.fill_null(named, "")
    longest = max(map(len, loggers))
    for name in pc.unique(names).to_pylist():
        above = name if len(name) <= longest else name[: longest + 1].rpartition(".")[0]
        while above and above not in loggers:
            above = above.rpartition(".")[0]
        by_level.setdefault(loggers[above or "root"], []).append(name)
    taken = pa.array([False] * events.num_rows, pa.bool_())
    for level, found in by_level.items():
        ours = pc.is_in(names, pa.array(found, pa.string()))
        if level in LEVELS:
            high = pa.array(LEVELS[LEVELS.index(level) :])
            ours = pc.and_(ours, pc.is_in(events.column("level").combine_chunks(), high))
        if level != "OFF":
            taken = pc.or_(taken, ours)
    return events.filter(taken)


def _filtered(
    events: pa.Table, column: str, tests: Sequence[TextTest], *, wanted: bool = True
) -> pa.Table:
    """The events whose name passes one of the tests, or with `wanted` False none of them."""
    names = pc.unique(events.column(column)).to_pylist()
    kept = [name for name in names if any(test(name or "") for test in tests) == wanted]
    if len(kept) == len(names):
        return events
    return events.filter(pc.is_in(events.column(column), pa.array(kept, pa.string())))
