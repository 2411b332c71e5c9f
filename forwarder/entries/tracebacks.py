"""Which lines are of one traceback: Python's, Java's (also Kotlin's and Scala's), Go's panics.

Each rule is told of one line after the other, and says whether a line goes on with the one before
it: True, False, or None for a blank line, which does if the next one does. A traceback is an entry
of its own, and not of the line before it, which need not have to do with it; Java's begins with the
line that names the exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol

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
    r"|[\w./*()\[\]·-]+\(.*\)$|rax |r[a-z0-9]{1,3} +0x|\.\.\.additional frames elided"
)


class Language(Protocol):
    """The rule of one language, for one stream of lines."""

    def joins(self, line: str) -> bool | None:
        """Whether the line goes on with the one before it; None: if the next one does."""

    def idle(self) -> bool:
        """Whether a line that does not stir it changes nothing."""


def stirs(line: str) -> bool:
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


LANGUAGES: Final[Mapping[str, Callable[[], Language]]] = {
    "python": Python,
    "java": Java,
    "go": Go,
}
