r"""Patterns that users write, matched by RE2: in time that is linear in the length of the text.

Python's own `re` goes back over a text again and again: a pattern such as `(\w+\s?)*$` and a line
of 60 characters stop a process for good. Requests and configurations therefore never reach it.
A test walks the source for calls of `re` with anything that is not a constant.

RE2 has no look-around and no references back. `\w`, `\d` and `\s` are ASCII, `$` is the end of the
text, and `[[:digit:]]` and `\pL` work. OpenTelemetry uses the same syntax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import re2

_MOST_INSTRUCTIONS: Final = 10_000
"""Of a compiled pattern. A text costs at most so many steps for each of its bytes."""

MOST_STARS: Final = 100
"""Each `*` may begin anywhere, so a text costs their number for each of its characters."""

TextTest = Callable[[str], bool]
"""Whether a text is wanted."""


class LinearMatch:
    """A place at which a pattern matches: the texts of its groups, as of a match of `re`."""

    __slots__ = ("_found", "_names")

    def __init__(self, found: Any, names: Mapping[str, int]) -> None:
        self._found = found
        self._names = names

    def __getitem__(self, group: int | str) -> str | None:
        """The text of a group by its number or name; None for a group that took no part."""
        text: bytes | None = self._found[self._names[group] if isinstance(group, str) else group]
        return None if text is None else text.decode("utf-8", "surrogatepass")

    def groupdict(self, default: str | None = None) -> dict[str, str | None]:
        """The texts of all groups with a name, and `default` for those that took no part."""
        texts = [(name, self[number]) for name, number in self._names.items()]
        return {name: default if text is None else text for name, text in texts}


class LinearRegex:
    """A regular expression in RE2's syntax.

    Raises `ValueError` with the reason if the pattern is not in that syntax, or too large.
    """

    __slots__ = ("_regex", "groupindex", "groups", "pattern")

    def __init__(self, pattern: str, *, multiline: bool = False) -> None:
        options = re2.Options()
        options.log_errors = False
        try:
            text = (f"(?m:{pattern})" if multiline else pattern).encode()
            self._regex = re2.compile(text, options)
        except re2.error as error:
            reason = b"".join(error.args[:1]).decode("utf-8", "replace")
            raise ValueError(
                f"is not a regular expression of RE2: {reason}"
                r"; look-around such as (?=…) and references such as \1 do not exist"
            ) from None
        except UnicodeEncodeError:
            raise ValueError("is not a regular expression: it is not Unicode") from None
        if self._regex.programsize > _MOST_INSTRUCTIONS:
            raise ValueError("is too large a regular expression: use fewer or smaller repetitions")
        self.pattern = pattern
        self.groups: int = self._regex.groups
        names = self._regex.groupindex
        self.groupindex: Mapping[str, int] = {name.decode(): at for name, at in names.items()}

    def search(self, text: str) -> LinearMatch | None:
        """The first match anywhere in the text."""
        found = self._regex.search(text.encode("utf-8", "surrogatepass"))
        return None if found is None else LinearMatch(found, self.groupindex)

    def match(self, text: str) -> LinearMatch | None:
        """A match that begins where the text begins."""
        found = self._regex.match(text.encode("utf-8", "surrogatepass"))
        return None if found is None else LinearMatch(found, self.groupindex)

    def fullmatch(self, text: str) -> LinearMatch | None:
        """A match of the whole text."""
        found = self._regex.fullmatch(text.encode("utf-8", "surrogatepass"))
        return None if found is None else LinearMatch(found, self.groupindex)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Begin and end, in characters, of all matches that do not overlap, in order."""
        data = text.encode("utf-8", "surrogatepass")
        at = behind = 0  # the same place in bytes and in characters
        last = None
        for found in self._regex.finditer(data):
            begin, end = found.span()
            if (begin, end) == last:
                continue  # the library gives an empty match at the end twice
            last = begin, end
            if len(data) == len(text):
                yield begin, end
                continue
            if begin < len(data) and data[begin] & 0xC0 == 0x80:
                continue  # an empty match within a character
            first = behind + len(data[at:begin].decode("utf-8", "surrogatepass"))
            behind = first + len(data[begin:end].decode("utf-8", "surrogatepass"))
            at = end
            yield first, behind


class BytesRegex:
    """A regular expression of this program, in RE2's syntax, for text that may be no UTF-8.

    A byte is a character, as in Arrow's columns of bytes.
    """

    __slots__ = ("_finder", "_groups")

    def __init__(self, pattern: str) -> None:
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        self._groups = re2.compile(pattern.encode("latin-1"), options)
        options.never_capture = True  # it is faster
        self._finder = re2.compile(pattern.encode("latin-1"), options)

    def finds(self, text: bytes) -> bool:
        """Returns whether the text holds a match."""
        return self._finder.search(text) is not None

    def groups(self, text: bytes) -> tuple[bytes | None, ...]:
        """The groups of the first match, None for one that took no part; empty without a match."""
        found = self._groups.search(text)
        return () if found is None else found.groups()


def wildcard_test(pattern: str) -> TextTest:
    """Whether a whole name matches: `*` is any text, `?` one character, `[ab]`, `[a-z]`, `[!a]`.

    The rules are those of the standard library's `fnmatchcase`, and `[^a]` is `[!a]`. A bracket
    that does not end stands for itself. Raises `ValueError` for more `*` than a name can need.

    No pattern is kept here, since a compiled one takes up to some megabytes: whoever has a pattern
    for longer keeps its test.
    """
    if pattern.count("*") > MOST_STARS:
        raise ValueError(f"has more than {MOST_STARS} *")
    regex = LinearRegex(f"(?s:{translate_wildcards(pattern)})")
    return lambda name: regex.fullmatch(name) is not None


def name_test(pattern: str) -> TextTest:
    """As `wildcard_test`, but brackets are characters, and text without a sign is a beginning."""
    if not set(pattern) & set("*?"):
        return lambda name: name.startswith(pattern)
    return wildcard_test(pattern.replace("[", "[[]"))


def translate_wildcards(pattern: str, *, of_path: bool = False) -> str:
    """The wildcards as a regular expression.

    In the part of a path none of them matches a `/`, a backslash takes the next character as it
    is, and a bracket that does not end raises `ValueError`.
    """
    separator = "/" if of_path else ""
    some = "[^/]" if of_path else "."
    out: list[str] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "*":
            if out[-1:] != [some + "*"]:
                out.append(some + "*")
        elif character == "?":
            out.append(some)
        elif character == "\\" and of_path and at < len(pattern):
            out.append(re2.escape(pattern[at]))
            at += 1
        elif character == "[":
            end = pattern.find("]", at + 1 + (pattern[at : at + 1] in ("!", "^")))
            if end < 0 and of_path:
                raise ValueError("has a '[' without ']'")
            if end < 0:
                out.append(r"\[")
                continue
            out.append(translate_set(pattern[at:end], separator=separator))
            at = end + 1
        else:
            out.append(re2.escape(character))
    return "".join(out)


def translate_set(inner: str, *, separator: str = "") -> str:
    """The inside of brackets, such as `a-z` or `!0-9`, as a set of a regular expression."""
    excluded = inner[:1] in ("!", "^")
    members = inner[1:] if excluded else inner
    out: list[str] = []
    at = 0
    while at < len(members):
        first = last = members[at]
        if members[at + 1 : at + 2] == "-" and at + 2 < len(members):
            last = members[at + 2]
            at += 2
        at += 1
        if first <= last:  # a range that runs backwards has no member, as in `fnmatch`
            out.append(f"{_member(first)}-{_member(last)}")
    if excluded:
        return f"[^{separator}{''.join(out)}]" if out or separator else "."
    return f"[{''.join(out)}]" if out else r"[^\x00-\x{10FFFF}]"


def _member(character: str) -> str:
    return rf"\x{{{ord(character):x}}}"
