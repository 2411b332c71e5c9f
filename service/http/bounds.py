"""What decoding one body may cost, handed down to every step of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _on() -> None:
    """Nobody asks for an end."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sizes are bytes."""

    text_bytes: int
    """The text of the batch."""
    meta_bytes: int = 16 << 20
    """What its records carry beside the text, as it is encoded for the journal."""
    go_on: Callable[[], None] = _on
    """Called between pieces, each of a few milliseconds; what it raises ends the decoding."""
