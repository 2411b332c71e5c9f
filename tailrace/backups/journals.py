"""Copies the journals of nodes while they run, and gives restored ones an incarnation of their own.

A file of the journal is copied up to its last whole entry at that moment: all bytes before it were
written before, so the copy is what a crash then would have left. Files that are full do not change;
one that the node released meanwhile may be overwritten, so its copy does not count, and the newest
file is copied again. It then says that the lines of the released one are in the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from logstore.clock import Clock, Entropy
from logstore.errors import Conflict, NotFound
from logstore.filesystem import File, FileSystem
from logstore.objects.local import in_thread
from logstore.objects.oserrors import translated
from service.journal import format as wal
from service.journal.reading import header_of
from service.journal.recovery import recover
from service.journal.scan import Torn, Unused, scan
from service.runtime.identity import DataFolder, read_identity
from tailrace.backups.repository import PIECE_BYTES, BackupEntry, BackupFolder

IDENTITY: Final = "node.json"
JOURNAL: Final = "journal"
WORKERS: Final = "workers"
_ROUNDS: Final = 100


def node_folders(fs: FileSystem, data: str) -> list[str]:
    """Paths below `data` that are data folders: itself (empty), and those of further workers."""
    inner = sorted(name for name, is_folder in fs.scan(f"{data}/{WORKERS}") if is_folder)
    found = ["", *[f"{WORKERS}/{name}/" for name in inner]]
    return [path for path in found if fs.stat(f"{data}/{path}{IDENTITY}") is not None]


async def copy_journals(
    fs: FileSystem, data: str, folder: BackupFolder
) -> tuple[list[str], list[BackupEntry]]:
    """Copies the data folders below `data`: their nodes, and what was copied.

    Raises `StoreUnavailable`, `Damaged`, `Conflict` if files come and go all the time.
    """
    nodes: list[str] = []
    entries: list[BackupEntry] = []
    for path in node_folders(fs, data):
        files = await _copy_files(fs, data, f"{path}{JOURNAL}", folder)
        # Behind its journal: of a node that forks meanwhile, the lines are under either name.
        identity = await _copy_file(fs, data, f"{path}{IDENTITY}", folder)
        with translated(f"{data}/{path}{IDENTITY}"):
            known = read_identity(fs, f"{data}/{path}".rstrip("/"))
        entries += [*files, identity]
        nodes += [] if known is None else [known.node]
    return nodes, entries


async def _copy_files(
    fs: FileSystem, data: str, path: str, folder: BackupFolder
) -> list[BackupEntry]:
    whole: dict[str, BackupEntry] = {}
    with translated(f"{data}/{path}"):
        for _ in range(_ROUNDS):
            names = _names(fs, f"{data}/{path}")
            if not names:
                return []
            try:
                for name in names[:-1]:
                    if name not in whole:
                        whole[name] = await _copy_file(fs, data, f"{path}/{name}", folder)
                newest = await _copy_file(fs, data, f"{path}/{names[-1]}", folder, newest=True)
            except NotFound:
                continue
            # Without those that were released since: the newest file may not say so yet.
            left = set(_names(fs, f"{data}/{path}"))
            if left.issuperset(names):
                return [*[whole[name] for name in names[:-1]], newest]
            whole = {name: entry for name, entry in whole.items() if name in left}
    raise Conflict(
        f"the journal in {data}/{path} released files faster than they were copied",
        hint="Copy to a faster disk, or when fewer lines come.",
    )


def _names(fs: FileSystem, path: str) -> list[str]:
    return sorted(name for name, is_folder in fs.scan(path) if name.endswith(wal.SUFFIX))


async def _copy_file(
    fs: FileSystem, data: str, path: str, folder: BackupFolder, *, newest: bool = False
) -> BackupEntry:
    """Copies one file, of the newest one of a journal what is written. Raises `NotFound`."""
    try:
        file = fs.open(f"{data}/{path}", "read")
    except FileNotFoundError as error:
        raise NotFound(f"{data}/{path} is gone") from error
    try:
        end = await in_thread(lambda: _written(file, path) if newest else file.size())
        sha256, size = await folder.keep(_pieces(file, end))
        return BackupEntry("data", path, size, sha256)
    finally:
        file.close()


def _written(file: File, path: str) -> int:
    """Where the whole entries of a journal file end now; all of it if its header is damaged."""
    size = file.size()
    header, _ = header_of(file, path.rpartition("/")[2].removesuffix(wal.SUFFIX))
    if header is None:
        return size
    for item in scan(file, header):
        if isinstance(item, Unused) or (isinstance(item, Torn) and not item.followed):
            return item.offset
    return size


async def _pieces(file: File, end: int) -> AsyncIterator[bytes]:
    at = 0
    while at < end:
        piece = await in_thread(lambda: file.pread(min(PIECE_BYTES, end - at), at))  # noqa: B023
        if not piece:
            return
        yield piece
        at += len(piece)


def fork_restored(fs: FileSystem, data: str, clock: Clock, entropy: Entropy) -> list[str]:
    """Gives each restored data folder an incarnation of its own, and names its new node.

    What was acknowledged after the backup may have used the old one's numbers. Raises as
    `recover`, `FolderLocked`.
    """
    made = []
    for path in node_folders(fs, data):
        place = f"{data}/{path}".rstrip("/")
        recovered = recover(fs, f"{place}/{JOURNAL}")
        for file in recovered.files:
            file.close()
        held = DataFolder(fs, place, clock, entropy)
        try:
            known = read_identity(fs, place)
            if known is not None and recovered.state is not None:
                confirmed = recovered.state.confirmed
                known = held.forked(known, name=known.name, base=confirmed.end, seq=confirmed.seq)
            made += [] if known is None else [known.node]
        finally:
            held.release()
    return made
