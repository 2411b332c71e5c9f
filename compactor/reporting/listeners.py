"""The listeners of passes, by the settings and by where standard error goes.

The summary is a line of JSON on standard output for each pass, or for each that did something.
"""

from __future__ import annotations

import os
import socket
from typing import TextIO

from compactor.report import Report
from compactor.reporting.logs import LogListener, configure
from compactor.reporting.passes import Listener
from compactor.reporting.progress import Progress, Tasks
from compactor.reporting.recorder import MetricsListener, PushGateway
from compactor.reporting.textfile import Textfile
from compactor.settings import CompactorSettings
from logstore.clock import Clock
from logstore.filesystem import FileSystem


class SummaryListener:
    """Writes the line when a pass is over: of `every` pass, or of those worth reporting."""

    every_seconds = None

    def __init__(self, out: TextIO, *, every: bool = True) -> None:
        self._out = out
        self._every = every

    async def look(self, report: Report) -> None:
        """Writes nothing before the end."""

    async def over(self, report: Report) -> None:
        """Writes the line."""
        if not (self._every or report.worth_reporting):
            return
        self._out.write(report.line() + "\n")
        self._out.flush()


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
    """All listeners, in the order in which they hear of a pass; logs go to `errors` from now on.

    Lines of JSON go to `out`: of every pass, or only of those worth reporting. A terminal that is
    not `watched`, as that of a service, shows no progress bar.
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
    lines = [] if out is None else [SummaryListener(out, every=every_line)]
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
