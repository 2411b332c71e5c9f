"""Encodings of files: bytes to text whose every character knows its bytes again.

Text that is decoded here keeps what is no character as lone surrogates, so that the bytes of any
part of it can be counted. `clean` makes U+FFFD of them, one for each byte that was wrong.
"""

from __future__ import annotations

import codecs
from typing import NamedTuple

_ALIASES = {
    "nop": "utf-8",
    "utf-8-raw": "utf-8",
    "utf8-raw": "utf-8",
    "ascii": "utf-8",
    "us-ascii": "utf-8",
    "utf16": "utf-16-le",
    "utf-16": "utf-16-le",
    "utf16le": "utf-16-le",
    "utf-16le": "utf-16-le",
    "utf16be": "utf-16-be",
    "utf-16be": "utf-16-be",
}
# Codecs of Python that are no encodings of files, or whose files begin with a mark.
_REFUSED = {
    "idna",
    "punycode",
    "utf-7",
    "utf-32",
    "unicode_escape",
    "raw_unicode_escape",
    "undefined",
}
_MARKS = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
}
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Decoded(NamedTuple):
    """Text, the bytes of a split character before it, and those at the end that were not taken."""

    text: str
    lead: int
    pending: int


class Codec:
    """One encoding, by OpenTelemetry's or Python's name. Raises `ValueError` for an unknown one."""

    def __init__(self, encoding: str) -> None:
        name = encoding.lower()
        try:
            found = codecs.lookup(_ALIASES.get(name, name))
        except LookupError:
            raise ValueError(f"{encoding!r} is no encoding that is known") from None
        self.name = found.name
        if not found._is_text_encoding or self.name in _REFUSED:
            raise ValueError(f"{encoding!r} is no encoding of log files; use utf-8 or utf-16le")
        self.utf8 = self.name == "utf-8"
        self.mark = _MARKS.get(self.name, b"")
        """The byte order mark with which a file may begin."""
        self._unit = 2 if self.name.startswith("utf-16") else 1
        self._errors = "surrogatepass" if self._unit == 2 else "surrogateescape"
        self._incremental = codecs.getincrementaldecoder(self.name)
        self._narrow = self.utf8
        """Whether bytes below 0x80 are characters of one byte, which are the same in the text."""

    def decode(self, data: bytes, offset: int, *, final: bool) -> Decoded:
        """`data` that begins at `offset` of the file; `final`: nothing comes behind it."""
        if self._narrow and data.isascii():
            return Decoded(data.decode("ascii"), 0, 0)
        lead = min(offset % self._unit, len(data))
        decoder = self._incremental(self._errors)
        text = decoder.decode(data[lead:])
        pending = len(decoder.getstate()[0])
        if final and pending:
            tail = data[len(data) - pending :]
            if self._unit == 1:
                text += tail.decode(self.name, "surrogateescape")
                pending = 0
            else:
                text += _REPLACEMENT
        return Decoded(text, lead, pending)

    def size(self, text: str) -> int:
        """Bytes of decoded text."""
        if self._narrow and text.isascii():
            return len(text)
        return len(text.encode(self.name, self._errors))

    def cut(self, text: str, most: int) -> int:
        """How many of the characters are within `most` bytes; at least one."""
        if self._narrow and text.isascii():
            return max(min(most, len(text)), 1)
        raw = text.encode(self.name, self._errors)
        if len(raw) <= most:
            return len(text)
        return max(len(self._incremental(self._errors).decode(raw[:most])), 1)


def clean(text: str) -> tuple[str, int]:
    """The text with U+FFFD for what is no character, and the number of those."""
    try:
        text.encode()
    except UnicodeEncodeError:
        fixed = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return fixed, fixed.count(_REPLACEMENT) - text.count(_REPLACEMENT)
    return text, 0


def clean_bytes(raw: bytes) -> tuple[bytes, int]:
    """UTF-8 with U+FFFD for each byte that is no part of a character, and the number of those."""
    if raw.isascii():
        return raw, 0
    try:
        raw.decode()
    except UnicodeDecodeError:
        text, replaced = clean(raw.decode("utf-8", "surrogateescape"))
        return text.encode(), replaced
    return raw, 0
