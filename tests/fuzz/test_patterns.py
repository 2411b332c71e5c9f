"""No pattern of the source takes time that grows with the square of a text."""

from __future__ import annotations

import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from tests.seeds import some

PACKAGES: Final = ("service", "tailrace", "compactor", "tailrace_client")
SIZE: Final = 6000
SIZES: Final = (SIZE // 4, SIZE // 2, SIZE)
TRIES: Final = 5
MOST_GROWTH: Final = 9.0
"""Times that a text four times as long may take: 4 is linear, 16 is the square."""
FLOOR_SECONDS: Final = 0.002
"""Below it the clock says too little; the square of `SIZE` takes ten times as long."""
PARTS: Final = (
    *"9a. _-:/\\\"'{[(<%$*?+=,;&|\n\r\t\x00é",
    *(
        "9.",
        "a.",
        "1h",
        "a=",
        "ab ",
        '\\"',
        "{{",
        "%2",
        "a:",
        "eyJ",
        "[9",
        "- ",
        '="',
        "a,",
        "\\\\",
    ),
)
"""What texts repeat."""
ENDS: Final = ("", "!")
BOUNDED: Final = {
    "tailrace.cli.tail._NUMBERED": "the name of a run, which has at most 255 bytes",
    "tailrace.forwarder.config.values._PART": "a text that is a duration as a whole",
    "tailrace.forwarder.files.finder._ADDED": "the name of a file",
    "tailrace.forwarder.files.finder._EDGES": "the name of a file",
    "tailrace.forwarder.files.finder._INDEX": "the name of a file",
    "tailrace.logstore.search.language._PART": "a field in which all quotes are closed",
    "tailrace.logstore.search.logql._STEP": "at most 100 characters",
}
"""Patterns that may, as their texts are short."""
SCANS: Final = ("search", "sub", "finditer", "findall", "split")


def _modules() -> Iterator[Any]:
    for top in PACKAGES:
        for found in pkgutil.walk_packages(import_module(top).__path__, f"{top}."):
            if not found.name.endswith("__main__"):
                yield import_module(found.name)


@cache
def patterns() -> dict[str, tuple[re.Pattern[Any], list[str]]]:
    """The patterns that modules make when they are imported, and how they are asked."""
    found = {}
    for module in _modules():
        text = Path(module.__file__).read_text()
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern) and re.search(rf"^{name}\b.*=", text, re.MULTILINE):
                scans = [how for how in SCANS if f"{name}.{how}(" in text]
                found[f"{module.__name__}.{name}"] = value, scans
    return found


def spent(act: Callable[[int], object], size: int) -> float:
    """Seconds of the processor that it takes."""
    begun = time.process_time()
    act(size)
    return time.process_time() - begun


def grows(act: Callable[[int], object]) -> bool:
    """Whether `act` takes more than in proportion to the size that it is given.

    The sizes take turns, and the quickest try of each counts: load and frequency of the machine
    then change all of them alike.
    """
    if any(spent(act, SIZE) < FLOOR_SECONDS for _ in range(TRIES)):
        return False
    tries = [[spent(act, size) for size in SIZES] for _ in range(TRIES)]
    least: list[float] = [min(each) for each in zip(*tries, strict=True)]
    return least[-1] > least[0] * MOST_GROWTH


def repeated(part: str, end: str, size: int) -> str:
    return part * (size // len(part)) + end


def slow(pattern: re.Pattern[Any], scans: list[str]) -> list[str]:
    """The texts on which it takes long, each by what it repeats and its end."""
    asks: list[Any] = [pattern.match, pattern.fullmatch, *([pattern.search] if scans else [])]
    if set(scans) - {"search", "split"}:
        asks.append(pattern.findall)
    return [
        f"{ask.__name__} {part!r} {end!r}"
        for part in PARTS
        for end in ENDS
        for ask in asks
        if grows(partial(_ask, pattern, ask, part, end))
    ]


def _ask(
    pattern: re.Pattern[Any], ask: Callable[[Any], object], part: str, end: str, size: int
) -> object:
    return ask(_as(pattern, repeated(part, end, size)))


def _as(pattern: re.Pattern[Any], text: str) -> Any:
    return text.encode() if isinstance(pattern.pattern, bytes) else text


@pytest.mark.parametrize("part", some(range(16), 4, "patterns"))
def test_no_pattern_takes_the_square_of_a_text(part: int) -> None:
    """A client that sends 1 MiB of one of these texts would hold the event loop for hours."""
    assert len(patterns()) > 100
    asked = sorted(patterns().items())[part::16]
    found = {name: slow(*one) for name, one in asked if name not in BOUNDED}
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        (r"a*b", "a"),
        (r"\s+$", "\t"),
        (r"eyJ[^.]*\.", "eyJ"),
        (rb"9+x", "9"),
    ],
)
def test_the_square_of_a_text_is_seen(pattern: str | bytes, part: str) -> None:
    compiled = re.compile(pattern)
    assert grows(partial(_ask, compiled, compiled.search, part, "!"))


@pytest.mark.parametrize("pattern", [r"a+|.", r"(?:a|b)*", r"\s|\S", rb"[^\n]*\n?"])
def test_what_is_linear_is_not_taken_for_the_square(pattern: str | bytes) -> None:
    assert slow(re.compile(pattern), ["findall"]) == []


def test_what_is_said_to_be_bounded_is_a_pattern() -> None:
    assert patterns().keys() >= BOUNDED.keys()
