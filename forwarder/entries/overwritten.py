"""Lines that go on at their beginning (`\\r`), such as progress bars: what they show in the end.

The rule is that of `tailrace run` (`tailrace_client.unfinished`): of a line that was overwritten,
what follows the last carriage return with text behind it is stored; any other line is as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson

from tailrace_client.unfinished import finished, last_state

_PART_FIELDS = 4
_PART = b"P"
_STREAMS = (b"stdout", b"stderr")


class Rest(NamedTuple):
    """What is behind the last whole entry of some bytes."""

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
    held, parts = len(data) - len(broken), list[_Part]()
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
    """How many of the first bytes are parts of a line of which nothing is seen any more.

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


class _Part(NamedTuple):
    """A part of a line that goes on in the next one of its stream."""

    stream: bytes
    text: bytes


def _part_of(line: bytes) -> _Part | None:
    """A part of a container's line; None for any other line, and for the last part of one."""
    if line.startswith(b"{"):
        return _docker_part(line)
    fields = line.split(b" ", _PART_FIELDS - 1)
    if len(fields) < _PART_FIELDS or fields[1] not in _STREAMS or fields[2][:1] != _PART:
        return None
    return _Part(fields[1], fields[3])


def _docker_part(line: bytes) -> _Part | None:
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
    return _Part(stream.encode(), text.encode())
