"""Reads checkpoints without their lock, beside a forwarder that writes them."""

from __future__ import annotations

from collections.abc import Mapping

from forwarder.checkpoints.errors import StorageFailed
from forwarder.checkpoints.folder import LOG, Folder, errors_as_ours
from forwarder.model import FileState
from logstore.disk import Disk
from logstore.errors import NotFound
from logstore.filesystem import FileSystem

_ATTEMPTS = 10


def read_states(folder: str, fs: FileSystem | None = None) -> Mapping[str, FileState]:
    """The states by id, as they were at some moment of this call.

    Raises `NotFound` where there are no checkpoints, `StorageDamaged`, `StorageFailed`.
    """
    files = Folder(folder, fs or Disk())
    with errors_as_ours(files.path):
        for _ in range(_ATTEMPTS):
            numbers = files.numbers(LOG)
            if not numbers:
                raise NotFound(
                    f"{files.path} has no checkpoints", hint="Name the folder with --storage."
                )
            try:
                return files.read(numbers[-1])[0].files
            except FileNotFoundError:  # a newer one has come, and this is gone
                continue
    raise StorageFailed(f"checkpoints in {files.path} are replaced faster than they are read")
