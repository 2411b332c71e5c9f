"""The client's interface to the machine: time, randomness, locks, durable files; retry pauses.

All other modules use this one, so that a test can replace them.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from email.utils import parsedate_to_datetime
from typing import Callable, Optional

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


def sync(file: int) -> None:
    """Makes what was written to an open file or folder survive a power cut. Raises `OSError`.

    On macOS fsync leaves it in the disk's cache, which F_FULLFSYNC empties where it can.
    """
    os.fsync(file)
    try:
        if hasattr(fcntl, "F_FULLFSYNC"):
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY):
            raise


def sync_folder(path: str) -> None:
    """Makes names in the folder survive a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        sync(folder)
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
        sync(file)
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


# The pause before the next attempt.


_BITS = 32


class RetryPause:
    """Pauses that double up to `longest` seconds, each a random part of at least a half.

    A pause is never shorter than the service asked for.
    """

    def __init__(
        self,
        first: float = 0.2,
        longest: float = 30.0,
        random_bits: Callable[[int], int] = random_bits,
    ) -> None:
        self._first = first
        self._longest = longest
        self._next = first
        self._random_bits = random_bits

    def pause(self, retry_after: Optional[float] = None) -> float:
        """Seconds until the next attempt."""
        part = self._random_bits(_BITS) / (1 << _BITS)
        pause = self._next * (0.5 + part / 2)
        self._next = min(self._next * 2, self._longest)
        # Those who were told the same time do not all come back at the same moment.
        return pause if retry_after is None else max(pause, retry_after * (1 + part / 10))

    def reset(self) -> None:
        """After a success."""
        self._next = self._first


def parse_retry_after(text: Optional[str], now_ms: Callable[[], int] = now_ms) -> Optional[float]:
    """Seconds that a `Retry-After` header asks for; None if it is missing or unreadable."""
    if not text:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    moment = parse_http_date(text)
    return None if moment is None else max((moment - now_ms()) / 1000, 0.0)


def parse_http_date(text: Optional[str]) -> Optional[int]:
    """A `Date` header in milliseconds since 1970; None if it is missing or unreadable."""
    try:
        return int(parsedate_to_datetime(text or "").timestamp() * 1000)
    except (TypeError, ValueError, IndexError):
        return None
