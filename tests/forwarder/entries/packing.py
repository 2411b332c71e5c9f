"""Packers made of keys of the configuration, and their bodies as records."""

from __future__ import annotations

import codecs
from typing import Any

import orjson

from tailrace.forwarder.config.load import parse
from tailrace.forwarder.config.source import FileSource
from tailrace.forwarder.entries.packer import EntryPacker
from tailrace.forwarder.model import EntryCursor, FileFacts, Packed

FILE = FileFacts("/var/log/app.log")
NAMED = FileFacts("/var/log/app.log", {"log.file.name": "app.log"})
HUGE = 1 << 62


def source(**keys: Any) -> FileSource:
    least = {"targets": ["127.0.0.1:1"], "include": ["/var/log/*.log"], "fqn": "f"}
    return parse({**least, **keys}).sources[0]


def packer(**keys: Any) -> EntryPacker:
    return EntryPacker(source(**keys))


def records(packed: Packed | None) -> list[dict[str, Any]]:
    """The records of a body, those of text as the service reads them."""
    if packed is None:
        return []
    lines = packed.body.split(b"\n")[:-1]
    if packed.kind == "text/plain":
        shared = {"attributes": orjson.loads(packed.attributes)} if packed.attributes else {}
        found = [{**shared, "message": line.decode()} for line in lines]
    else:
        found = [orjson.loads(line) for line in lines]
    assert len(found) == packed.records
    return found


def messages(
    data: bytes, *, final: bool = False, file: FileFacts = FILE, most: int = HUGE, **keys: Any
) -> list[str]:
    """The messages of one call."""
    packed = packer(**keys).pack(data, EntryCursor(), file, final=final, most=most)
    return [record["message"] for record in records(packed)]


def read(
    data: bytes, *, step: int = HUGE, most: int = HUGE, file: FileFacts = FILE, **keys: Any
) -> list[dict[str, Any]]:
    """The records of a file that is read `step` bytes at a time, all of it in the end.

    Each body is compared with that of its range alone; a range without records is not made again.
    """
    one = packer(**keys)
    found: list[dict[str, Any]] = []
    cursor, seen = EntryCursor(), step
    while cursor.offset < len(data):
        final = seen >= len(data)
        packed = one.pack(data[cursor.offset : seen], cursor, file, final=final, most=most)
        if packed is None:
            assert seen < len(data), "what is final is consumed"
            seen += step
            continue
        assert packed.end.offset > cursor.offset
        alone = data[cursor.offset : packed.end.offset]
        if packed.body:
            again = one.pack(alone, cursor, file, final=True, most=HUGE)
            assert again is not None
            assert (again.kind, again.body) == (packed.kind, packed.body)
            assert (again.attributes, again.digest()) == (packed.attributes, packed.digest())
            assert again.end.offset == packed.end.offset
        if not packed.body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # to be refused
            found += records(packed)
        cursor = packed.end
        seen = max(seen, cursor.offset + step)
    return found
