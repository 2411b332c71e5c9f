"""States of files, for tests of the checkpoint log."""

from __future__ import annotations

from dataclasses import replace

from tailrace.forwarder.model import EntryCursor, FileFacts, FileState, Prepared

FINGERPRINT = bytes(range(256)) * 4


def batch(number: int, start: int, end: int) -> Prepared:
    """A batch of a byte range."""
    return Prepared(
        batch=f"{number:021d}00000",
        start=EntryCursor(start, start // 10),
        end=EntryCursor(end, end // 10, {"host": "a"}, end % 3),
        digest=(1 << 64) - 1 - number,
        content=number * 7919,
        facts=FileFacts("/logs/a.log", {"log.file.name": "a.log"}),
        fqn="shop.orders",
        run="run-1",
    )


def state(number: int, offset: int = 0, *prepared: Prepared) -> FileState:
    """The state of file `number`, read to `offset`."""
    return FileState(
        id=f"file-{number}",
        source="file_log/shop",
        path=f"/logs/{number}.log",
        fingerprint=FINGERPRINT[number % 7 :][:1000],
        window=(max(offset - 64, 0), min(offset, 64), offset * 7919),
        device=2049,
        inode=number,
        size=offset + 100,
        seen_ms=1_790_000_000_000 + offset,
        cursor=EntryCursor(offset, offset // 10),
        prepared=prepared,
        fqn="shop.orders",
        run=f"run-{number}",
    )


def sized(number: int, fingerprint: int) -> FileState:
    """The state of a file with so many bytes of fingerprint."""
    return replace(state(number), fingerprint=bytes(fingerprint))
