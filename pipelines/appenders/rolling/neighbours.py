"""Other writers below the same folder: a file has one of them, whatever their templates say.

Two appenders with one template are refused before they run (`config`). Two templates that differ
may still lead to one file, such as `{fqn}.log` and `{service}.log`. Each would take the file back
to its own checkpoint, and cut off what the other one wrote. So whoever begins a file, or starts,
looks into the catalogs of those that are at work.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from logstore.filesystem import FileSystem
from pipelines.appenders.contract import AppenderFailed
from pipelines.appenders.rolling.catalog import catalog_in, paths_in


def refuse_shared(fs: FileSystem, own: str, paths: Collection[str]) -> None:
    """Raises `AppenderFailed` if another writer that is at work has one of the paths.

    `own` is the folder DIR/.tailrace/{name} of who asks.
    """
    if not paths:
        return
    writers, name = os.path.split(own)
    for other, is_folder in fs.scan(writers):
        folder = os.path.join(writers, other)
        if not is_folder or other == name or fs.stat(catalog_in(folder)) is None:
            continue
        shared = sorted({*paths_in(fs, catalog_in(folder))[0]}.intersection(paths))
        if shared and _is_at_work(fs, folder):
            raise AppenderFailed(
                f"{shared[0]} is written by {other}, and cannot have a second writer",
                hint="Give one of the two appenders another path.",
            )


def _is_at_work(fs: FileSystem, folder: str) -> bool:
    lock = fs.lock(os.path.join(folder, "lock"), wait=False)
    if lock is None:
        return True
    lock.release()
    return False
