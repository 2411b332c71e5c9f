"""Levels of entries: OpenTelemetry's mapping of values to severities.

The record's level is the name of the severity in capitals without its number: `error3` is ERROR. A
value that is mapped to nothing leaves the level open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

NAMES: Final = ("trace", "debug", "info", "warn", "error", "fatal")
ALIASES: Final[Mapping[str, str]] = {
    f"{name}{number or ''}": name.upper() for name in NAMES for number in (0, 2, 3, 4)
}
_RANGES = {"2xx": (200, 299), "3xx": (300, 399), "4xx": (400, 499), "5xx": (500, 599)}
_WIDEST = 100_000


def level_mapping(preset: str, mapping: Mapping[str, Any]) -> dict[str, str]:
    """Levels by values in small letters. Raises `ValueError` for a severity that there is not."""
    found: dict[str, str] = {} if preset == "none" else dict(_preset(preset))
    for alias, values in mapping.items():
        level = ALIASES.get(str(alias).lower())
        if level is None and str(alias).lower() != "default":
            raise ValueError(f"{alias!r} is no severity; they are trace, debug, … to fatal4")
        for value in _values(values):
            found[value] = level or ""
    return found


def _preset(name: str) -> Iterator[tuple[str, str]]:
    yield from ALIASES.items()
    for number in range(1, 25):
        yield str(number), NAMES[(number - 1) // 4].upper()
    if name in ("", "default"):
        for suffix in ("", "2", "3", "4"):
            yield f"warning{suffix}", "WARN"
            yield f"err{suffix}", "ERROR"


def _values(said: Any) -> Iterator[str]:
    if isinstance(said, list | tuple):
        for one in said:
            yield from _values(one)
    elif isinstance(said, Mapping):
        low, high = said.get("min"), said.get("max")
        if type(low) is not int or type(high) is not int or abs(high - low) > _WIDEST:
            raise ValueError("a range has min and max, whole numbers that are not far apart")
        yield from map(str, range(min(low, high), max(low, high) + 1))
    elif said in _RANGES:
        low, high = _RANGES[said]
        yield from map(str, range(low, high + 1))
    else:
        yield str(said).lower()


def level_parser(levels: Mapping[str, str]) -> Callable[[Any], str | None]:
    """The level of a value; empty if it has none; None for what can be no severity."""

    def parse(value: Any) -> str | None:
        if isinstance(value, float) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, str | int):
            return None
        return levels.get(str(value).lower(), "")

    return parse
