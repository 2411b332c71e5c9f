"""No pattern of the source takes time that grows with the square of a text."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fuzz.test_pipelines import quickest
from tests.seeds import some

PACKAGES: Final = ("service", "tailrace", "compactor", "tailrace_client")
SIZE: Final = 6000
MOST_SECONDS: Final = 0.05
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


def texts() -> list[str]:
    return [part * (SIZE // len(part)) + end for part in PARTS for end in ENDS]


def slow(pattern: re.Pattern[Any], scans: list[str]) -> list[str]:
    """The texts on which it takes long, each by its beginning."""
    asks: list[Any] = [pattern.match, pattern.fullmatch, *([pattern.search] if scans else [])]
    if set(scans) - {"search", "split"}:
        asks.append(pattern.findall)
    return [
        f"{ask.__name__} {text[:4]!r}"
        for text in texts()
        for ask in asks
        if quickest(partial(ask, _as(pattern, text)), MOST_SECONDS) > MOST_SECONDS
    ]


def _as(pattern: re.Pattern[Any], text: str) -> Any:
    return text.encode() if isinstance(pattern.pattern, bytes) else text


@pytest.mark.parametrize("part", some(range(16), 4, "patterns"))
def test_no_pattern_takes_the_square_of_a_text(part: int) -> None:
    """A client that sends 1 MiB of one of these texts would hold the event loop for hours."""
    assert len(patterns()) > 100
    asked = sorted(patterns().items())[part::16]
    found = {name: slow(*one) for name, one in asked if name not in BOUNDED}
    assert {name: each for name, each in found.items() if each} == {}


def test_what_is_said_to_be_bounded_is_a_pattern() -> None:
    assert patterns().keys() >= BOUNDED.keys()
