"""Packs a range of a file's content into the body of a batch.

`Packer.pack` is a pure function of source, file facts, start cursor and bytes. It finds where a
range may end, and makes the body of exactly that range: packing the range alone, with `final`,
gives the same body. So a batch can be made again from the file after any crash, and needs no copy.

Whole blocks are packed at once (`columns`) if entries are lines of UTF-8 that share their
attributes. Anything else goes entry by entry: units of the decoded text, through the stages of the
source.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import replace

from forwarder.config.operators import Container
from forwarder.config.source import Multiline, Source
from forwarder.entries import columns, units
from forwarder.entries.calm import Calm, CalmContainer, CalmEach, CalmLines
from forwarder.entries.codec import Codec, clean, clean_bytes
from forwarder.entries.entry import Encoder, Entry
from forwarder.entries.header import HeaderReader
from forwarder.entries.multiline import Joiner, rule_of
from forwarder.entries.operators.build import StageMaker, is_container, stages_of
from forwarder.entries.operators.container import pod_of
from forwarder.entries.overwritten import (
    NO_REST,
    Rest,
    last_states,
    last_states_of,
    overwritten_parts,
    rest_of_lines,
    rest_of_parts,
)
from forwarder.entries.ranges import Own, Range
from forwarder.entries.stages import Chain, Each
from forwarder.entries.tracebacks import stirs
from forwarder.entries.units import Cutter, Splitter, Unit, Units
from forwarder.model import Cursor, FileFacts, Kind, Packed

RECORD_NUMBER = "log.file.record_number"
RECORD_OFFSET = "log.file.record_offset"
_BLANKS = columns.BLANKS.decode()
_SLACK = 64 << 10
_OVERWRITTEN = 64 << 10  # bytes of parts of lines that are passed over at once
_HEAD = 4 << 10  # bytes in which text of UTF-16 has a space or a newline, and so a NUL


class Packer:
    """Packs ranges of the files of one source; it keeps no state between calls."""

    def __init__(self, source: Source) -> None:
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
            rejoins=self._split is units.lines and source.max_log_size_behavior == "split",
            last_states=self._last_states
            and self._split is units.lines
            and not is_container(source.operators),
        )
        self._makers, joins = _makers(source)
        # What joins lines must see their indentation, so it is trimmed behind that.
        self._trim = (lambda text: text) if nop or joins else _trim(source)
        self._parts = is_container(source.operators)
        self._numbered = source.include_file_record_number or source.include_file_record_offset
        self._simple = (
            self._codec.utf8
            and self._split is units.lines
            and not self._makers
            and not self._numbered
        )
        self._header = HeaderReader(source, self._codec) if source.header is not None else None
        self.longest = 2 * source.max_log_size + _SLACK
        """With so many bytes `pack` always finds where a range may end."""

    def pack(
        self, data: bytes, start: Cursor, file: FileFacts, *, final: bool, most: int
    ) -> Packed | None:
        """As many entries of `data`, which begins at `start`, as give about `most` bytes of body.

        At least one; None if `data` has no whole one, and more of it may come. `final` says that no
        more comes: what is unfinished is an entry too.
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

    def rest(self, data: bytes, start: Cursor) -> Rest:
        """What is unfinished at the end of `data`, which begins at `start` and has no whole entry.

        Nothing of a file without lines, or in its header.
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
        self, data: bytes, start: Cursor, file: FileFacts, *, final: bool, most: int
    ) -> Packed | None:
        """What begins with a byte order mark, which is no text; None if there is none.

        UTF-16 that is not declared is sent as it is: the service refuses it with a hint.
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

    def _shared(self, start: Cursor, file: FileFacts) -> dict[str, str]:
        header = {name: value for name, value in (start.header or {}).items() if name}
        return {
            **self._source.resource,
            **self._source.attributes,
            **file.attributes,
            **header,
        }

    def _pack_header(
        self, data: bytes, start: Cursor, file: FileFacts, *, final: bool, most: int
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
        self, data: bytes, start: Cursor, shared: dict[str, str], *, final: bool, most: int
    ) -> Packed | None:
        """None if it takes the way of entries: a line is too long, or its end is not there."""
        header = columns.header(shared)
        extra = columns.overhead(shared) if header is None else 0
        room = most
        while True:
            end = _line_border(data, room, final=final)
            if end == 0 or columns.longer_line(data[:end], self._source.max_log_size):
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
        self, block: bytes, start: Cursor, shared: dict[str, str], header: str | None
    ) -> Packed:
        source = self._source
        lines, records = columns.trimmed(
            last_states_of(block) if self._last_states and b"\r" in block else block,
            leading=not source.preserve_leading_whitespaces,
            trailing=not source.preserve_trailing_whitespaces,
        )
        whole = block.endswith(b"\n")
        if not whole:  # now, since the end of such a line is trimmed by other rules
            lines += b"\n"
        if header is None:
            body, replaced = columns.record_body(lines, shared)
        else:
            body, replaced = clean_bytes(lines)
        records += not whole
        end = Cursor(
            start.offset + len(block),
            start.records + records,
            start.header,
            int(self._cutter.rejoins and not whole),
        )
        kind: Kind = "application/x-ndjson" if header is None else "text/plain"
        return Packed(end, body, kind, records, header or "", replaced=replaced)

    # Entry by entry.

    def _pack_entries(
        self, data: bytes, start: Cursor, file: FileFacts, *, final: bool, most: int
    ) -> Packed | None:
        decoded = self._codec.decode(data, start.offset, final=final)
        text = decoded.text
        found = self._cutter.cut(self._split, text, final, start.inside)
        encoder = Encoder(self._shared(start, file))
        chain = Chain([make(file) for make in self._makers])
        whole = final or len(data) >= self.longest
        own = self._own(text, found.nexts, start, decoded.lead) if self._numbered else None
        calm = self._calm(file) or _each_alone(chain, self._trim)
        taken = Range(found, chain, encoder, self._trim, own, calm).run(most, final=whole)
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
            packed = self._block(data[:size], start, shared, columns.header(shared))
            return replace(packed, end=replace(packed.end, inside=inside))
        records = len(taken.rows)
        return Packed(
            replace(
                start,
                offset=start.offset + size,
                records=start.records + records,
                inside=inside,
            ),
            b"".join(taken.rows),
            "application/x-ndjson",
            records,
            replaced=encoder.replaced,
            truncated=sum(unit.truncated or unit.part == 2 for unit in marked),
            failed=taken.failed,
        )

    def _calm(self, file: FileFacts) -> Calm | None:
        """What knows whole lines by their form; if nothing else is done with them."""
        operators, multiline = self._source.operators, self._source.multiline
        if not operators and multiline is not None and multiline.builtin:
            return CalmLines(stirs, _trim(self._source))
        container = operators[0] if len(operators) == 1 and multiline is None else None
        if not isinstance(container, Container) or container.format == "docker":
            return None
        if container.if_ is not None or container.severity is not None:
            return None
        metadata = pod_of(file.path) if container.add_metadata_from_filepath else {}
        return CalmContainer(metadata, _trim(self._source, within=True))

    def _same(self, text: str, found: Units, count: int, inside: int) -> bool:
        """Whether the units would be the same if the text ended with them."""
        alone = self._cutter.cut(self._split, text, True, inside)
        if alone.texts != found.texts[:count] or alone.nexts != found.nexts[:count]:
            return False
        return all(_looks(alone, number) == _looks(found, number) for number in range(count))

    def _own(self, text: str, nexts: list[int], start: Cursor, lead: int) -> Own:
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


def _each_alone(chain: Chain, trim: Callable[[str], str]) -> Calm | None:
    """For operators that change entries one by one; nothing else may be among the stages."""
    changes = chain.changes
    return CalmEach(changes, trim) if changes else None


def _looks(units: Units, number: int) -> tuple[int, bool, bool]:
    unit = units.marks.get(number)
    return (unit.part, unit.truncated, unit.dropped) if unit is not None else (0, False, False)


def _pieces(unit: Unit) -> bool:
    return bool(unit.part) or unit.truncated or unit.dropped


def _moved(start: Cursor, size: int) -> Cursor:
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


def _splitter(source: Source, *, nop: bool) -> tuple[Splitter, bool]:
    """How the text is split, and whether that needs to look ahead."""
    multiline = source.multiline
    if nop:
        return units.whole, False
    if multiline is not None and not is_container(source.operators):
        if multiline.line_start_pattern is not None:
            return units.started(multiline.line_start_pattern, omit=multiline.omit_pattern), True
        if multiline.line_end_pattern is not None:
            return units.ended(multiline.line_end_pattern, omit=multiline.omit_pattern), True
    return units.lines, False


def _makers(source: Source) -> tuple[list[StageMaker], bool]:
    """The stages of the source, each made for one range of a file; whether they join lines."""
    made = stages_of(
        source.operators,
        max_log_size=source.max_log_size,
        last_states=source.overwritten == "last",
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


def _joiner(source: Source, multiline: Multiline) -> StageMaker:
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


def _trim(source: Source, *, within: bool = False) -> Callable[[str], str]:
    """What is trimmed; of a message `within` a container's line nothing at its begin.

    Of lines that were overwritten, the last states are left.
    """
    trim = _trim_blanks(source, within=within)
    if source.overwritten == "all":
        return trim
    return lambda text: trim(last_states(text) if "\r" in text else text)


def _trim_blanks(source: Source, *, within: bool) -> Callable[[str], str]:
    leading = not source.preserve_leading_whitespaces and not within
    if not leading and source.preserve_trailing_whitespaces:
        return lambda text: text
    if not leading:
        return lambda text: text.rstrip(_BLANKS)
    if source.preserve_trailing_whitespaces:
        return lambda text: text.lstrip(_BLANKS)
    return lambda text: text.strip(_BLANKS)
