"""Opens a journal folder after any kind of end: stop, kill -9, power cut, damaged disk.

Every file is read through once. Torn tails are cut off, damage is copied to `aside/`
and reported, a file whose making was interrupted is moved there whole. What comes out
is what the journal goes on from; a new file is begun by `Journal.open`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import orjson

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import Damaged, UnsupportedVersion
from logstore.filesystem import FileSystem
from service.journal import format as wal
from service.journal.file import JournalFile
from service.journal.index import FileIndex
from service.journal.scan import Damage, Entry, TornTail, read_header, scan
from service.journal.state import JournalState, decode_cut_entry, decode_state

ASIDE = "aside"


@dataclass(frozen=True, slots=True)
class Found:
    """Something wrong with a file: what it is, where, and where its bytes were put."""

    file: str
    offset: int
    size: int
    aside: str
    reason: str


@dataclass(slots=True)
class Recovered:
    """A journal as it was found. `state` is None for a folder without one."""

    files: list[JournalFile] = field(default_factory=list)
    state: JournalState | None = None
    next_pos: int = 0
    found: list[Found] = field(default_factory=list)


def recover(fs: FileSystem, folder: str) -> Recovered:
    """Reads all files of `folder`, oldest first.

    Raises `UnsupportedVersion` for a file of a newer format, `OSError` if the disk fails.
    """
    fs.make_folders(folder)
    names = sorted(name for name, is_folder in fs.scan(folder) if _is_journal(name, is_folder))
    result = Recovered()
    for number, name in enumerate(names):
        _recover_file(fs, folder, name, newest=number == len(names) - 1, into=result)
    return result


def _is_journal(name: str, is_folder: bool) -> bool:
    return not is_folder and name.endswith(wal.SUFFIX)


def _recover_file(
    fs: FileSystem, folder: str, name: str, *, newest: bool, into: Recovered
) -> None:
    path = f"{folder}/{name}"
    source = fs.open(path, "read")
    try:
        header = read_header(source)
    except UnsupportedVersion:
        raise
    except Damaged as error:
        source.close()
        _move_aside(fs, folder, name, str(error), into)
        return
    file = JournalFile(
        fs,
        path,
        ulid=header.file,
        secret=header.secret,
        node=header.node,
        first_pos=header.first_pos,
        size=source.size(),
        index=FileIndex(),
    )
    into.next_pos = max(into.next_pos, header.first_pos)
    # An older file was synced whole before the next one was begun.
    known = 0 if newest else source.size()
    try:
        for item in scan(source, header, synced=known):
            if isinstance(item, Entry):
                _apply(item, file, into)
            elif isinstance(item, Damage):
                _copy_aside(fs, folder, file, item, into)
            else:
                _cut_tail(fs, file, item)
    finally:
        source.close()
    file.end_pos = max(into.next_pos, file.end_pos)
    into.files.append(file)
    file.spill_index()


def _apply(entry: Entry, file: JournalFile, into: Recovered) -> None:
    if entry.kind == wal.BATCH:
        _apply_batch(entry, file, into)
        return
    value = orjson.loads(entry.body[1:])
    if entry.kind == wal.STATE:
        into.state = decode_state(value)
        into.next_pos = max(into.next_pos, value["pos"])
    elif into.state is not None:
        _apply_change(entry.kind, value, into.state)


def _apply_batch(entry: Entry, file: JournalFile, into: Recovered) -> None:
    batch = wal.decode_batch(entry.body)
    file.index.add(
        batch.key,
        batch.connector,
        offset=entry.offset + batch.text_at,
        pos=batch.pos,
        ulid=batch.ulid,
        digest=batch.digest,
        size=batch.text_size,
        records=batch.records,
        lines=batch.lines,
        meta=batch.meta_size,
    )
    into.next_pos = max(into.next_pos, batch.pos + batch.records)
    if into.state is not None:
        into.state.last_ulid = max(into.state.last_ulid, batch.ulid)


def _apply_change(kind: int, value: dict[str, object], state: JournalState) -> None:
    if kind == wal.CUT:
        node, cut = decode_cut_entry(value)
        if node == state.node:
            state.cuts.append(cut)
    elif kind == wal.CLOSE:
        pos = value["pos"]
        assert isinstance(pos, int)
        state.closes[RunKey(str(value["fqn"]), str(value["run"]))] = pos
    elif kind == wal.TOMBSTONE:
        run = value["run"]
        key = (str(value["fqn"]), None if run is None else str(run))
        state.tombstones[key] = max(state.tombstones.get(key, 0), ulids.decode(str(value["t"])))


def _cut_tail(fs: FileSystem, file: JournalFile, tail: TornTail) -> None:
    target = fs.open(file.path, "append")
    try:
        target.truncate(tail.offset)
        target.sync()
    finally:
        target.close()
    file.size = tail.offset


def _copy_aside(
    fs: FileSystem, folder: str, file: JournalFile, damage: Damage, into: Recovered
) -> None:
    fs.make_folders(f"{folder}/{ASIDE}")
    path = f"{folder}/{ASIDE}/{file.ulid}-{damage.offset}.bin"
    if fs.stat(path) is not None:
        fs.unlink(path)
    target = fs.open(path, "create")
    source = fs.open(file.path, "read")
    try:
        fs.copy(source, damage.offset, damage.size, target)
        target.sync()
    finally:
        source.close()
        target.close()
    fs.sync_folder(os.path.dirname(path))
    into.found.append(
        Found(file.path, damage.offset, damage.size, path, "entries fail their checksum")
    )


def _move_aside(fs: FileSystem, folder: str, name: str, reason: str, into: Recovered) -> None:
    fs.make_folders(f"{folder}/{ASIDE}")
    path = f"{folder}/{name}"
    aside = f"{folder}/{ASIDE}/{name}"
    stat = fs.stat(path)
    fs.rename(path, aside)
    fs.sync_folder(f"{folder}/{ASIDE}")
    fs.sync_folder(folder)
    into.found.append(Found(path, 0, stat.size if stat else 0, aside, reason))
