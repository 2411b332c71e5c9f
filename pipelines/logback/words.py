"""logback's patterns with the words that the layout `pattern` knows; what is left out is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pipelines.layouts.pattern import compiled

_WORD: Final = re.compile(r"%(-?[0-9]*(?:\.-?[0-9]+)?)([A-Za-z]+)?(\()?")
_WHOLE_WORD: Final = re.compile(r"%-?[0-9]*(?:\.-?[0-9]+)?([A-Za-z]+)(?:\{[^}]*\})?")
_COLOURS: Final = frozenset(
    [
        "clr", "highlight", "black", "red", "green", "yellow", "blue", "magenta", "cyan",
        "white", "gray", "boldRed", "boldGreen", "boldYellow", "boldBlue", "boldMagenta",
        "boldCyan", "boldWhite",
    ]
)  # fmt: skip
_EXCEPTIONS: Final = frozenset(
    [
        "ex", "exception", "throwable", "xEx", "xException", "xThrowable", "rEx",
        "rootException", "wEx", "wex", "nopex", "nopexception",
    ]
)  # fmt: skip


def converted(pattern: str) -> tuple[str, list[str]]:
    """The pattern as far as it can be, and what was left out of it."""
    left_out: list[str] = []
    text = _without_colours(" ".join(pattern.split("\n")), left_out)
    while True:
        try:
            compiled(text)
        except ValueError as error:
            word = re.search(r"the word %(\w+)", str(error))
            if word is None:
                left_out.append(f"the pattern {str(error).removeprefix('has ')}: %msg%n instead")
                return "%msg%n", left_out
            text = _without(word[1], text)
            why = "its text is in the message" if word[1] in _EXCEPTIONS else "no record has it"
            left_out.append(f"the word %{word[1]}: {why}")
        else:
            return text, left_out


def _without(name: str, text: str) -> str:
    """The pattern without one word, its width and its options."""
    return _WHOLE_WORD.sub(lambda found: "" if found[1] == name else found[0], text)


def _without_colours(text: str, left_out: list[str]) -> str:
    """`%cyan(%logger)` is `%logger`; a group with a width loses the width."""
    pieces: list[str] = []
    at = 0
    for found in _WORD.finditer(text):
        if found.start() < at or not found[3]:
            continue
        if text[max(found.start() - 1, 0)] == "\\":
            continue
        end = _closing(text, found.end())
        if end is None or (found[2] and found[2] not in _COLOURS):
            continue
        inner = _without_colours(text[found.end() : end], left_out)
        pieces += [text[at : found.start()], inner]
        option = re.match(r"\{[^}]*\}", text[end + 1 :])
        at = end + 1 + (option.end() if option else 0)
        what = f"the colour %{found[2]}" if found[2] else f"the width of a group, %{found[1]}(…)"
        if what not in left_out:
            left_out.append(what)
    return "".join([*pieces, text[at:]])


def _closing(text: str, start: int) -> int | None:
    depth = 1
    for at, one in _unescaped(text, start):
        depth += {"(": 1, ")": -1}.get(one, 0)
        if depth == 0:
            return at
    return None


def _unescaped(text: str, start: int) -> Iterator[tuple[int, str]]:
    at = start
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        yield at, text[at]
        at += 1
