"""logback's loggers, levels and additivity as the key `loggers` of each appender's filter.

An event of a logger has the level of the nearest logger above it that has one, and goes to the
appenders of all loggers above it, up to the first that is not additive. For one appender that is
a level for each logger: the level that counts there, or OFF where its events do not reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from logstore.segments.schema import LEVELS
from pipelines.logback.document import Element

ROOT: Final = ""
_DEFAULT: Final = "DEBUG"


@dataclass(frozen=True, slots=True)
class Logger:
    """A configured logger; `level` None: as the one above it."""

    name: str
    level: str | None
    additive: bool
    appenders: tuple[str, ...]


def loggers_of(
    configuration: Element, text: Callable[[str], str], say: Callable[[int, str], None]
) -> Mapping[str, Logger]:
    """The loggers by their names; the root is there in any case."""
    found = {ROOT: Logger(ROOT, _DEFAULT, True, ())}
    for one in configuration.all("logger", "root"):
        name = ROOT if one.tag == "root" else text(one.attributes.get("name", ""))
        if name.upper() == "ROOT":
            name = ROOT
        named = one.attributes.get("level")
        for child in one.children:
            if child.tag == "level":
                named = child.attributes.get("value", named)
            elif child.tag != "appender-ref":
                say(child.line, f"<{child.tag}> of a logger has no counterpart")
        refs = tuple(text(ref.attributes.get("ref", "")) for ref in one.all("appender-ref"))
        additive = one.attributes.get("additivity", "true").lower() != "false"
        found[name] = Logger(name, _level(text(named or ""), one.line, say), additive, refs)
    if found[ROOT].level is None:
        found[ROOT] = Logger(ROOT, _DEFAULT, True, found[ROOT].appenders)
    return found


def _level(text: str, line: int, say: Callable[[int, str], None]) -> str | None:
    level = text.upper()
    if level in ("", "INHERITED", "NULL"):
        return None
    if level not in ("ALL", "OFF", *LEVELS):
        say(line, f"the level {text!r} is not known")
        return None
    return level


def thresholds(appender: str, loggers: Mapping[str, Logger]) -> dict[str, str]:
    """For each logger that says something else than those above it, the lowest level, or OFF."""
    levels = {name: _threshold(appender, name, loggers) for name in loggers}
    found = {}
    for name in sorted(loggers):
        above = next((one for one in _above(name) if one in levels), None)
        if name == ROOT or above is None or levels[above] != levels[name]:
            found[name] = levels[name]
    return found


def _threshold(appender: str, name: str, loggers: Mapping[str, Logger]) -> str:
    lines = [loggers[one] for one in (name, *_above(name)) if one in loggers]
    level = next((one.level for one in lines if one.level is not None), _DEFAULT)
    for one in lines:
        if appender in one.appenders:
            return level
        if not one.additive:
            break
    return "OFF"


def _above(name: str) -> Iterable[str]:
    """The loggers above one, the nearest first, and the root."""
    while name:
        name = name.rpartition(".")[0]
        yield name
