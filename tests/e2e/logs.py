"""Logs to post: the real ones where they are at hand, else made ones of the same kind."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

_DEFAULT = Path(__file__).parents[2].parent / "shared" / "data" / "loghub"
_SYSTEMS = 13
_LINES = 2000


def demo_logs() -> Iterator[tuple[str, bytes]]:
    """Names and contents of thirteen logs."""
    folder = Path(os.environ.get("TAILRACE_CORPUS", _DEFAULT))
    real = sorted(folder.glob("*.log")) if folder.is_dir() else []
    if real:
        for path in real:
            yield path.stem, path.read_bytes()
        return
    for number in range(_SYSTEMS):
        yield f"made-{number}", made_log(number)


def made_log(seed: int, lines: int = _LINES) -> bytes:
    """A log with levels, times, tracebacks, odd bytes and carriage returns."""
    dice = random.Random(seed)
    made = []
    for i in range(lines):
        kind = dice.randrange(20)
        if kind == 0:
            made.append(b"Traceback (most recent call last):\r")
        elif kind == 1:
            made.append(b"")
        elif kind == 2:
            made.append("  caf\u00e9 \U0001f600 ".encode() + bytes([0xFF, 0xFE]))
        else:
            level = dice.choice(["DEBUG", "INFO", "WARN", "ERROR"])
            stamp = f"2026-01-{dice.randrange(1, 28):02d} 10:00:{i % 60:02d}"
            made.append(f"[{stamp}] {level} {{app:mod:{i}}} - {dice.random()}".encode())
    return b"\n".join(made)
