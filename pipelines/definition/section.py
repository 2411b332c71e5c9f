"""Sections of a pipeline's file: frozen models whose fields have a default and a description."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from logstore.settings import Bytes, BytesOrZero, Section

__all__ = ["Bytes", "BytesOrZero", "Seconds", "Section", "Texts", "key"]

_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)\s*")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def key(default: Any, description: str, **limits: Any) -> Any:
    """A field of a section."""
    return Field(default, description=description, **limits)


def _seconds(value: object) -> object:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, str) and found is None:
        raise ValueError("must be a time with its unit, such as 500ms, 30s, 10m, 6h or 7d")
    return float(found[1]) * _UNITS[found[2]] if found else value


def _texts(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0)]
"""A duration; a plain number is seconds."""
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
"""A text, or a list of texts."""
