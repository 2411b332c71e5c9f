"""The process of `process`: it makes segments, told by messages on standard input, until that ends.

Its parent reads nothing while it works, so it notices the end behind the segment that it makes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from logstore.batch import BATCH, RunKey
from logstore.disk import Disk
from logstore.filesystem import File
from logstore.memory import give_back_freed_memory
from logstore.segments import footer as footers
from logstore.segments.carry import Carry, Last
from service.journal.view import JournalBatches
from service.shipping.cut_work import CutWork
from service.shipping.process import EncoderFailed, Part, receive, send


class OpenFile:
    """A journal file that is read here."""

    def __init__(self, path: str, file: File) -> None:
        self.path = path
        self._file = file

    def read(self, size: int, offset: int) -> bytes:
        """As `JournalFile.read`. Raises `OSError`."""
        return self._file.pread(size, offset)


def run(parent: socket.socket) -> None:
    """Works until the parent is gone."""
    with suppress(EncoderFailed):
        send(parent, {"ready": True})
        while True:
            head, parts = receive(parent)
            answer: dict[str, Any]
            results: list[Part]
            try:
                answer, results = _encoded(head, parts)
            except Exception as error:  # noqa: BLE001 -- the parent makes it, and raises its own
                answer, results = {"failed": f"{type(error).__name__}: {error}"}, []
            send(parent, answer, *results)


def _encoded(
    head: Mapping[str, Any], parts: Sequence[bytearray]
) -> tuple[dict[str, Any], list[Part]]:
    rows, file_of, *state = parts
    runs = [RunKey(fqn, run) for fqn, run in head["runs"]]
    before = Carry(max(len(runs), 1))
    before.save(runs, Last(*(np.frombuffer(part, np.int64) for part in state)))
    with ExitStack() as opened:
        paths = [os.fsdecode(bytes.fromhex(path)) for path in head["paths"]]
        files = [OpenFile(path, _open(path, opened)) for path in paths]
        batches = JournalBatches(
            head["node"],
            np.frombuffer(rows, BATCH),
            files,
            np.frombuffer(file_of, np.int32),
            runs,
            head["connectors"],
        )
        work = CutWork(batches, head["seq"], head["first"], head["end"], before)
        cut = work.encoded(threads=True)
    segment, last = cut.segment, cut.carry.load(runs)
    about = {"text_bytes": segment.text_bytes, "footer": footers.encode(segment.footer)}
    return about, [segment.body, last.times, last.levels, last.traces]


def _open(path: str, opened: ExitStack) -> File:
    file = Disk().open(path, "read")
    opened.callback(file.close)
    return file


def _offer_to_the_kernel() -> None:
    """Where memory runs out, this process is the one to end: nothing is lost with it."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


if __name__ == "__main__":
    give_back_freed_memory()
    _offer_to_the_kernel()
    run(socket.socket(fileno=os.dup(0)))
