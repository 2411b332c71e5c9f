"""Records of units that nothing joins, some at a time: the same bytes as one by one.

`Calm.rows` looks at units from one on, at a moment when no stage holds what goes on, and gives the
records of as many as it knows by their form. What it does not know goes through the stages.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol

import orjson

from forwarder.entries.entry import Encoder, Entry
from forwarder.entries.operators.container import STREAM, second_of

SOME = 512
"""Units that are looked at together."""
_MARK = "\x7f"
_CRI = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{1,9})Z (stdout|stderr) F(?: (.*))?", re.DOTALL
)


class Calm(Protocol):
    """Makes records of units that are entries of their own."""

    def rows(self, texts: Sequence[str], at: int, encoder: Encoder) -> list[bytes]:
        """Records of the units from `at` on, one of each; empty: the next one is not calm."""


class CalmLines:
    """Lines of which none, nor the one behind it, can be of a traceback."""

    def __init__(self, stirring: Callable[[str], bool], trim: Callable[[str], str]) -> None:
        self._stirring = stirring
        self._trim = trim
        self._known: tuple[int, list[int]] = (0, [])

    def rows(self, texts: Sequence[str], at: int, encoder: Encoder) -> list[bytes]:
        if self._known[0] != id(texts):
            stirring = self._stirring
            found = [number for number, text in enumerate(texts) if stirring(text)]
            self._known = id(texts), found
        stirred = self._known[1]
        place = bisect_left(stirred, at)
        end = stirred[place] if place < len(stirred) else len(texts)
        # The last one may go on behind it.
        messages = [self._trim(text) for text in texts[at : max(min(end - 1, at + SOME), at)]]
        escaped = _escaped(messages)
        head = encoder.head(Entry("", 0, 0))
        return [b'{%b"message":"%b"}\n' % (head, message) for message in escaped]


class CalmEach:
    """Lines that operators change one by one, as far as they can."""

    def __init__(
        self, changes: Sequence[Callable[[Entry], Entry | None]], trim: Callable[[str], str]
    ) -> None:
        self._changes = changes
        self._trim = trim

    def rows(self, texts: Sequence[str], at: int, encoder: Encoder) -> list[bytes]:
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


class CalmContainer:
    """Whole lines of CRI."""

    def __init__(self, resource: dict[str, str], trim: Callable[[str], str]) -> None:
        self._resource = resource
        self._trim = trim

    def rows(self, texts: Sequence[str], at: int, encoder: Encoder) -> list[bytes]:
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

    def _head(self, stream: str, encoder: Encoder) -> bytes:
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
