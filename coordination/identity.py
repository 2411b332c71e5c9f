"""Who a process is among those that share work: its host, and its data folder if that is its alone.

A process that was killed and starts again takes its own leases back at once, if it is sure that
the earlier one is gone: it holds a lock in the data folder, which dies with its process. A second
process on the same folder, or one without such a folder, succeeds nobody.
"""

from __future__ import annotations

import os
import socket

from logstore.filesystem import FileSystem, Lock


def process_identity(fs: FileSystem, data: str, lock_name: str) -> tuple[str, Lock | None]:
    """The identity, and the lock on the folder; without the lock it is only the host."""
    host, folder = socket.gethostname(), os.path.abspath(data)
    try:
        lock = fs.lock(f"{folder}/{lock_name}", wait=False)
    except OSError:  # there is no such folder, or it is not ours to write in
        lock = None
    return (host, None) if lock is None else (f"{host}:{folder}", lock)
