"""The limits of decoding one body, passed to every step of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _on() -> None:
    """Does nothing: no caller wants an end."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits; sizes are bytes."""

    text_bytes: int
    """The text of the batch."""
    meta_bytes: int = 16 << 20
    """What its records carry beside the text, as it is encoded for the journal."""
    go_on: Callable[[], None] = _on
    """Called between pieces, each of a few milliseconds; what it raises ends the decoding."""
