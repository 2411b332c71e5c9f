"""Records in the format of the service, one JSON object per line, and batch ids.

{"message": "…", "ts": <epoch seconds>, "level": "…", "attributes": {"name": "text", …}}
"""

from __future__ import annotations

import json
import re
import threading
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, Callable, Iterable, Mapping, Match, NamedTuple, Optional

from tailrace_client import system

MOST_MESSAGE_BYTES = 1 << 20
"""A longer message is cut, with a note at its end."""
_MOST_ATTRIBUTES = 64
_MOST_HEADER = 4 << 10  # the service takes twice that, but common proxies not so much
_MOST_ATTRIBUTE = 8 << 10
_MOST_LEVEL = 32
_SHORT = 1 << 10
_HALF = re.compile(
    r"\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|(?P<half>\\ud[89a-f][0-9a-f]{2})"
)
_YEAR_10000 = 253_402_300_799


def encode_record(
    message: str,
    *,
    ts: Optional[float] = None,
    level: Optional[str] = None,
    attributes: Optional[Mapping[str, Any]] = None,
) -> bytes:
    """One record as a line of JSON; `ts` is in seconds since 1970.

    Values that are no text become JSON, or what `repr` says of them. What is too long is cut.
    """
    # By hand: a fifth of the time of `json.dumps`.
    parts = [f'{{"message":{_quoted(_cut(message, MOST_MESSAGE_BYTES))}']
    if ts is not None and 0 <= ts < _YEAR_10000:
        parts.append(f',"ts":{ts:.6f}')
    if level:
        parts.append(f',"level":{_quoted(level[:_MOST_LEVEL])}')
    if attributes:
        some = list(attributes.items())[:_MOST_ATTRIBUTES]
        pairs = [f"{_quoted(str(key)[:_SHORT])}:{_quoted(_text(value))}" for key, value in some]
        parts.append(f',"attributes":{{{",".join(pairs)}}}')
    line = f"{''.join(parts)}}}\n"
    if "\\ud" in line:  # half of a surrogate pair is no text, and the service refuses it
        line = _HALF.sub(_whole_or_replaced, line)
    return line.encode("ascii")


def _whole_or_replaced(found: Match[str]) -> str:
    """Keeps backslashes and whole pairs; half a pair becomes U+FFFD."""
    return "\\ufffd" if found.lastgroup == "half" else found.group()


def attributes_header(attributes: Mapping[str, str]) -> Optional[str]:
    """The value of `Tailrace-Attributes`, by which lines of text have attributes.

    None for more than 64 or more than 4 KiB: then they go with each record.
    """
    value = json.dumps(dict(attributes), separators=(",", ":"))
    if len(attributes) > _MOST_ATTRIBUTES or len(value) > _MOST_HEADER:
        return None
    return _HALF.sub(_whole_or_replaced, value) if "\\ud" in value else value


def records_of(text: bytes, attributes: str) -> bytes:
    """Lines as records that each have these attributes, as `attributes_header` has them."""
    tail = f',"attributes":{attributes}}}'
    lines = text.decode("utf-8", "replace").split("\n")
    rows = [f'{{"message":{_quoted(line)}{tail}\n' for line in lines[: None if lines[-1] else -1]]
    return "".join(rows).encode("ascii")


class UniformLines(NamedTuple):
    """Text whose lines all have the same attributes; `attributes` as the header has them."""

    text: bytes
    attributes: str


def lines_of(records: bytes) -> Optional[UniformLines]:
    """Records of `encode_record` as lines of text; None if they have more than these can say.

    That is a time, a level, attributes that are not the same or too large, or several lines.
    """
    first, rest, _ = records.partition(b"\n")
    try:
        record = json.loads(first)
        shared = record.pop("attributes", None) or {}
        message = _quoted(record.pop("message"))
    except (ValueError, AttributeError, KeyError, TypeError):  # not of `encode_record`
        return None
    head, tail = b'{"message":', first[len(f'{{"message":{message}') :]
    header = attributes_header(shared) if shared else ""
    if record or not rest or header is None:
        return None
    rows = records.split(b"\n")
    if rows.pop() or not all(row.startswith(head) and row.endswith(tail) for row in rows):
        return None
    try:
        messages = json.loads(
            b"[%b]" % b",".join([row[len(head) : len(row) - len(tail)] for row in rows])
        )
        text = "".join([message + "\n" for message in messages])
        body = text.encode()
    except (ValueError, TypeError):  # a record has more than its message before the attributes
        return None
    return UniformLines(body, header) if len(messages) == len(rows) == text.count("\n") else None


def encode_records(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Records that the caller made, as they are. Raises `ValueError`, `TypeError`."""
    lines = []
    for record in records:
        if not isinstance(record.get("message"), str):
            raise TypeError("a record has no `message` that is text")
        lines.append(json.dumps(record, separators=(",", ":"), allow_nan=False).encode())
    return b"\n".join([*lines, b""]) if lines else b""


def dropped_record(count: int, why: str, since: float, until: float) -> bytes:
    """The record that stands in a run for records that it does not have."""
    return encode_record(
        f"tailrace-client dropped {count} record{'' if count == 1 else 's'} here: {why}",
        ts=until,
        level="WARN",
        attributes={"tailrace_client.dropped": count, "tailrace_client.dropped_since": since},
    )


def _cut(text: str, most: int) -> str:
    if len(text) * 4 <= most:
        return text
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= most:
        return text
    kept = raw[:most].decode("utf-8", "ignore")
    return f"{kept}… [{len(raw) - most} bytes cut]"


def _text(value: object) -> str:
    if isinstance(value, str):
        return _cut(value, _MOST_ATTRIBUTE)
    if type(value) is int:
        return str(value)
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return _cut(text, _MOST_ATTRIBUTE)


# Batch ids: ULIDs whose last five characters are `00000`, each above the one before.
#
#   | 48 bits time (ms) | 55 random bits | 25 bits: zero; the service numbers lines in them |
#
# A batch id names its bytes for ever. A client that sends the same bytes under the same id again
# gets the same answer, and the service stores them once.


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
