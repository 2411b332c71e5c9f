r"""Values of the configuration: durations, sizes, regular expressions.

Durations are written as Go writes them (`200ms`, `1m30s`), and with `d` for days; a number without
a unit is refused but for 0. They are held as seconds. Sizes are bytes, also as `16KiB` or `1MiB`.

Regular expressions are those of RE2, as OpenTelemetry's. `\Z` is accepted for `\z`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, PlainSerializer

from tailrace.logstore.patterns import LinearRegex

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmg]i?|)b?\s*", re.IGNORECASE)
_END = re.compile(r"(?<!\\)((?:\\\\)*)\\Z")


class ConfigSection(BaseModel):
    """A part of the configuration: nothing in it changes, and unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True
    )


def parse_duration(value: object) -> float:
    """Seconds. Raises `ValueError` with what a duration looks like."""
    if isinstance(value, str) and value.strip() == "0":
        value = 0
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
        return 0.0
    if isinstance(value, str) and _DURATION.fullmatch(text := value.strip()):
        return sum(float(part[1]) * _SECONDS[part[2]] for part in _PART.finditer(text))
    raise ValueError("a duration has a unit, such as 200ms, 30s, 1m30s or 7d")


def format_duration(seconds: float) -> str:
    """As it is written in the configuration, in the largest unit that divides it."""
    for unit in ("d", "h", "m", "s", "ms"):
        number = seconds / _SECONDS[unit]
        if number >= 1 and abs(number - round(number)) < 1e-9:
            return f"{round(number)}{unit}"
    return f"{seconds:g}s" if seconds else "0"


def parse_size(value: object) -> int:
    """Bytes. Raises `ValueError` with what a size looks like."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("a size is a number of bytes, such as 1000, 16KiB or 1MiB")
    return round(float(found[1]) * _UNITS[found[2].lower()])


def format_size(size: int) -> str:
    """As it is written in the configuration."""
    for unit in ("Gi", "Mi", "Ki"):
        if size >= _UNITS[unit.lower()] and size % _UNITS[unit.lower()] == 0:
            return f"{size // _UNITS[unit.lower()]}{unit}B"
    return str(size)


def compile_regex(value: object) -> LinearRegex:
    """A regular expression. Raises `ValueError` with the reason if it cannot be read."""
    if isinstance(value, LinearRegex):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("a regular expression is a text that is not empty")
    return LinearRegex(_END.sub(r"\1\\z", value))


def _text(value: object) -> object:
    """Numbers and truths that YAML made of an attribute's value are texts again."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Duration = Annotated[
    float, BeforeValidator(parse_duration), PlainSerializer(format_duration, when_used="json")
]
Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, when_used="json")]
Regex = Annotated[
    InstanceOf[LinearRegex],
    BeforeValidator(compile_regex),
    PlainSerializer(lambda pattern: pattern.pattern, return_type=str, when_used="json"),
]
Text = Annotated[str, BeforeValidator(_text)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_listed)]


def key(default: Any, description: str, *, otel: str = "", **limits: Any) -> Any:
    """A key of the configuration; `otel` says how it differs from OpenTelemetry's."""
    return Field(default, description=description, json_schema_extra={"otel": otel}, **limits)
