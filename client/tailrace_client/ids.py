"""Batch ids: ULIDs whose last five characters are `00000`, each above the one before.

    | 48 bits time (ms) | 55 random bits | 25 bits: zero; the service numbers lines here |

A batch id names its bytes for ever. Whoever sends the same bytes under the same id again
gets the same answer, and the service stores them once.
"""

from __future__ import annotations

import threading
from typing import Callable

from tailrace_client import system

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LINE_BITS = 25
_RANDOM_BITS = 80
_STEP_BITS = 40
_SMALL_STEP_BITS = 20
_CHARACTERS = 26
_WRONG_MS = 60_000
_AHEAD_MS = 300_000


def encode(ulid: int) -> str:
    """The 26 characters of a ULID."""
    return "".join(_ALPHABET[(ulid >> shift) & 31] for shift in range(125, -1, -5))


def decode(text: str) -> int:
    """The number of a ULID. Raises `ValueError` for any other text."""
    if len(text) != _CHARACTERS:
        raise ValueError(f"a ULID has {_CHARACTERS} characters, this has {len(text)}")
    value = 0
    for character in text:
        value = value << 5 | _ALPHABET.index(character)
    return value


def is_batch_id(text: str) -> bool:
    """Whether a text is a batch id."""
    try:
        return decode(text) & ((1 << _LINE_BITS) - 1) == 0
    except ValueError:
        return False


def id_after(text: str) -> str:
    """A batch id a small step above this one."""
    step = (system.random_bits(_SMALL_STEP_BITS) + 1) << _LINE_BITS
    return encode((decode(text) >> _LINE_BITS << _LINE_BITS) + step)


def is_ahead(text: str, now_ms: int) -> bool:
    """Whether an id is so far ahead of the clock that the clock's error does not explain it."""
    return (decode(text) >> _RANDOM_BITS) - now_ms > _AHEAD_MS


class BatchIds:
    """Mints batch ids that rise, also when the clock stands still or steps back.

    In that case the next id is a random step above the last one, so that two processes that
    go on from the same id do not mint the same one. May be used by several threads.
    """

    def __init__(
        self,
        now_ms: Callable[[], int] = system.now_ms,
        random_bits: Callable[[int], int] = system.random_bits,
    ) -> None:
        self._now_ms = now_ms
        self._random_bits = random_bits
        self._lock = threading.Lock()
        self._last = 0
        self._ahead_ms = 0

    def mint(self) -> str:
        """A new batch id."""
        with self._lock:
            now = max(self._now_ms() - self._ahead_ms, 0)
            if now > self._last >> _RANDOM_BITS:
                tail = self._random_bits(_RANDOM_BITS - _LINE_BITS) << _LINE_BITS
                self._last = now << _RANDOM_BITS | tail
            else:
                self._last += (self._random_bits(_STEP_BITS) + 1) << _LINE_BITS
            return encode(self._last)

    def go_above(self, text: str) -> None:
        """Makes the following ids higher than this one."""
        with self._lock:
            self._last = max(self._last, decode(text) >> _LINE_BITS << _LINE_BITS)

    def correct(self, their_ms: int) -> None:
        """Goes by the service's clock from now on, if this machine's is minutes from it."""
        with self._lock:
            ahead = self._now_ms() - their_ms
            if abs(ahead) >= _WRONG_MS:
                self._ahead_ms = ahead
            if self._last >> _RANDOM_BITS > their_ms + _WRONG_MS:
                self._last = 0

    def after_fork(self) -> None:
        """In a forked child: a lock that the parent's threads do not hold."""
        self._lock = threading.Lock()
