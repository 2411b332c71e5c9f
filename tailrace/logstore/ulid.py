"""ULIDs: batch ids, line ids and how a node mints them.

A ULID is 128 bits: 48 bits of milliseconds since the epoch, 80 bits that make it
unique, written as 26 characters of Crockford's base 32 (github.com/ulid/spec).
Here it is an `int`, so that ULIDs are ordered as numbers.

    | 48 bits time (ms) | 55 bits of the batch | 25 bits: line number in the batch |

A **batch** id has its low 25 bits zero: its text ends in `00000`. Line `i` of a
batch has the batch's id plus `i`, for `i < MAX_LINES`.

A deletion may take effect up to a moment to come. Batches that follow it need ids above that
moment. These have another layout below the milliseconds (`after_deletion`):

    | 48 bits time: 1 ms above the deletion | 24 bits made | 31 bits of the batch | 25 bits |

`made` is 2^24 - 1 minus the milliseconds by which the id is ahead of the clock. Such ids therefore
rise with the clock, and `made_ms` says when one was made.

`parse` reads the ULIDs of others, as a `ULID` of python-ulid. Inside, a ULID is a number:
`encode` and `decode` write and read our own texts, in half the time or less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import InvalidInput

if TYPE_CHECKING:
    from ulid import ULID

LINE_BITS = 25
MAX_LINES = 1 << LINE_BITS
LINE_MASK = MAX_LINES - 1
RANDOM_BITS = 80
MAX_TIME_MS = (1 << 48) - 1
STEP_BITS = 40
MADE_BITS = 24
MADE_SHIFT = RANDOM_BITS - MADE_BITS
MOST_AHEAD_MS = (1 << MADE_BITS) - 1
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

_DIGITS = {c: i for i, c in enumerate(ALPHABET)} | {c.lower(): i for i, c in enumerate(ALPHABET)}
# Two characters are ten bits: 13 look-ups instead of 26.
_PAIRS = [a + b for a in ALPHABET for b in ALPHABET]


def encode(ulid: int) -> str:
    """The 26 characters of a ULID."""
    pairs = _PAIRS
    return "".join([pairs[(ulid >> shift) & 1023] for shift in range(120, -1, -10)])


def encode_many(first: int, count: int) -> list[str]:
    """The texts of `count` consecutive ULIDs, from `first` on."""
    pairs, texts, head = _PAIRS, [], ""
    for ulid in range(first, first + count):
        low = ulid & 1023
        if not low or not head:
            head = encode(ulid)[:24]
        texts.append(head + pairs[low])
    return texts


def parse(text: str) -> ULID:
    """Parses a ULID from outside. Raises `InvalidInput` that says what is wrong with it."""
    from ulid import ULID  # most programs read none

    try:
        return ULID.from_str(text)
    except ValueError:
        decode(text)  # raises, and names what is wrong
        raise


def decode(text: str) -> int:
    """The number of a ULID that we wrote. Raises `InvalidInput` if it is invalid."""
    if len(text) != 26:
        raise InvalidInput(f"a ULID has 26 characters, this has {len(text)}", field="ulid")
    value = 0
    for character in text:
        digit = _DIGITS.get(character)
        if digit is None:
            raise InvalidInput(f"{character!r} is not a character of a ULID", field="ulid")
        value = value << 5 | digit
    if value >> 128:
        raise InvalidInput("a ULID's first character is at most 7", field="ulid")
    return value


def time_ms(ulid: int) -> int:
    """The time of the ULID, in milliseconds since the epoch."""
    return ulid >> RANDOM_BITS


def lowest_at(milliseconds: int) -> int:
    """The lowest ULID of a millisecond; times outside 48 bits are clamped."""
    return min(max(milliseconds, 0), MAX_TIME_MS) << RANDOM_BITS


def highest_at(milliseconds: int) -> int:
    """The highest ULID of a millisecond; times outside 48 bits are clamped."""
    return lowest_at(milliseconds) | ((1 << RANDOM_BITS) - 1)


def batch_of(ulid: int) -> int:
    """The id of the batch that a line belongs to."""
    return ulid & ~LINE_MASK


def after_deletion(deleted: int, now_ms: int, getrandbits: Callable[[int], int]) -> int:
    """A batch id in the first millisecond above `deleted`, a ULID that is ahead of the clock."""
    time = time_ms(deleted) + 1
    made = MOST_AHEAD_MS - min(max(time - now_ms, 0), MOST_AHEAD_MS)
    tail = getrandbits(MADE_SHIFT - LINE_BITS) << LINE_BITS
    return time << RANDOM_BITS | made << MADE_SHIFT | tail


def made_ms(ulid: int) -> int:
    """When an id of `after_deletion` was made, in milliseconds since the epoch."""
    return time_ms(ulid) - MOST_AHEAD_MS + (ulid >> MADE_SHIFT & MOST_AHEAD_MS)


def fresh(clock: Clock, entropy: Entropy) -> int:
    """A ULID of the present time with 80 random bits: for files and versions, not for batches."""
    return lowest_at(clock.now_ms()) | entropy.getrandbits(RANDOM_BITS)


def fresh_text(clock: Clock, entropy: Entropy) -> str:
    """The 26 characters of a `fresh` ULID."""
    return encode(fresh(clock, entropy))


class Minter:
    """Mints batch ids, each above every one that it took from the clock before.

    While the clock leads, an id is the time with fresh random bits. When it does not
    (same millisecond, a step back), it is the last one plus a random step of 1 to 2^40 batch
    ids: never plus one, so that two nodes that continue from the same id do not mint the same one.

    A run may need a higher id: a client named or echoed one that is ahead of the clock, or a
    deletion is. Only that run gets it; `last`, by which all other runs go, does not move.
    """

    def __init__(self, clock: Clock, entropy: Entropy, *, last: int = 0) -> None:
        self._now_ms: Callable[[], int] = clock.now_ms
        self._bits: Callable[[int], int] = entropy.getrandbits
        self.last = batch_of(last)

    def mint(self, above: int = 0, *, deleted: int = 0) -> int:
        """A batch id above the run's ids `above`, its deletion, and all earlier ones."""
        now = self._now_ms()
        if now > self.last >> RANDOM_BITS:
            minted = now << RANDOM_BITS | self._bits(RANDOM_BITS - LINE_BITS) << LINE_BITS
        else:
            minted = self.last + self._step()
        self.last = minted
        if minted <= deleted:
            minted = after_deletion(deleted, now, self._bits)
        return minted if minted > above else batch_of(above) + self._step()

    def _step(self) -> int:
        return (self._bits(STEP_BITS) + 1) << LINE_BITS
