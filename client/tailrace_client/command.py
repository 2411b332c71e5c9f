"""`python -m tailrace_client run --fqn F -- CMD…`: a command whose output becomes a run.

What the command writes is passed on at once, byte for byte, and its lines become records with the
attribute `stream`. Signals are passed on to it. When it has ended, the run is closed: `success`
for status 0, `stopped` after SIGINT or SIGTERM, else `failed`; the last record has the status
as the attribute `exit_code`. The exit status is the command's; a signal that ended it ends
this program too.

The service has no part in this: records wait in the spool, and the command never waits for it.
Lines end at `\\n`. What is no UTF-8 is replaced in the record, and a line beyond 512 KiB becomes
several records with the attribute `partial`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, Dict, List, Optional

from tailrace_client import system
from tailrace_client.delivery import Delivery
from tailrace_client.environment import token_of_environment
from tailrace_client.handler import left_behind
from tailrace_client.ids import BatchIds
from tailrace_client.records import encode_record
from tailrace_client.run import DURABILITIES, run_path
from tailrace_client.service import Service
from tailrace_client.spool import Closing, Target

DEFAULT_URL = "http://127.0.0.1:8790"
DEFAULT_SPOOL = "~/.local/state/tailrace/spool"

_PIECE = 64 << 10
_LONGEST_LINE = 512 << 10
_BACKGROUND_SECONDS = 1.0
_LOOK_SECONDS = 0.01
_SIGNAL_SECONDS = 0.1
_BUSY = float("inf")
_FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_OF_TERMINAL = ("SIGINT", "SIGQUIT")
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class Command:
    """A command, and the delivery that takes its lines."""

    def __init__(self, words: List[str], delivery: Delivery) -> None:
        self._words = words
        self._delivery = delivery
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._early: List[int] = []
        self._waiting: Dict[int, float] = {}
        """Since when a pipe's reader waits for something to read."""

    def run(self) -> int:
        """Runs it to its end: its status, or minus the signal that ended it."""
        self._forward_signals()
        try:
            process = subprocess.Popen(
                self._words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
            message = f"{self._words[0]} cannot be started: {error.strerror}"
            sys.stderr.write(f"error: {message}\n")
            self._put(message, "ERROR", {"exit_code": status})
            return status
        self._process = process
        for number in self._early:
            process.send_signal(number)
        readers = [
            threading.Thread(target=self._pass_on, args=(stream, target, name), daemon=True)
            for stream, target, name in (
                (process.stdout, 1, "stdout"),
                (process.stderr, 2, "stderr"),
            )
        ]
        pipes = (process.stdout, process.stderr)
        self._waiting = {pipe.fileno(): _BUSY for pipe in pipes if pipe is not None}
        for reader in readers:
            reader.start()
        waiter = threading.Thread(target=process.wait, daemon=True)
        waiter.start()
        while waiter.is_alive():  # a signal that comes just before a wait does not interrupt it
            waiter.join(_SIGNAL_SECONDS)
        status = process.wait()
        while any(reader.is_alive() for reader in readers) and not self._silent():
            system.sleep(_LOOK_SECONDS)
        ended = f"exited with {status}" if status >= 0 else f"ended by signal {-status}"
        self._put(f"{self._words[0]} {ended}", "ERROR" if status else "INFO", {"exit_code": status})
        return status

    def _silent(self) -> bool:
        """Whether nothing has come for a while: what still has the pipes is in the background."""
        now = system.monotonic()
        return all(now - since > _BACKGROUND_SECONDS for since in list(self._waiting.values()))

    def _read(self, source: int) -> bytes:
        self._waiting[source] = system.monotonic()
        piece = os.read(source, _PIECE)
        self._waiting[source] = _BUSY
        return piece

    def _pass_on(self, stream: Any, target: int, name: str) -> None:
        """Copies a stream, and makes records of its lines."""
        rest = b""
        with stream:
            source = stream.fileno()
            while piece := self._read(source):
                if not _write_all(target, piece):
                    break  # as for the command alone: its next write fails
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self._line(line, name)
                while len(rest) >= _LONGEST_LINE:
                    self._line(rest[:_LONGEST_LINE], name, partial=True)
                    rest = rest[_LONGEST_LINE:]
        if rest:
            self._line(rest, name)
        del self._waiting[source]

    def _line(self, line: bytes, stream: str, *, partial: bool = False) -> None:
        attributes: Dict[str, Any] = {"stream": stream}
        if partial:
            attributes["partial"] = True
        self._put(line.decode("utf-8", "replace"), None, attributes)

    def _put(self, message: str, level: Optional[str], attributes: Dict[str, Any]) -> None:
        self._delivery.put(
            encode_record(message, ts=system.now_ms() / 1000, level=level, attributes=attributes)
        )

    def _forward_signals(self) -> None:
        in_front = False
        with suppress(OSError):  # the terminal sends Ctrl-C to the command itself
            in_front = os.tcgetpgrp(0) == os.getpgrp()
        for name in _FORWARDED:
            ignored = in_front and name in _OF_TERMINAL
            signal.signal(getattr(signal, name), _ignore if ignored else self._forward)

    def _forward(self, number: int, _: Optional[FrameType]) -> None:
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)


def _ignore(_: int, __: Optional[FrameType]) -> None:
    """A handler, since the command would inherit `SIG_IGN`."""


def _write_all(target: int, data: bytes) -> bool:
    """Writes to one of our own streams; False if nobody reads it any more."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:  # noqa: PERF203
            system.sleep(0.001)
        except OSError:
            return False
    return True


def closing_of(status: int) -> Closing:
    """How a run is closed whose command ended with a status."""
    if status == 0:
        return Closing("success")
    return Closing("stopped" if -status in (signal.SIGINT, signal.SIGTERM) else "failed")


def end_as(status: int) -> int:
    """The exit status; a signal that ended the command ends this process here."""
    if status >= 0:
        return status
    if sys.stderr is not None:
        sys.stderr.flush()
    with suppress(OSError):  # SIGKILL has no handler to reset
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    return 128 - status  # for a signal that ends nobody


def configure(parser: argparse.ArgumentParser) -> None:
    """The command line of `run`."""
    default = os.environ.get("TAILRACE_URL", DEFAULT_URL)
    parser.add_argument(
        "--url",
        metavar="U",
        default=default,
        help=f"the service (default: $TAILRACE_URL, else {DEFAULT_URL})",
    )
    parser.add_argument("--fqn", metavar="F", required=True, help="name of the pipeline")
    parser.add_argument(
        "--run", metavar="R", help="id of the run (default: a new one, said on stderr)"
    )
    parser.add_argument(
        "--spool",
        metavar="DIR",
        default=DEFAULT_SPOOL,
        help="folder for what is not delivered yet (default: %(default)s)",
    )
    parser.add_argument(
        "--durability", default="durable", choices=DURABILITIES, help="default: %(default)s"
    )
    parser.add_argument(
        "--exit-seconds",
        metavar="N",
        type=float,
        default=10.0,
        help="how long to wait for the service when the command has ended (default: %(default)s)",
    )
    parser.add_argument("command", nargs="+", metavar="CMD", help="the command, behind --")


def run(parsed: argparse.Namespace) -> int:
    """Runs the command: its exit status. Raises `InvalidRequest`, `OSError`."""
    ids = BatchIds()
    name = parsed.run or ids.mint()
    spool = os.path.expanduser(parsed.spool)
    service = Service(parsed.url, token=token_of_environment())
    run_path(parsed.fqn, name)
    target = Target(service.url, parsed.fqn, name, parsed.durability)
    began_ms = system.now_ms()
    delivery = Delivery(service, spool, target, say=_say, ids=ids, started_ms=began_ms)
    if parsed.run is None:
        _say(f"the output becomes run {parsed.fqn}/{name}")
    status = Command(parsed.command, delivery).run()
    left = delivery.close(closing_of(status), parsed.exit_seconds)
    if left is not None:
        _say(left_behind(left, parsed.fqn, name))
    return end_as(status)


def _say(sentence: str) -> None:
    sys.stderr.write(f"tailrace-client: {sentence}\n")
