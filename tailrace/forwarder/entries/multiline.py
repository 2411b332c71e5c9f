"""Joins lines to entries: by continuation, by start or end, or by the rules of tracebacks.

Lines are joined with a newline. The entry has time, level and attributes of its first line. Lines
of standard output and standard error of one container are joined apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from tailrace.forwarder.config.source import Multiline
from tailrace.forwarder.entries.entry import Entry, Output, message_of
from tailrace.forwarder.operators.container import STREAM
from tailrace.logstore.patterns import LinearRegex

# The lines of one traceback: Python's, Java's (also Kotlin's and Scala's), Go's panics.
#
# Each rule gets one line after the other, and decides whether a line goes on with the one before
# it: True, False, or None for a blank line, which does if the next one does. A traceback is an
# entry of its own. It does not join the line before it, which may be unrelated; Java's begins with
# the line that names the exception.


_PYTHON_BEGIN = re.compile(r"\s*(?:\+ Exception Group )?Traceback \(most recent call last\):")
_PYTHON_GROUP = re.compile(r" +[|+]")
_PYTHON_CHAIN = re.compile(
    r"During handling of the above exception|The above exception was the direct cause"
)
_JAVA_GOES_ON = re.compile(
    r"[\t ]+(?:at [\w.$/<>@]+|\.\.\. \d+ (?:more|common frames omitted)|--- End of |- locked )"
    r"|[\t ]*(?:Caused by: |Suppressed: |Wrapped by: )"
)
_JAVA_FIRST = tuple("\t CSW")
_STIRRING = (*_JAVA_FIRST, "")
_GO_BEGIN = re.compile(r".*\bpanic(?: serving [^:]+:\d+)?: |fatal error: ")
_GO_GOES_ON = re.compile(
    r"goroutine \d+|\[signal |\s+\S|created by |exit status \d|runtime\.|panic\(|\tpanic: "
    r"|[\w./*()\[\]·-][\w./*)\[\]·-]*\(.*\)$|rax |r[a-z0-9]{1,3} +0x|\.\.\.additional frames elided"
)


class Language(Protocol):
    """The rule of one language, for one stream of lines."""

    def joins(self, line: str) -> bool | None:
        """Whether the line goes on with the one before it; None: if the next one does."""

    def idle(self) -> bool:
        """Whether a line that does not stir it changes nothing."""


def may_join(line: str) -> bool:
    """Whether a line can go on with the one before it, or begin a traceback, in any language."""
    return line[:1] in _STIRRING or "Traceback (" in line or "panic" in line or line[:5] == "fatal"


class Python:
    """A traceback up to the line that names the exception, and those it is chained with."""

    def __init__(self) -> None:
        self._state = ""

    def joins(self, line: str) -> bool | None:
        state = self._state
        if state == "chain":
            self._state = "frames" if _PYTHON_BEGIN.match(line) else state
            return True if self._state == "frames" or not line.strip() else self._no(line)
        if state == "group":
            if _PYTHON_GROUP.match(line):
                return True
            state = self._state = "over"
        if state == "frames":
            if not line or line[0] in " \t":
                return True
            self._state = "over"
            return True  # the exception
        if state in ("over", "blank"):
            if _PYTHON_CHAIN.match(line):
                self._state = "chain"
                return True
            if not line.strip() and state == "over":
                self._state = "blank"
                return None
        return self._no(line)

    def idle(self) -> bool:
        return not self._state

    def _no(self, line: str) -> bool:
        begins = "Traceback (" in line and _PYTHON_BEGIN.match(line) is not None
        self._state = ("group" if "+ Exception Group" in line else "frames") if begins else ""
        return False


class Java:
    """Frames, and the causes between them."""

    def joins(self, line: str) -> bool | None:
        return line[:1] in _JAVA_FIRST and _JAVA_GOES_ON.match(line) is not None

    def idle(self) -> bool:
        return True


class Go:
    """A panic or fatal error with the stacks of its goroutines."""

    def __init__(self) -> None:
        self._inside = False

    def joins(self, line: str) -> bool | None:
        if self._inside:
            if not line.strip():
                return None
            if _GO_GOES_ON.match(line):
                return True
        self._inside = ("panic" in line or line[:5] == "fatal") and bool(_GO_BEGIN.match(line))
        return False

    def idle(self) -> bool:
        return not self._inside


LANGUAGES: Final[Mapping[str, Callable[[], Language]]] = {"python": Python, "java": Java, "go": Go}


_QUIET_LINES = 100
"""An entry of one stream ends when another stream has had so many lines since."""


class MultilineRule(Protocol):
    """Decides which lines belong together; one for each stream, which gets line after line."""

    def joins(self, line: str) -> bool | None:
        """Whether the line goes on with the entry before it. None: it is known with a later line,
        which then joins for both, or for neither."""

    def ends(self, line: str) -> bool:
        """Whether the entry ends with this line."""


class Continuation:
    """A line in which the pattern matches at its begin goes on with the entry before it."""

    def __init__(self, pattern: LinearRegex) -> None:
        self._matches = pattern.match

    def joins(self, line: str) -> bool | None:
        return self._matches(line) is not None

    def ends(self, line: str) -> bool:  # noqa: ARG002 - only `End` looks at it
        return False


class EntryStart:
    """An entry begins with each line in which the pattern matches."""

    def __init__(self, pattern: LinearRegex) -> None:
        self._matches = pattern.search

    def joins(self, line: str) -> bool | None:
        return self._matches(line) is None

    def ends(self, line: str) -> bool:  # noqa: ARG002 - only `End` looks at it
        return False


class End:
    """An entry ends with each line in which the pattern matches."""

    def __init__(self, pattern: LinearRegex) -> None:
        self._matches = pattern.search

    def joins(self, line: str) -> bool | None:  # noqa: ARG002
        return True

    def ends(self, line: str) -> bool:
        return self._matches(line) is not None


class Languages:
    """Tracebacks of several languages; the first that knows a line has it until it ends."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._all = [LANGUAGES[name]() for name in names]

    def joins(self, line: str) -> bool | None:
        answer: bool | None = False
        for one in self._all:  # each is told of each line
            said = one.joins(line)
            if said or (said is None and not answer):
                answer = said
        return answer

    def ends(self, line: str) -> bool:  # noqa: ARG002 - only `End` looks at it
        return False

    def idle(self) -> bool:
        """Whether no traceback is going on."""
        return all(one.idle() for one in self._all)


def rule_of(config: Multiline) -> Callable[[], MultilineRule]:
    """What makes the rule for one stream of lines."""
    if config.builtin:
        names = config.builtin
        return lambda: Languages(names)
    for pattern, kind in (
        (config.continuation_pattern, Continuation),
        (config.line_start_pattern, EntryStart),
        (config.line_end_pattern, End),
    ):
        if pattern is not None:
            found, made = pattern, kind
            return lambda: made(found)
    raise AssertionError("multiline has exactly one of them")


@dataclass(slots=True)
class _LineStream:
    rule: MultilineRule
    entry: Entry | None = None
    lines: list[str] = field(default_factory=list)
    waiting: list[Entry] = field(default_factory=list)
    """Lines of which it is not known yet whether they join."""


class Joiner:
    """Joins the lines of each stream by a rule of its own."""

    def __init__(
        self,
        rule: Callable[[], MultilineRule],
        *,
        most_bytes: int,
        most_lines: int,
        omit: LinearRegex | None = None,
    ) -> None:
        self._rule = rule
        self._most_bytes = most_bytes
        self._most_lines = most_lines
        self._omit = omit
        self._streams: dict[str, _LineStream] = {}

    def feed(self, entry: Entry, out: Output) -> None:
        name = entry.attributes.get(STREAM, "")
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = _LineStream(self._rule())
        if len(self._streams) > 1:
            self._end_quiet(entry.first, out)
        line = message_of(entry.body)
        joins = stream.rule.joins(line)
        if joins is None and stream.entry is not None:
            stream.waiting.append(entry)
            return
        if stream.waiting:
            self._settle(stream, out, joined=bool(joins))
        if not joins and stream.entry is not None:
            self._give(stream, out)
        self._add(stream, entry, line)
        if stream.rule.ends(line) or self._full(stream):
            self._give(stream, out)

    def _end_quiet(self, unit: int, out: Output) -> None:
        """Gives entries of streams that had no line for long: a range cannot end before them."""
        for stream in self._streams.values():
            if stream.entry is not None and stream.entry.last < unit - _QUIET_LINES:
                self._settle(stream, out, joined=False)
                self._give(stream, out)

    def flush(self, out: Output) -> None:
        for stream in sorted(self._streams.values(), key=_first):
            self._settle(stream, out, joined=False)
            if stream.entry is not None:
                self._give(stream, out)

    def settles(self, unit: int) -> bool:
        """An entry of one line before the unit ends there, if the rule knows of nothing more."""
        return all(
            stream.entry is None
            or (
                stream.entry.first == stream.entry.last == unit - 1
                and not stream.waiting
                and isinstance(stream.rule, Languages)
                and stream.rule.idle()
            )
            for stream in self._streams.values()
        )

    def oldest(self) -> int | None:
        held = [one.entry.first for one in self._streams.values() if one.entry is not None]
        return min(held) if held else None

    def _settle(self, stream: _LineStream, out: Output, *, joined: bool) -> None:
        """Adds the lines that waited to the entry, or makes each an entry of its own."""
        waiting, stream.waiting = stream.waiting, []
        if not joined and waiting:
            self._give(stream, out)
        for entry in waiting:
            self._add(stream, entry, message_of(entry.body))
            if not joined:
                self._give(stream, out)

    def _add(self, stream: _LineStream, entry: Entry, line: str) -> None:
        if stream.entry is None:
            stream.entry = entry
        else:
            stream.entry.last = max(stream.entry.last, entry.last)
            stream.entry.size += entry.size
        for begin, end in islice(self._omit.spans(line), 1) if self._omit else ():
            line = line[:begin] + line[end:]
        stream.lines.append(line)

    def _full(self, stream: _LineStream) -> bool:
        assert stream.entry is not None
        return stream.entry.size >= self._most_bytes or len(stream.lines) == self._most_lines

    def _give(self, stream: _LineStream, out: Output) -> None:
        entry, lines = stream.entry, stream.lines
        stream.entry, stream.lines = None, []
        if entry is not None:
            entry.body = "\n".join(lines)
            out(entry)


def _first(stream: _LineStream) -> int:
    return stream.entry.first if stream.entry is not None else -1
