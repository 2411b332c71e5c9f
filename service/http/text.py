"""Text as lines: valid UTF-8 that ends with a newline, and what had to be replaced.

A byte order mark at the start is no text and is left out. UTF-16 that was not declared is refused.
Bytes that are not UTF-8, and surrogates without their other half (JSON can write
them), become U+FFFD and are counted. `\\r`, NUL and empty lines stay as they are.
"""

from __future__ import annotations

import codecs

import numpy as np

from logstore.errors import InvalidInput

_LONG = 2048
# Text is looked at in pieces: a step of this size holds the interpreter's lock for a millisecond.
_PIECE = 1 << 20
_LEAD = 0xC0
_HEAD = 64  # bytes at the start in which UTF-16 is recognised
_MARKED_HEAD = 4 << 10  # with a mark: also text that is mostly not ASCII has a space or a newline
_FEWEST = 4
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_REPLACEMENT_BYTES = _REPLACEMENT.encode()


def as_lines(raw: bytes) -> tuple[bytes, int]:
    """`raw` as whole lines, and how many characters were replaced."""
    replaced = 0
    if not raw.isascii():
        raw, replaced = valid_utf8(raw)
    return (raw if raw.endswith(b"\n") or not raw else raw + b"\n"), replaced


def without_mark(raw: bytes, field: str) -> bytes:
    """Text in UTF-8 without a byte order mark. Raises `InvalidInput` if it is UTF-16."""
    if raw.startswith(codecs.BOM_UTF8):
        return raw[len(codecs.BOM_UTF8) :]
    marked = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if (marked and 0 in raw[:_MARKED_HEAD]) or _has_nul_pairs(raw):
        raise InvalidInput(
            "the text is UTF-16, which the request does not declare",
            field=field,
            hint="Send UTF-8, or name the charset: `text/plain; charset=utf-16le`. For a file of a"
            " forwarder, set `encoding: utf-16le` or `utf-16be`.",
        )
    return raw


def _has_nul_pairs(raw: bytes) -> bool:
    """Whether one byte of each pair is NUL at the start, as in UTF-16 of ASCII characters."""
    head = raw[:_HEAD]
    if len(head) < _FEWEST or 0 not in head:
        return False
    high, low = head[0::2], head[1::2]
    return (any(high) and not any(low) and 0 not in high) or (
        any(low) and not any(high) and 0 not in low
    )


def count_lines(text: bytes) -> int:
    """The number of newlines. `bytes.count` calls the C library for each.

    NumPy compares 64 bytes at once.
    """
    if len(text) < _LONG:
        return text.count(b"\n")
    held = np.frombuffer(text, dtype=np.uint8)
    if len(text) <= _PIECE:
        return int(np.count_nonzero(held == ord("\n")))
    return sum(
        int(np.count_nonzero(held[start : start + _PIECE] == ord("\n")))
        for start in range(0, len(text), _PIECE)
    )


def valid_utf8(raw: bytes) -> tuple[bytes, int]:
    """`raw` if it is UTF-8, else with U+FFFD for invalid bytes, and the number of those."""
    if len(raw) <= _PIECE:
        return _valid_piece(raw)
    fixed: list[bytes] = []
    at = replaced = 0
    while at < len(raw):
        end = whole_before(raw, min(at + _PIECE, len(raw)))
        piece, more = _valid_piece(raw[at:end])
        fixed.append(piece)
        replaced += more
        at = end
    return (b"".join(fixed) if replaced else raw), replaced


def whole_before(raw: bytes, stop: int) -> int:
    """`stop`, or up to three bytes before it, where no character of UTF-8 is split."""
    if stop < len(raw):
        for at in range(stop - 1, max(stop - 4, 0), -1):
            if raw[at] >= _LEAD:
                return at
    return stop


def _valid_piece(raw: bytes) -> tuple[bytes, int]:
    try:
        raw.decode()
    except UnicodeDecodeError:
        fixed = raw.decode("utf-8", "replace").encode()
        return fixed, fixed.count(_REPLACEMENT_BYTES) - raw.count(_REPLACEMENT_BYTES)
    return raw, 0


def encode_text(text: str) -> tuple[bytes, int]:
    """UTF-8 of a string that may hold lone surrogates, and the number of those replaced."""
    try:
        return text.encode(), 0
    except UnicodeEncodeError:
        # UTF-16 joins the halves of a pair; what stays alone is replaced on the way back.
        fixed = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return fixed.encode(), fixed.count(_REPLACEMENT) - text.count(_REPLACEMENT)


def shown(text: bytes) -> str:
    """A run's text as a string; also an unchecked text that OpenMetadata wrote."""
    return text.decode("utf-8", "replace")
