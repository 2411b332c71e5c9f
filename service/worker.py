"""A worker of `serve --workers N`, the child of `service.workers`.

It reads its assignment from stdin. When stdin ends, the parent has died, and the worker stops as
it does for SIGTERM; it does so at once if it is stopping already.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import pickle
import signal
import socket
import sys
from contextlib import suppress

import uvloop

from service.http.server import Sharing
from service.main import prepare, run
from service.runtime.process import StopDeadline
from service.workers import LINES_LEFT, WorkerAssignment
from tailrace.logstore.errors import TailraceError

log = logging.getLogger(__name__)

_STDIN = 0
_PARENT_DIED = 1


def main() -> int:
    """Serves until the parent stops it or dies. Returns the exit status."""
    size = int.from_bytes(sys.stdin.buffer.read(8), "big")
    said = sys.stdin.buffer.read(size)
    if not size or len(said) < size:
        return _PARENT_DIED
    assignment: WorkerAssignment = pickle.loads(said)  # noqa: S301 -- our parent's
    prepare(assignment.settings)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_work(assignment))
    except TailraceError as error:
        log.error("%s (%s)", error, error.hint or "no hint")
        return 1


async def _work(assignment: WorkerAssignment) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def parent_died() -> None:
        if stop.is_set():
            os._exit(1)  # as a second signal does
        stop.set()
        loop.remove_reader(_STDIN)

    def serves(_: str) -> None:
        with suppress(BrokenPipeError):  # the parent has died, which the end of stdin shows as well
            os.write(assignment.ready, b"1")
        os.close(assignment.ready)
        if assignment.shared is None:
            stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(_STDIN, parent_died)
    number, sharing = assignment.place.number, None
    if assignment.shared is not None:
        ends = {n: socket.socket(fileno=end) for n, end in enumerate(assignment.inboxes)}
        inbox = ends.pop(number)
        serving = mmap.mmap(assignment.serving, len(assignment.inboxes), prot=mmap.PROT_READ)
        shared = socket.socket(fileno=assignment.shared)
        sharing = Sharing(number, shared, inbox, ends, serving)
    return await run(
        assignment.settings,
        stop,
        on_listening=serves,
        bound=socket.socket(fileno=assignment.own),
        place=assignment.place,
        sharing=sharing,
        deadline=StopDeadline(LINES_LEFT),
    )


if __name__ == "__main__":
    sys.exit(main())
