"""Paths that match glob patterns, found by a walk that goes on past what it cannot read.

A pattern is an absolute or relative path whose parts may have `*` (any characters but `/`), `?`,
`[abc]`, `[!abc]`, `{one,two}`, and `**` as a whole part for any number of folders. As in
doublestar, the library that OpenTelemetry uses, `*` matches a leading dot too, and `**` does
not follow symbolic links to folders.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import cache

from logstore.errors import InvalidInput
from logstore.patterns import LinearRegex, translate_wildcards

_SPECIAL = re.compile(r"[*?\[{\\]")
_MOST_ALTERNATIVES = 1000

Unreadable = Callable[[str, OSError], None]


class Glob:
    """One pattern. Raises `InvalidInput` if its brackets or braces do not end."""

    def __init__(self, pattern: str) -> None:
        if not pattern:
            raise InvalidInput("a glob pattern is empty")
        self.pattern = pattern
        self._alternatives = [os.path.normpath(each) for each in expand_braces(pattern)]
        ways = [way for each in self._alternatives for way in _ways(each)]
        try:
            self._regex = LinearRegex("|".join(map(_translate, self._alternatives)))
            self._ways = LinearRegex("|".join(map(_translate, ways)))
        except ValueError as error:
            raise InvalidInput(
                f"the glob pattern {pattern[:200]!r} {error}",
                hint="Name the folder, or write several patterns.",
            ) from error

    def leads(self, path: str) -> bool:
        """Whether a path matches, or is a folder on the way to one that would.

        Of relative patterns, every path may be.
        """
        if not all(each.startswith("/") for each in self._alternatives):
            return True
        return self._ways.fullmatch(os.path.normpath(path)) is not None

    def matches(self, path: str) -> bool:
        """Whether a path as a whole matches."""
        return self._regex.fullmatch(path) is not None

    def find(self, unreadable: Unreadable) -> Iterator[str]:
        """The paths that match and are no folders; `unreadable` hears of folders it cannot list."""
        for each in self._alternatives:
            root, rest = ("/", each[1:]) if each.startswith("/") else ("", each)
            yield from _walk(root, rest.split("/"), unreadable)

    def folders(self, unreadable: Unreadable) -> Iterator[str]:
        """The folders in which a path that matches can appear, now: those that exist."""
        for each in self._alternatives:
            root, rest = ("/", each[1:]) if each.startswith("/") else ("", each)
            yield from _folders(root or ".", rest.split("/"), unreadable)


def expand_braces(pattern: str) -> list[str]:
    """`a{b,c}` as `ab`, `ac`; braces may be nested.

    Raises `InvalidInput` if one does not end, or if they stand for too many patterns.
    """
    return list(_expand(pattern, iter(range(_MOST_ALTERNATIVES))))


def _expand(pattern: str, left: Iterator[int]) -> Iterator[str]:
    start = _outside_brackets(pattern, "{")
    if start < 0:
        if next(left, None) is None:
            raise InvalidInput(
                f"the braces of a glob pattern stand for more than {_MOST_ALTERNATIVES} patterns",
                hint="Use `*`, or write several patterns.",
            )
        yield pattern
        return
    depth, parts, begin = 0, [], start + 1
    for index in range(start, len(pattern)):
        character = pattern[index]
        if character == "{":
            depth += 1
        elif character == "," and depth == 1:
            parts.append(pattern[begin:index])
            begin = index + 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                parts.append(pattern[begin:index])
                head, tail = pattern[:start], pattern[index + 1 :]
                for part in parts:
                    yield from _expand(head + part + tail, left)
                return
    raise InvalidInput(f"the glob pattern {pattern!r} has a '{{' without '}}'")


def _ways(pattern: str) -> Iterator[str]:
    """The pattern, and the patterns of the folders above what it matches."""
    parts = pattern.split("/")
    return ("/".join(parts[:end]) for end in range(2, len(parts) + 1))


def _outside_brackets(pattern: str, wanted: str) -> int:
    inside = False
    for index, character in enumerate(pattern):
        if character == "\\":
            continue
        if character == "[" and not inside and "]" in pattern[index + 2 :]:
            inside = True
        elif character == "]":
            inside = False
        elif character == wanted and not inside:
            return index
    return -1


def _translate(pattern: str) -> str:
    """The pattern, without braces, as a regular expression for whole paths."""
    out: list[str] = []
    parts = pattern.split("/")
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            out.append("(?s:.*)" if last else "(?:[^/]+/)*")
        else:
            out.append(_translate_part(part) + ("" if last else "/"))
    return "".join(out)


@cache
def _part(part: str) -> LinearRegex:
    return LinearRegex(_translate_part(part))


def _translate_part(part: str) -> str:
    try:
        return translate_wildcards(part, of_path=True)
    except ValueError as error:
        raise InvalidInput(f"the glob pattern {part!r} {error}") from error


def _entries(folder: str, unreadable: Unreadable) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder or ".") as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        unreadable(folder or ".", error)
        return []


def _is_folder(entry: os.DirEntry[str], *, follow: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follow)
    except OSError:
        return False


def _walk(folder: str, parts: list[str], unreadable: Unreadable) -> Iterator[str]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _walk(folder, rest or ["*"], unreadable)
        for path in _below(folder, unreadable):
            yield from _walk(path, parts, unreadable)
    elif not _SPECIAL.search(part):
        path = _join(folder, part)
        if rest:
            yield from _walk(path, rest, unreadable)
        elif os.path.lexists(path) and not os.path.isdir(path):
            yield path
    else:
        pattern = _part(part)
        for entry in _entries(folder, unreadable):
            if pattern.fullmatch(entry.name):
                is_folder = _is_folder(entry, follow=True)
                if rest and is_folder:
                    yield from _walk(_join(folder, entry.name), rest, unreadable)
                elif not rest and not is_folder:
                    yield _join(folder, entry.name)


def _below(folder: str, unreadable: Unreadable) -> list[str]:
    entries = _entries(folder, unreadable)
    return [_join(folder, entry.name) for entry in entries if _is_folder(entry, follow=False)]


def _folders(folder: str, parts: list[str], unreadable: Unreadable) -> Iterator[str]:
    """Every folder that the walk goes through: something new in it may lead to a match."""
    yield folder
    part, rest = parts[0], parts[1:]
    if not rest and part != "**":
        return
    if part != "**" and not _SPECIAL.search(part):
        path = _join(folder, part)
        if os.path.isdir(path):
            yield from _folders(path, rest, unreadable)
        return
    pattern = _part("*" if part == "**" else part)
    for entry in _entries(folder, unreadable):
        if pattern.fullmatch(entry.name) and _is_folder(entry, follow=part != "**"):
            path = _join(folder, entry.name)
            yield from _folders(path, parts if part == "**" else rest, unreadable)
    if part == "**" and rest:
        yield from _folders(folder, rest, unreadable)


def _join(folder: str, name: str) -> str:
    return name if folder in ("", ".") else f"{folder.rstrip('/')}/{name}"
