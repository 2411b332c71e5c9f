"""The header of a file: lines at its begin that match a pattern, whose attributes all records get.

Header lines are no records. What was read of a header is in the cursor, so that it goes on after a
restart in its middle.
"""

from __future__ import annotations

from dataclasses import replace

from forwarder.config.source import Source
from forwarder.entries.codec import Codec
from forwarder.entries.entry import Entry, message_of
from forwarder.entries.operators.build import stages_of
from forwarder.entries.stages import Chain
from forwarder.entries.units import Cutter, lines
from forwarder.model import Cursor, FileFacts

OPEN = ""
"""The name among the attributes that says: the header may go on."""


class HeaderReader:
    """Reads the header of files of one source."""

    def __init__(self, source: Source, codec: Codec) -> None:
        assert source.header is not None
        self._matches = source.header.pattern.search
        self._makers = stages_of(source.header.metadata_operators, max_log_size=source.max_log_size)
        self._codec = codec
        self._cutter = Cutter(codec, source.max_log_size)

    def goes_on(self, cursor: Cursor) -> bool:
        """Whether what is behind the cursor may be of the header."""
        return cursor.header is None or OPEN in cursor.header

    def read(self, data: bytes, start: Cursor, *, final: bool) -> Cursor | None:
        """The cursor behind the header; None: its end is not there. `final`: as far as it is."""
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

    def _behind(self, start: Cursor, text: str, lead: int, attributes: dict[str, str]) -> Cursor:
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
