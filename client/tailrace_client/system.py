"""What the client takes of the machine: time, randomness, locks and files that survive a crash.

All other modules come here for them, so that a test can put its own in their place.
"""

from __future__ import annotations

import os
import secrets
import time
from typing import Optional

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment, unused-ignore]

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _steady_ns() -> int:
    """Nanoseconds of a clock that is never set and goes on while the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns()


_STARTED_NS = time.time_ns() - _steady_ns()


def steady_ms() -> int:
    """Milliseconds since 1970 by the clock as it was when this program started.

    If the clock is set meanwhile, this one does not follow.
    """
    return (_STARTED_NS + _steady_ns()) // 1_000_000


def monotonic() -> float:
    """Seconds of a clock that is never set."""
    return time.monotonic()


def random_bits(bits: int) -> int:
    """A random number, also different in each process after a fork."""
    return secrets.randbits(bits)


def open_new(path: str) -> int:
    """A new file to append to, which only its owner may read. Raises `FileExistsError`."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)


def sync_folder(path: str) -> None:
    """Makes names in the folder survive a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def rename(old: str, new: str) -> None:
    """Renames a file or folder, so that the new name survives a power cut."""
    os.rename(old, new)
    sync_folder(os.path.dirname(new))


def write_whole(path: str, data: bytes) -> None:
    """Puts a file in place as a whole: after a crash it has its old content, or the new one."""
    draft = path + ".new"
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    try:
        if os.write(file, data) != len(data):
            raise OSError(28, "no space left for the whole file")
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(draft, path)
    sync_folder(os.path.dirname(path))


def lock_file(path: str) -> Optional[int]:
    """Locks a file until its descriptor is closed, or the process ends.

    Returns the descriptor; None if another process has the lock, or the file is gone.
    Raises `OSError` where the system has no such locks.
    """
    if fcntl is None:
        raise OSError("a spool needs POSIX file locks, which this system does not have")
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had the lock may have removed the file meanwhile.
        if os.fstat(file).st_ino == os.stat(path).st_ino:
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def sleep(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)
