"""Who hears of passes, by the settings and by where standard error goes."""

from __future__ import annotations

import os
import socket
from typing import TextIO

from compactor.settings import CompactorSettings
from compactor.telling.logs import LogListener, configure
from compactor.telling.measured import MetricsListener
from compactor.telling.passes import Listener
from compactor.telling.progress import Progress, Tasks
from compactor.telling.push import PushGateway
from compactor.telling.summary import Summary
from compactor.telling.textfile import Textfile
from logstore.clock import Clock
from logstore.filesystem import FileSystem


def listeners(
    settings: CompactorSettings,
    clock: Clock,
    fs: FileSystem,
    tasks: Tasks,
    *,
    out: TextIO | None,
    errors: TextIO,
    every_line: bool = True,
    single: bool = False,
    watched: bool = True,
) -> list[Listener]:
    """All of them, in the order in which they hear of a pass; logs go to `errors` from now on.

    Lines of JSON go to `out`: of every pass, or only of those with something to tell. On a terminal
    that is not `watched` for this, as that of a service, there is no bar.
    """
    compaction = settings.compaction
    bar = None
    if watched and compaction.log_format == "text" and errors.isatty():
        bar = Progress(clock, errors, tasks)
    configure(compaction.log_format, errors, bar.clear if bar else None)
    found: list[Listener] = [bar] if bar else []
    file = textfile(settings, fs)
    gateway = None
    if compaction.push_gateway:
        gateway = PushGateway(compaction.push_gateway, socket.gethostname())
    if file or gateway:
        found.append(MetricsListener(clock, file, gateway))
    lines = [] if out is None else [Summary(out, every=every_line)]
    return [*found, LogListener(single=single), *lines]


def textfile(settings: CompactorSettings, fs: FileSystem) -> Textfile | None:
    """The metrics file; None if there is to be none, or no data folder where it could be."""
    name = settings.compaction.metrics_file
    if not name:
        return None
    path = os.path.join(os.path.abspath(settings.data), name)
    if not os.path.isabs(name):
        try:
            lock = fs.lock(f"{path}.lock", wait=False)
        except OSError:  # there is no such folder, or it is not ours to write in
            return None
        if lock is not None:
            lock.release()
    return Textfile(fs, path)
