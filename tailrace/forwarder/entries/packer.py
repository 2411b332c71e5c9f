"""Packs a range of a file's content into the body of a batch.

`EntryPacker.pack` is a pure function of source, file facts, start cursor and bytes. It finds where
a range may end, and makes the body of exactly that range: packing the range alone, with `final`,
gives the same body. So a batch can be made again from the file after any crash, and needs no copy.

If entries are lines of UTF-8 that share their attributes, whole blocks are packed at once. Anything
else is packed entry by entry: units of the decoded text, through the stages of the source.
`FastRows` packs units at once that no stage joins. `HeaderReader` reads the header of a file.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple, Protocol

import orjson

from tailrace.forwarder.config.source import Container, FileSource, Multiline
from tailrace.forwarder.entries import splitting
from tailrace.forwarder.entries.entry import Chain, Each, Entry, EntryEncoder, encode, message_of
from tailrace.forwarder.entries.multiline import Joiner, may_join, rule_of
from tailrace.forwarder.entries.splitting import (
    NO_REST,
    Codec,
    Cutter,
    Rest,
    Splitter,
    Unit,
    Units,
    clean,
    clean_bytes,
    last_states,
    last_states_of,
    lines,
    overwritten_parts,
    rest_of_lines,
    rest_of_parts,
)
from tailrace.forwarder.model import EntryCursor, FileFacts, Kind, Packed
from tailrace.forwarder.operators.build import StageMaker, is_container, stages_of
from tailrace.forwarder.operators.container import STREAM, pod_of, second_of
from tailrace_client.records import attributes_header

# Bodies of one-line entries that share attributes, made of blocks without a step per line.
#
# The body is the lines themselves, and their attributes are in the request's header. With
# attributes that are too large for that it is ndjson: the whole block is one string of JSON, in
# which a character that it does not have replaces the newlines, and then becomes the end of one
# record and the begin of the next.


BLANKS = b"\r\n\t "
"""What is trimmed, as OpenTelemetry does."""
# JSON leaves them as they are.
_MARKS = (b"\x7f", "\x80".encode(), "\x81".encode(), "\ue000".encode(), "\uffff".encode())


def longer_line(block: bytes, most: int) -> bool:
    """Whether a line has more than `most` bytes; it looks only at every `most`th byte or so."""
    at, size = 0, len(block)
    while size - at > most:
        newline = block.rfind(b"\n", at, at + most + 1)
        if newline < 0:
            return True
        at = newline + 1
    return False


def trimmed(block: bytes, *, leading: bool, trailing: bool) -> tuple[bytes, int]:
    """Each line without the white space around it, and the number of newlines.

    Of a line's end at least one `\\r` goes. Lines are counted on the way: that takes as long as to
    split them.
    """
    if not leading and not trailing:
        return block.replace(b"\r\n", b"\n"), block.count(b"\n")
    if _neat(block):
        return block, block.count(b"\n")
    lines = block.split(b"\n")
    if leading and trailing:
        return b"\n".join([line.strip(BLANKS) for line in lines]), len(lines) - 1
    if trailing:
        return b"\n".join([line.rstrip(BLANKS) for line in lines]), len(lines) - 1
    lines = block.replace(b"\r\n", b"\n").split(b"\n")
    return b"\n".join([line.lstrip(BLANKS) for line in lines]), len(lines) - 1


def _neat(block: bytes) -> bool:
    """Whether no line can have white space around it."""
    if b"\r" in block or b"\t" in block or block[:1] == b" " or block[-1:] == b" ":
        return False
    return b"\n " not in block and b" \n" not in block


def block_header(attributes: Mapping[str, str]) -> str | None:
    """As `Tailrace-Attributes` has them: empty for none; None if they are too large for it."""
    if not attributes:
        return ""
    named: dict[str, str] = orjson.loads(encode(dict(attributes)))  # as records would have them
    return attributes_header(named)


def record_body(block: bytes, attributes: Mapping[str, str]) -> tuple[bytes, int]:
    """Lines that each end with a newline, one at least, as records with these attributes."""
    lines, replaced = clean_bytes(block)
    head = b'{"attributes":%b,"message":"' % encode(dict(attributes))
    mark = next((one for one in _MARKS if one not in lines), None)
    if mark is None:
        rows = [
            b"%b%b}\n" % (head[:-1], orjson.dumps(row.decode())) for row in lines.split(b"\n")[:-1]
        ]
        return b"".join(rows), replaced
    joined = orjson.dumps(lines[:-1].replace(b"\n", mark).decode())
    return b"".join([head, joined[1:-1].replace(mark, b'"}\n' + head), b'"}\n']), replaced


def overhead(attributes: Mapping[str, str]) -> int:
    """Bytes of a record besides its message."""
    return len(encode(dict(attributes))) + 30 if attributes else 0


# The header of a file: lines at its begin that match a pattern, whose attributes all records get.
#
# Header lines are no records. The cursor has the read part of a header, so that reading goes on in
# its middle after a restart.


OPEN = ""
"""The name among the attributes that says: the header may go on."""


class HeaderReader:
    """Reads the header of files of one source."""

    def __init__(self, source: FileSource, codec: Codec) -> None:
        assert source.header is not None
        self._matches = source.header.pattern.search
        self._makers = stages_of(source.header.metadata_operators, max_log_size=source.max_log_size)
        self._codec = codec
        self._cutter = Cutter(codec, source.max_log_size)

    def goes_on(self, cursor: EntryCursor) -> bool:
        """Returns whether the bytes after the cursor may belong to the header."""
        return cursor.header is None or OPEN in cursor.header

    def read(self, data: bytes, start: EntryCursor, *, final: bool) -> EntryCursor | None:
        """The cursor after the header; None if its end is missing.

        `final`: no more data follows, so the header ends with it.
        """
        decoded = self._codec.decode(data, start.offset, final=final)
        text = decoded.text
        attributes = {name: value for name, value in (start.header or {}).items() if name}
        at = 0
        for unit in self._cutter.units(lines, text, False, 0):
            line = text[unit.begin : unit.end]
            if not self._matches(line):
                return self._behind(start, text[:at], decoded.lead, attributes)
            attributes.update(self._attributes(line))
            at = unit.next
        if not final:
            return None
        rest = text[at:]
        if rest and not self._matches(rest):
            return self._behind(start, text[:at], decoded.lead, attributes)
        attributes.update(self._attributes(rest) if rest else {})
        return replace(start, offset=start.offset + len(data), header={**attributes, OPEN: ""})

    def _behind(
        self, start: EntryCursor, text: str, lead: int, attributes: dict[str, str]
    ) -> EntryCursor:
        offset = start.offset + (lead if text else 0) + self._codec.size(text)
        return replace(start, offset=offset, header=attributes)

    def _attributes(self, line: str) -> dict[str, str]:
        chain = Chain([make(FileFacts("")) for make in self._makers])
        chain.feed(Entry(line, 0, 0))
        chain.flush()
        return {
            name: message_of(value)
            for entry in chain.entries
            for name, value in entry.attributes.items()
            if name
        }


# Records of units that nothing joins, some at a time: the same bytes as one by one.
#
# `FastRows.rows` looks at units from one on, at a moment when no stage holds an unfinished entry,
# and returns the records of as many units as it recognises by their form. The others go through the
# stages.


SOME = 512
"""Units that are looked at together."""
_MARK = "\x7f"
_CRI = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{1,9})Z (stdout|stderr) F(?: (.*))?", re.DOTALL
)


class FastRows(Protocol):
    """Makes records of units that are entries of their own."""

    def rows(self, texts: Sequence[str], at: int, encoder: EntryEncoder) -> list[bytes]:
        """Records of the units from `at` on, one of each; empty: the next one has another form."""


class FastLineRows:
    """Fast path for lines that cannot belong to a traceback, nor can the line after them."""

    def __init__(self, may_join: Callable[[str], bool], trim: Callable[[str], str]) -> None:
        self._may_join = may_join
        self._trim = trim
        self._known: tuple[int, list[int]] = (0, [])

    def rows(self, texts: Sequence[str], at: int, encoder: EntryEncoder) -> list[bytes]:
        if self._known[0] != id(texts):
            may_join = self._may_join
            found = [number for number, text in enumerate(texts) if may_join(text)]
            self._known = id(texts), found
        joining = self._known[1]
        place = bisect_left(joining, at)
        end = joining[place] if place < len(joining) else len(texts)
        # The last one may go on behind it.
        messages = [self._trim(text) for text in texts[at : max(min(end - 1, at + SOME), at)]]
        escaped = _escaped(messages)
        head = encoder.head(Entry("", 0, 0))
        return [b'{%b"message":"%b"}\n' % (head, message) for message in escaped]


class FastChangedRows:
    """Lines that operators change one by one, as far as no operator fails or drops one."""

    def __init__(
        self, changes: Sequence[Callable[[Entry], Entry | None]], trim: Callable[[str], str]
    ) -> None:
        self._changes = changes
        self._trim = trim

    def rows(self, texts: Sequence[str], at: int, encoder: EntryEncoder) -> list[bytes]:
        trim, changes, row = self._trim, self._changes, encoder.row
        rows: list[bytes] = []
        replaced = encoder.replaced
        for text in texts[at : at + SOME]:
            entry: Entry | None = Entry(trim(text), 0, 0)
            for change in changes:
                if entry is None or entry.failed:
                    break
                entry = change(entry)
            if entry is None or entry.failed:
                break
            made = row(entry)
            if encoder.replaced != replaced:  # counted once, where it is taken for certain
                encoder.replaced = replaced
                break
            rows.append(made)
        return rows


class FastContainerRows:
    """Whole lines of CRI."""

    def __init__(self, resource: dict[str, str], trim: Callable[[str], str]) -> None:
        self._resource = resource
        self._trim = trim

    def rows(self, texts: Sequence[str], at: int, encoder: EntryEncoder) -> list[bytes]:
        match, trim = _CRI.fullmatch, self._trim
        messages: list[str] = []
        heads: list[bytes] = []
        of_stream = {name: self._head(name, encoder) for name in ("stdout", "stderr")}
        for text in texts[at : at + SOME]:
            found = match(text)
            if found is None:
                break
            time, fraction, stream, message = found.groups()
            second = second_of(time + "Z")
            if second is None or second < 0 or not fraction.isascii():
                break
            messages.append(trim(message or ""))
            ts = f'"ts":{second // 1_000_000}.{fraction[:6]:0<6},'
            heads.append(ts.encode() + of_stream[stream])
        escaped = _escaped(messages)
        return [b'{%b"message":"%b"}\n' % pair for pair in zip(heads, escaped, strict=False)]

    def _head(self, stream: str, encoder: EntryEncoder) -> bytes:
        entry = Entry("", 0, 0)
        entry.attributes[STREAM] = stream
        entry.resource = self._resource
        return encoder.head(entry)


def _escaped(messages: list[str]) -> list[bytes]:
    """Each as JSON has it between its quotes; empty if one of them needs a step of its own."""
    joined = _MARK.join(messages)
    if joined.count(_MARK) != len(messages) - 1:
        return []
    try:
        return orjson.dumps(joined)[1:-1].split(_MARK.encode())
    except (TypeError, ValueError):  # bytes that are no text, to be replaced and counted
        return []


# Takes units through the stages of a source until there are enough for one body.


PART = "log.record.part"
"""Of a piece of an entry longer than `max_log_size`: its number, from 2."""
TRUNCATED = "log.record.truncated"
"""`true`, of an entry that was cut at `max_log_size`."""
Own = Callable[[Entry, int], dict[str, str]]
"""Attributes that are of one record, by its entry and how many records are before it."""
# If stages hold entries back, the packer checks after each of the first units whether the range may
# end, and then at intervals.
_EACH = 64
_NOW_AND_THEN = 16


class TakenUnits(NamedTuple):
    """The number of units of the range, and their records."""

    units: int
    rows: list[bytes]
    failed: int
    """Records of entries that an operator could not parse."""


class Range:
    """Units on their way."""

    def __init__(
        self,
        units: Units,
        chain: Chain,
        encoder: EntryEncoder,
        trim: Callable[[str], str],
        own: Own | None,
        fast: FastRows | None = None,
    ) -> None:
        self._units = units
        self._chain = chain
        self._encoder = encoder
        self._trim = trim
        self._own = own
        self._fast = fast if own is None else None
        self._rows: list[bytes] = []
        self._encoded = self._failed = 0
        self._best: tuple[int, int, int] | None = None

    def run(self, most: int, *, final: bool) -> TakenUnits | None:
        """Returns the range of about `most` bytes of records; None if no end is possible.

        `final`: it may end after the last unit, whatever the stages hold.
        """
        texts, nexts, marks = self._units
        chain, trim = self._chain, self._trim
        entries, feed = chain.entries, chain.feed
        size = at = number = 0
        while number < len(texts):
            if self._fast is not None and not marks and chain.settles(number):
                some, more = self._take_fast_rows(number, most - size)
                number, size = number + some, size + more
                at = nexts[number - 1] if number else 0
            if marks and number in marks:
                self._feed_marked(marks[number], texts[number], number, nexts[number] - at)
            else:
                feed(Entry(trim(texts[number]), number, number, nexts[number] - at))
            at = nexts[number]
            if len(entries) > self._encoded:
                size += self._encode()
                if size > most and self._best is not None:
                    return self._taken()
            if not chain.joins:
                self._best = number + 1, len(self._rows), self._failed
            elif number < _EACH or number % _NOW_AND_THEN == 0:
                self._look(number)
            number += 1
        if final and texts:
            chain.flush()
            self._encode()
            self._best = len(texts), len(self._rows), self._failed
        elif texts:
            self._look(number - 1)
        return self._taken() if self._best is not None else None

    def _take_fast_rows(self, at: int, most: int) -> tuple[int, int]:
        """Takes units from `at` on at once: how many, never the last one, and their bytes."""
        assert self._fast is not None
        total = 0
        number = at
        while self._fast is not None and number < len(self._units.texts) - 1:
            rows = self._fast.rows(self._units.texts, number, self._encoder)
            rows = rows[: len(self._units.texts) - 1 - number]
            sizes = list(accumulate(map(len, rows), initial=total))
            fitting = bisect_right(sizes, most) - 1
            if fitting < len(rows):
                rows, self._fast = rows[: max(fitting, 0)], None  # enough
            if not rows:
                break
            size = sizes[len(rows)] - total
            if number == at:  # what stages hold ends before it
                self._chain.flush()
                total += self._encode()
            self._rows += rows
            number, total = number + len(rows), total + size
            self._best = number, len(self._rows), self._failed
        if number > at:
            self._chain.newest = number - 1
        return number - at, total

    def _taken(self) -> TakenUnits:
        assert self._best is not None
        units, records, failed = self._best
        return TakenUnits(units, self._rows[:records], failed)

    def _look(self, number: int) -> None:
        border = self._chain.border(number)
        if border:
            self._best = border, len(self._rows), self._failed

    def _feed_marked(self, unit: Unit, text: str, number: int, size: int) -> None:
        if unit.dropped:
            return
        entry = Entry(self._trim(text), number, number, size)
        if unit.part:
            entry.attributes[PART] = str(unit.part)
        if unit.truncated:
            entry.attributes[TRUNCATED] = "true"
        self._chain.feed(entry)

    def _encode(self) -> int:
        size, rows = 0, self._rows
        for entry in self._chain.entries[self._encoded :]:
            own = None if self._own is None else self._own(entry, len(rows))
            row = self._encoder.row(entry, own)
            rows.append(row)
            size += len(row)
            self._failed += entry.failed
        self._encoded = len(self._chain.entries)
        return size


RECORD_NUMBER = "log.file.record_number"
RECORD_OFFSET = "log.file.record_offset"
_BLANKS = BLANKS.decode()
_SLACK = 64 << 10
_OVERWRITTEN = 64 << 10  # bytes of parts of lines that are passed over at once
_HEAD = 4 << 10  # bytes in which text of UTF-16 has a space or a newline, and so a NUL


class EntryPacker:
    """Packs ranges of the files of one source; it keeps no state between calls."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._codec = Codec(source.encoding)
        nop = self._raw = source.encoding.lower() == "nop"
        self._last_states = source.overwritten == "last" and not nop
        self._split, self._ahead = _splitter(source, nop=nop)
        self._cutter = Cutter(
            self._codec,
            source.max_log_size,
            truncate=source.max_log_size_behavior == "truncate" and not nop,
            blocks=nop,
            rejoins=self._split is splitting.lines and source.max_log_size_behavior == "split",
            last_states=self._last_states
            and self._split is splitting.lines
            and not is_container(source.operators),
        )
        self._makers, joins = _makers(source)
        # Stages that join lines must see their indentation, so lines are trimmed after them.
        self._trim = (lambda text: text) if nop or joins else _trim(source)
        self._parts = is_container(source.operators)
        self._numbered = source.include_file_record_number or source.include_file_record_offset
        self._simple = (
            self._codec.utf8
            and self._split is splitting.lines
            and not self._makers
            and not self._numbered
        )
        self._header = HeaderReader(source, self._codec) if source.header is not None else None
        self.longest = 2 * source.max_log_size + _SLACK
        """With so many bytes `pack` always finds where a range may end."""

    def pack(
        self, data: bytes, start: EntryCursor, file: FileFacts, *, final: bool, most: int
    ) -> Packed | None:
        """Packs entries of `data`, which begins at `start`, to a body of about `most` bytes.

        At least one entry; None if `data` has no whole one, and more of it may follow. `final` says
        that no more follows: then an unfinished entry is an entry too.
        """
        if not data:
            return None
        if start.offset == 0 and not self._raw:
            marked = self._pack_marked(data, start, file, final=final, most=most)
            if marked is not None:
                return marked
        if len(data) > most + self.longest:  # more than one batch can take
            data, final = data[: most + self.longest], False
        if self._header is not None and self._header.goes_on(start):
            return self._pack_header(data, start, file, final=final, most=most)
        if self._last_states and self._parts:
            size = overwritten_parts(data, _OVERWRITTEN)
            if size:  # a range of its own, without a record: it need not be made again
                return Packed(_moved(start, size), b"", "application/x-ndjson", 0)
        shared = self._shared(start, file)
        if self._simple and not start.inside:
            packed = self._pack_block(data, start, shared, final=final, most=most)
            if packed is not None:
                return packed
        return self._pack_entries(data, start, file, final=final, most=most)

    def rest(self, data: bytes, start: EntryCursor) -> Rest:
        """The unfinished end of `data`, which begins at `start` and has no whole entry.

        Nothing for a file without lines, or in its header.
        """
        if self._raw or (self._header is not None and self._header.goes_on(start)):
            return NO_REST
        if self._parts:
            return rest_of_parts(data)
        if self._codec.utf8:
            return rest_of_lines(data)
        decoded = self._codec.decode(data, start.offset, final=False)
        held = decoded.text.rfind("\n") + 1
        rest = rest_of_lines(clean(decoded.text[held:])[0].encode())
        return rest._replace(held=decoded.lead * bool(held) + self._codec.size(decoded.text[:held]))

    def _pack_marked(
        self, data: bytes, start: EntryCursor, file: FileFacts, *, final: bool, most: int
    ) -> Packed | None:
        """Packs a byte order mark, which is no text; None without one.

        UTF-16 that is not declared is sent unchanged: the service refuses it with a hint.
        """
        wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if wide and self._codec.utf8 and 0 in data[:_HEAD]:
            body = data[: max(most, data.index(0) + 1)]  # it is known for what it is again
            return Packed(replace(start, offset=len(body)), body, "text/plain", 1)
        mark = self._codec.mark
        if not mark or not data.startswith(mark):
            return None
        behind = replace(start, offset=len(mark))
        rest = self.pack(data[len(mark) :], behind, file, final=final, most=most)
        return rest or (Packed(behind, b"", "application/x-ndjson", 0) if final else None)

    def _shared(self, start: EntryCursor, file: FileFacts) -> dict[str, str]:
        header = {name: value for name, value in (start.header or {}).items() if name}
        return {**self._source.resource, **self._source.attributes, **file.attributes, **header}

    def _pack_header(
        self, data: bytes, start: EntryCursor, file: FileFacts, *, final: bool, most: int
    ) -> Packed | None:
        assert self._header is not None
        behind = self._header.read(data, start, final=final or len(data) >= self.longest)
        if behind is None:
            return None
        size = behind.offset - start.offset
        rest = None
        if not self._header.goes_on(behind):
            rest = self.pack(data[size:], behind, file, final=final, most=most)
        return rest or (Packed(behind, b"", "application/x-ndjson", 0) if size else None)

    # Blocks of lines.

    def _pack_block(
        self, data: bytes, start: EntryCursor, shared: dict[str, str], *, final: bool, most: int
    ) -> Packed | None:
        """None if it takes the way of entries: a line is too long, or its end is not there."""
        header = block_header(shared)
        extra = overhead(shared) if header is None else 0
        room = most
        while True:
            end = _line_border(data, room, final=final)
            if end == 0 or longer_line(data[:end], self._source.max_log_size):
                return None
            size = end + (data.count(b"\n", 0, end) * extra if extra else 0)
            if size > most and _has_two_lines(data, end):
                room = min(max(end * most // size, 1), end - 1)
                continue
            packed = self._block(data[:end], start, shared, header)
            if len(packed.body) <= most or packed.records == 1:
                return packed
            room = min(max(end * most // len(packed.body), 1), end - 1)

    def _block(
        self, block: bytes, start: EntryCursor, shared: dict[str, str], header: str | None
    ) -> Packed:
        source = self._source
        lines, records = trimmed(
            last_states_of(block) if self._last_states and b"\r" in block else block,
            leading=not source.preserve_leading_whitespaces,
            trailing=not source.preserve_trailing_whitespaces,
        )
        whole = block.endswith(b"\n")
        if not whole:  # now, since the end of such a line is trimmed by other rules
            lines += b"\n"
        if header is None:
            body, replaced = record_body(lines, shared)
        else:
            body, replaced = clean_bytes(lines)
        records += not whole
        end = EntryCursor(
            start.offset + len(block),
            start.records + records,
            start.header,
            int(self._cutter.rejoins and not whole),
        )
        kind: Kind = "application/x-ndjson" if header is None else "text/plain"
        return Packed(end, body, kind, records, header or "", replaced=replaced)

    # Entry by entry.

    def _pack_entries(
        self, data: bytes, start: EntryCursor, file: FileFacts, *, final: bool, most: int
    ) -> Packed | None:
        decoded = self._codec.decode(data, start.offset, final=final)
        text = decoded.text
        found = self._cutter.cut(self._split, text, final, start.inside)
        encoder = EntryEncoder(self._shared(start, file))
        chain = Chain([make(file) for make in self._makers])
        whole = final or len(data) >= self.longest
        own = self._own(text, found.nexts, start, decoded.lead) if self._numbered else None
        fast = self._fast_rows_of(file) or _each_alone(chain, self._trim)
        taken = Range(found, chain, encoder, self._trim, own, fast).run(most, final=whole)
        if taken is None:
            if final:  # bytes that are no unit, such as half a character
                return Packed(_moved(start, len(data)), b"", "application/x-ndjson", 0)
            return None
        stop, everything = found.nexts[taken.units - 1], taken.units == len(found.texts)
        if final and everything:
            size = len(data)
        else:
            size = min(decoded.lead + self._codec.size(text[:stop]), len(data))
            if self._ahead and not self._same(text[:stop], found, taken.units, start.inside):
                return self._pack_entries(data[:size], start, file, final=True, most=1 << 62)
        last = found.marks.get(taken.units - 1)
        inside = last.inside if last is not None else 0
        marked = [unit for number, unit in found.marks.items() if number < taken.units]
        if self._simple and not start.inside and not any(map(_pieces, marked)):
            shared = self._shared(start, file)
            packed = self._block(data[:size], start, shared, block_header(shared))
            return replace(packed, end=replace(packed.end, inside=inside))
        records = len(taken.rows)
        return Packed(
            replace(
                start, offset=start.offset + size, records=start.records + records, inside=inside
            ),
            b"".join(taken.rows),
            "application/x-ndjson",
            records,
            replaced=encoder.replaced,
            truncated=sum(unit.truncated or unit.part == 2 for unit in marked),
            failed=taken.failed,
        )

    def _fast_rows_of(self, file: FileFacts) -> FastRows | None:
        """The fast path that recognises whole lines by their form; None if other steps follow."""
        operators, multiline = self._source.operators, self._source.multiline
        if not operators and multiline is not None and multiline.builtin:
            return FastLineRows(may_join, _trim(self._source))
        container = operators[0] if len(operators) == 1 and multiline is None else None
        if not isinstance(container, Container) or container.format == "docker":
            return None
        if container.if_ is not None or container.severity is not None:
            return None
        metadata = pod_of(file.path) if container.add_metadata_from_filepath else {}
        return FastContainerRows(metadata, _trim(self._source, within=True))

    def _same(self, text: str, found: Units, count: int, inside: int) -> bool:
        """Whether the units would be the same if the text ended with them."""
        alone = self._cutter.cut(self._split, text, True, inside)
        if alone.texts != found.texts[:count] or alone.nexts != found.nexts[:count]:
            return False
        return all(_looks(alone, number) == _looks(found, number) for number in range(count))

    def _own(self, text: str, nexts: list[int], start: EntryCursor, lead: int) -> Own:
        """Number and offset of a record, by how many are before it, and of its first unit."""
        source, codec = self._source, self._codec
        begins: list[int] = []

        def own(entry: Entry, before: int) -> dict[str, str]:
            found: dict[str, str] = {}
            if source.include_file_record_number:
                found[RECORD_NUMBER] = str(start.records + before + 1)
            if source.include_file_record_offset:
                for number in range(len(begins), entry.first + 1):
                    at = nexts[number - 1] if number else 0
                    earlier = nexts[number - 2] if number > 1 else 0
                    size = codec.size(text[earlier:at])
                    begins.append(begins[-1] + size if begins else start.offset + lead)
                found[RECORD_OFFSET] = str(begins[entry.first])
            return found

        return own


def _each_alone(chain: Chain, trim: Callable[[str], str]) -> FastRows | None:
    """For operators that change entries one by one; nothing else may be among the stages."""
    changes = chain.changes
    return FastChangedRows(changes, trim) if changes else None


def _looks(units: Units, number: int) -> tuple[int, bool, bool]:
    unit = units.marks.get(number)
    return (unit.part, unit.truncated, unit.dropped) if unit is not None else (0, False, False)


def _pieces(unit: Unit) -> bool:
    return bool(unit.part) or unit.truncated or unit.dropped


def _moved(start: EntryCursor, size: int) -> EntryCursor:
    return replace(start, offset=start.offset + size)


def _has_two_lines(data: bytes, end: int) -> bool:
    return 0 <= data.find(b"\n", 0, end) < end - 1


def _line_border(data: bytes, room: int, *, final: bool) -> int:
    """The end of the last line that ends within `room` bytes, or else of the first; 0: none."""
    if final and len(data) <= room:
        return len(data)
    end = data.rfind(b"\n", 0, room) + 1
    end = end or data.find(b"\n", max(room, 0)) + 1
    return end or (len(data) if final else 0)


def _splitter(source: FileSource, *, nop: bool) -> tuple[Splitter, bool]:
    """How the text is split, and whether that needs to look ahead."""
    multiline = source.multiline
    if nop:
        return splitting.whole, False
    if multiline is not None and not is_container(source.operators):
        if multiline.line_start_pattern is not None:
            return splitting.started(
                multiline.line_start_pattern, omit=multiline.omit_pattern
            ), True
        if multiline.line_end_pattern is not None:
            return splitting.ended(multiline.line_end_pattern, omit=multiline.omit_pattern), True
    return splitting.lines, False


def _makers(source: FileSource) -> tuple[list[StageMaker], bool]:
    """The stages of the source, each made for one range of a file; whether they join lines."""
    made = stages_of(
        source.operators, max_log_size=source.max_log_size, last_states=source.overwritten == "last"
    )
    multiline = source.multiline
    container = is_container(source.operators)
    by_lines = multiline is not None and (
        container or multiline.continuation_pattern is not None or bool(multiline.builtin)
    )
    if not container and not by_lines:
        return made, False
    behind = 2 if container else 0  # the container's parser, and what joins its partial lines
    joining = [_joiner(source, multiline)] if multiline is not None else []
    return [
        *made[:behind],
        *joining,
        _trimming(_trim(source, within=container)),
        *made[behind:],
    ], True


def _joiner(source: FileSource, multiline: Multiline) -> StageMaker:
    rule = rule_of(multiline)
    pattern = multiline.line_start_pattern or multiline.line_end_pattern
    omit = pattern if multiline.omit_pattern else None
    most_lines = multiline.max_lines
    return lambda _: Joiner(rule, most_bytes=source.max_log_size, most_lines=most_lines, omit=omit)


def _trimming(trim: Callable[[str], str]) -> StageMaker:
    def change(entry: Entry) -> Entry:
        if isinstance(entry.body, str):
            entry.body = trim(entry.body)
        return entry

    return lambda _: Each(change)


def _trim(source: FileSource, *, within: bool = False) -> Callable[[str], str]:
    """What is trimmed; of a message `within` a container's line nothing at its begin.

    Of lines that were overwritten, the last states are left.
    """
    trim = _trim_blanks(source, within=within)
    if source.overwritten == "all":
        return trim
    return lambda text: trim(last_states(text) if "\r" in text else text)


def _trim_blanks(source: FileSource, *, within: bool) -> Callable[[str], str]:
    leading = not source.preserve_leading_whitespaces and not within
    if not leading and source.preserve_trailing_whitespaces:
        return lambda text: text
    if not leading:
        return lambda text: text.rstrip(_BLANKS)
    if source.preserve_trailing_whitespaces:
        return lambda text: text.lstrip(_BLANKS)
    return lambda text: text.strip(_BLANKS)
