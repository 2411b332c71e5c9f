"""Decodes text and splits it into units: lines, units of a pattern, or blocks of a size.

A unit that is longer than `max_log_size` is cut. If its end has not arrived yet, its first pieces
are units all the same, and the rest goes on `inside` of it: no entry needs more memory than one
piece. `Codec` decodes bytes, and `Cutter` cuts long units.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import orjson

from tailrace.logstore.patterns import LinearRegex
from tailrace_client.unfinished import finished, last_state

# Encodings of files: bytes to text in which every character can be mapped to its bytes.
#
# Decoded text keeps invalid bytes as lone surrogates, so that the bytes of any part of it can be
# counted. `clean` makes U+FFFD of them, one for each byte that was wrong.


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


class DecodedText(NamedTuple):
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
            raise ValueError(f"{encoding!r} is not a known encoding") from None
        self.name = found.name
        if not found._is_text_encoding or self.name in _REFUSED:
            raise ValueError(f"{encoding!r} is not an encoding of log files; use utf-8 or utf-16le")
        self.utf8 = self.name == "utf-8"
        self.mark = _MARKS.get(self.name, b"")
        """The byte order mark with which a file may begin."""
        self._unit = 2 if self.name.startswith("utf-16") else 1
        self._errors = "surrogatepass" if self._unit == 2 else "surrogateescape"
        self._incremental = codecs.getincrementaldecoder(self.name)
        self._narrow = self.utf8
        """Whether bytes below 0x80 are characters of one byte, which are the same in the text."""

    def decode(self, data: bytes, offset: int, *, final: bool) -> DecodedText:
        """Decodes `data`, which begins at `offset` of the file; `final`: no bytes follow it."""
        if self._narrow and data.isascii():
            return DecodedText(data.decode("ascii"), 0, 0)
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
        return DecodedText(text, lead, pending)

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
    """The text with U+FFFD for invalid bytes, and the number of those."""
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


# Lines that are overwritten from their beginning (`\r`), such as progress bars: the last state.
#
# The rule is that of `tailrace run` (`tailrace_client.unfinished`): of a line that was overwritten,
# the text after the last carriage return that is followed by text is stored; any other line is
# stored unchanged.


_PART_FIELDS = 4
_PART = b"P"
_STREAMS = (b"stdout", b"stderr")


class Rest(NamedTuple):
    """The bytes after the last whole entry."""

    held: int = 0
    """How many of them are whole lines, of an entry that may go on."""
    unfinished: bool = False
    """Whether a line without an end is behind those."""
    shown: bytes = b""
    """What that looks like."""


NO_REST = Rest()


def last_begin(text: str, begin: int, end: int) -> int:
    """Where the last state of the line `text[begin:end]` begins."""
    while end > begin and text[end - 1] == "\r":
        end -= 1
    return text.rfind("\r", begin, end) + 1 or begin


def last_states(text: str) -> str:
    """The text with the last state of each of its lines."""
    if "\r" not in text:
        return text
    return "\n".join([line[last_begin(line, 0, len(line)) :] for line in text.split("\n")])


def last_states_of(block: bytes) -> bytes:
    """The same of bytes in which a newline is one byte."""
    if block.count(b"\r") == block.count(b"\r\n"):
        return block
    return b"\n".join([finished(line) for line in block.split(b"\n")])


def rest_of_lines(data: bytes) -> Rest:
    """The rest of bytes in which a newline is one byte."""
    held = data.rfind(b"\n") + 1
    return Rest(held, held < len(data), _seen(data[held:]))


def rest_of_parts(data: bytes) -> Rest:
    """The rest of a container's lines: the parts of a line whose last one is not there."""
    *lines, broken = data.split(b"\n")
    held, parts = len(data) - len(broken), list[_LinePart]()
    for line in reversed(lines):
        part = _part_of(line)
        if part is None or (parts and part.stream != parts[0].stream):
            break
        parts.append(part)
        held -= len(line) + 1
    shown = _seen(b"".join([part.text for part in reversed(parts)]))
    return Rest(held, bool(parts or broken), shown)


def _seen(line: bytes) -> bytes:
    state = last_state(line)
    return state if state.strip() else b""


def overwritten_parts(data: bytes, least: int) -> int:
    """The number of first bytes that are parts of a line with no visible text any more.

    0 if they are fewer than `least`.
    """
    at = seen = 0
    stream = b""
    while (end := data.find(b"\n", at) + 1) and (part := _part_of(data[at : end - 1])) is not None:
        if part.stream != (stream or part.stream):
            break
        stream = part.stream
        if b"\r" in part.text.rstrip(b"\r"):
            seen = at
        at = end
    return seen if seen >= least else 0


class _LinePart(NamedTuple):
    """A part of a line that goes on in the next one of its stream."""

    stream: bytes
    text: bytes


def _part_of(line: bytes) -> _LinePart | None:
    """A part of a container's line; None for any other line, and for the last part of one."""
    if line.startswith(b"{"):
        return _docker_part(line)
    fields = line.split(b" ", _PART_FIELDS - 1)
    if len(fields) < _PART_FIELDS or fields[1] not in _STREAMS or fields[2][:1] != _PART:
        return None
    return _LinePart(fields[1], fields[3])


def _docker_part(line: bytes) -> _LinePart | None:
    """A line of Docker's JSON whose text has no newline at its end."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        return None
    text, stream = value.get("log"), value.get("stream")
    if not isinstance(text, str) or not isinstance(stream, str) or text.endswith("\n"):
        return None
    return _LinePart(stream.encode(), text.encode())


_OVERWRITTEN = 64 << 10
"""So many characters of states that are not seen any more are passed over at once."""
Bounds = tuple[int, int, int]
"""Begin and end of the content, and where the next unit begins; indices of characters."""
Splitter = Callable[[str, bool], Iterator[Bounds]]


class Units(NamedTuple):
    """The units of a text: the text of each, and the index of the character after each.

    `marks` has those that are no whole unit, by their number.
    """

    texts: list[str]
    nexts: list[int]
    marks: dict[int, Unit]


class Unit(NamedTuple):
    """A unit, or a piece of one; indices of characters."""

    begin: int
    end: int
    next: int
    inside: int = 0
    """Pieces of the unit up to `next`, if it goes on there."""
    part: int = 0
    """Which piece it is, from 2; 0: a whole unit, or the first piece of one."""
    truncated: bool = False
    dropped: bool = False
    """It is what was cut off: no record."""


def lines(text: str, final: bool) -> Iterator[Bounds]:
    """What newlines end; one carriage return before a newline belongs to it."""
    at = 0
    while (end := text.find("\n", at)) >= 0:
        yield at, end - (end > at and text[end - 1] == "\r"), end + 1
        at = end + 1
    if final and at < len(text):
        yield at, len(text), len(text)


def started(pattern: LinearRegex, *, omit: bool) -> Splitter:
    """Units that begin at each match of the pattern; the text before the first match is one too."""
    spans = LinearRegex(pattern.pattern, multiline=True).spans

    def split(text: str, final: bool) -> Iterator[Bounds]:
        at = behind = 0
        began = False  # whether the unit at `at` begins with a match, that ends at `behind`
        for begin, end in spans(text):
            if not final and end == len(text):
                break  # it may match otherwise when more is there
            if began and begin <= behind:
                continue
            if begin > at:
                yield behind if omit else at, begin, begin
            at, behind, began = begin, end, True
        if final and at < len(text):
            yield behind if omit else at, len(text), len(text)

    return split


def ended(pattern: LinearRegex, *, omit: bool) -> Splitter:
    """Units that end after each match of the pattern."""
    spans = LinearRegex(pattern.pattern, multiline=True).spans

    def split(text: str, final: bool) -> Iterator[Bounds]:
        at = 0
        for begin, end in spans(text):
            if not final and end == len(text):
                break
            if end > at:
                yield at, max(begin, at) if omit else end, end
                at = end
        if final and at < len(text):
            yield at, len(text), len(text)

    return split


def whole(text: str, final: bool) -> Iterator[Bounds]:
    """All that is there, to be cut into blocks."""
    if final and text:
        yield 0, len(text), len(text)


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts units longer than `most` bytes into pieces, or leaves the rest of them out.

    A reader of only the first piece cannot know whether more follow, so the first piece has no
    mark; the later pieces have a number.
    """

    codec: Codec
    most: int
    truncate: bool = False
    blocks: bool = False
    """Each piece is a unit of its own: a file without lines."""
    rejoins: bool = False
    """Units are lines: one that was sent before its newline came goes on as a piece of it."""
    last_states: bool = False
    """Units are lines, of which the last state counts: what was overwritten needs no piece."""

    def cut(self, split: Splitter, text: str, final: bool, inside: int) -> Units:
        """The units of a text that begins after `inside` pieces of one."""
        if split is lines and not inside and self._short_lines(text):
            return self._lines(text, final)
        texts: list[str] = []
        nexts: list[int] = []
        marks: dict[int, Unit] = {}
        for unit in self.units(split, text, final, inside):
            if unit.inside or unit.part or unit.truncated or unit.dropped:
                marks[len(texts)] = unit
            texts.append(text[unit.begin : unit.end])
            nexts.append(unit.next)
        return Units(texts, nexts, marks)

    def _short_lines(self, text: str) -> bool:
        """Whether no line, nor what is behind the last, is too long; it looks at few of them."""
        at, size, most = 0, len(text), self.most // 4
        while size - at > most:
            newline = text.rfind("\n", at, at + most + 1)
            if newline < 0:
                return False
            at = newline + 1
        return True

    def _lines(self, text: str, final: bool) -> Units:
        """The same of lines none of which is too long, by column."""
        texts = text.split("\n")
        rest = texts.pop()
        nexts = list(accumulate([len(one) + 1 for one in texts]))
        if "\r" in text:
            texts = [one[:-1] if one[-1:] == "\r" else one for one in texts]
        marks: dict[int, Unit] = {}
        if rest and final:
            if self.rejoins:
                marks[len(texts)] = Unit(len(text) - len(rest), len(text), len(text), inside=1)
            texts.append(rest)
            nexts.append(len(text))
        return Units(texts, nexts, marks)

    def units(self, split: Splitter, text: str, final: bool, inside: int) -> Iterator[Unit]:
        """The same, one by one."""
        at = 0
        for begin, end, following in split(text, final):
            longer = self._longer(text, begin, end)
            if longer and self.last_states:
                begin = last_begin(text, begin, end)  # noqa: PLW2901
                longer = self._longer(text, begin, end)
            if inside or longer:
                yield from self._pieces(text, begin, end, following, inside)
            else:
                yield Unit(begin, end, following, inside=int(self.rejoins and following == end))
            at, inside = following, 0
        if at < len(text) and not final:
            yield from self._unfinished(text, at, inside)

    def _longer(self, text: str, begin: int, end: int) -> bool:
        """Characters are at most four bytes, so that few are counted."""
        if end - begin > self.most:
            return True
        return (end - begin) * 4 > self.most and self.codec.size(text[begin:end]) > self.most

    def _pieces(
        self, text: str, begin: int, end: int, following: int, inside: int
    ) -> Iterator[Unit]:
        """The pieces of a unit whose end is there."""
        if begin == end or (inside and self.truncate):
            yield Unit(begin, end, following, dropped=True)  # what is behind the last piece
            return
        while begin < end:
            stop = begin + self.codec.cut(text[begin:end], self.most)
            if self.truncate:
                yield Unit(begin, stop, following, truncated=True)
                return
            last = stop == end and (following > end or not self.rejoins)
            yield self._piece(begin, stop, following if stop == end else stop, inside, ends=last)
            begin, inside = stop, inside + 1

    def _piece(self, begin: int, stop: int, following: int, inside: int, *, ends: bool) -> Unit:
        if self.blocks:
            return Unit(begin, stop, following)
        part = inside + 1 if inside else 0
        return Unit(begin, stop, following, inside=0 if ends else inside + 1, part=part)

    def _unfinished(self, text: str, at: int, inside: int) -> Iterator[Unit]:
        """Full pieces of a unit whose end is not there."""
        if inside and self.truncate:
            yield Unit(at, len(text), len(text), inside=1, dropped=True)
            return
        if self.last_states and (state := last_begin(text, at, len(text))) > at:
            if state - at < _OVERWRITTEN and not self._longer(text, at, len(text)):
                return
            if at == 0:  # a range of its own, without a record: it need not be made again
                yield Unit(state, state, state, inside=inside, dropped=True)
            return
        while self._longer(text, at, len(text)):
            stop = at + self.codec.cut(text[at:], self.most)
            if self.truncate:
                yield Unit(at, stop, len(text), inside=1, truncated=True)
                return
            yield self._piece(at, stop, stop, inside, ends=False)
            at, inside = stop, inside + 1
