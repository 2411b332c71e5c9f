"""`python -m tailrace_client run --fqn F -- CMD…`: a command whose output becomes a run.

The command's output is passed on at once, byte for byte, and its lines become records with the
attribute `stream`. Signals are passed on to it. When it has ended, the run is closed: `success`
for status 0, `stopped` after SIGINT or SIGTERM, else `failed`; the last record has the status
as the attribute `exit_code`. The exit status is the command's; a signal that ended it ends
this program too.

The service has no part in this: records wait in the spool, and the command never waits for it.
Lines end at `\\n`. If a line was overwritten (`\\r`), the record has its last state; live views
show the others while it is not finished. Bytes that are no UTF-8 are replaced in the record, and a
line beyond 512 KiB becomes several records with the attribute `partial`.

The command has a pipe for each stream. Lines are in the order in which they are read: a moment
between two writes is enough. With `--merge` both streams are one pipe, and with `--pty` a terminal:
then the order is the command's, and the streams cannot be told apart.

The token comes from the environment or a file, and never from an argument.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from tailrace_client import system
from tailrace_client.delivery import Delivery
from tailrace_client.errors import InvalidRequest
from tailrace_client.handler import left_behind
from tailrace_client.records import BatchIds, encode_record
from tailrace_client.run import DURABILITIES, run_path
from tailrace_client.service import Service
from tailrace_client.spool import Closing, Target
from tailrace_client.unfinished import UnfinishedLines, collapse, finished, last_state

# The environment of a command: the token, which is never an argument, and certificates.


def token_of_environment() -> Optional[str]:
    """`TAILRACE_TOKEN`, or what is in the file that `TAILRACE_TOKEN_FILE` names; None: no token.

    Raises `InvalidRequest` for a file that has none.
    """
    token = os.environ.get("TAILRACE_TOKEN")
    name = os.environ.get("TAILRACE_TOKEN_FILE")
    if token or not name:
        return token or None
    try:
        with open(name, encoding="ascii") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise InvalidRequest(
            f"the token in {name} cannot be read: {why}",
            hint="TAILRACE_TOKEN_FILE is a file with one line, which this user may read.",
        ) from None
    if not token:
        raise InvalidRequest(f"{name} is empty", hint="It is to hold the token.")
    return token


def add_ca_file(parser: argparse.ArgumentParser, default: Any = None) -> None:
    """The flag that names the certificates to trust; `default` is for a flag that comes twice."""
    parser.add_argument(
        "--ca-file",
        metavar="FILE",
        default=default or os.environ.get("TAILRACE_CA_FILE", ""),
        help="certificate (PEM) of the authority that signed the service's certificate (default:"
        " $TAILRACE_CA_FILE, else the machine's)",
    )


DEFAULT_URL = "http://127.0.0.1:8790"
DEFAULT_SPOOL = "~/.local/state/tailrace/spool"

SEPARATE, MERGED, TERMINAL = "separate", "merged", "terminal"

_PIECE = select.PIPE_BUF
"""What a pipe that can be written to takes without waiting."""
_LONGEST_LINE = 512 << 10
_BACKGROUND_SECONDS = 1.0
_LOOK_SECONDS = 0.01
_SIGNAL_SECONDS = 0.1
_FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_OF_TERMINAL = ("SIGINT", "SIGQUIT")
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class CommandOutput(NamedTuple):
    """A stream of a command, its destination, and the attributes of its records."""

    source: int
    target: int
    name: str


class Command:
    """A command, the delivery that takes its lines, and the display of unfinished ones."""

    def __init__(
        self,
        words: List[str],
        delivery: Delivery,
        unfinished: UnfinishedLines,
        outputs: str = SEPARATE,
    ) -> None:
        self._words = words
        self._delivery = delivery
        self._unfinished = unfinished
        self._outputs = outputs
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._early: List[int] = []
        self._ended = threading.Event()
        self._rest: Dict[str, bytes] = {}

    def run(self) -> int:
        """Runs it to its end: its status, or minus the signal that ended it."""
        self._forward_signals()
        outputs, ends = _open_outputs(self._outputs)
        try:
            process = subprocess.Popen(self._words, stdout=ends[0], stderr=ends[-1])
        except OSError as error:
            status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
            message = f"{self._words[0]} cannot be started: {error.strerror}"
            sys.stderr.write(f"error: {message}\n")
            self._put(message, "ERROR", {"exit_code": status})
            return status
        finally:
            for end in ends:
                os.close(end)
        self._process = process
        for number in self._early:
            process.send_signal(number)
        reader = threading.Thread(target=self._pass_on, args=(outputs,), daemon=True)
        reader.start()
        waiter = threading.Thread(target=process.wait, daemon=True)
        waiter.start()
        while waiter.is_alive():  # a signal that comes just before a wait does not interrupt it
            waiter.join(_SIGNAL_SECONDS)
        status = process.wait()
        self._ended.set()
        while reader.is_alive():  # it ends when what is left in the background is silent
            reader.join(_SIGNAL_SECONDS)
        ended = f"exited with {status}" if status >= 0 else f"ended by signal {-status}"
        self._put(f"{self._words[0]} {ended}", "ERROR" if status else "INFO", {"exit_code": status})
        return status

    def _pass_on(self, outputs: List[CommandOutput]) -> None:
        """Copies all outputs, and makes records of their lines, in the order in which they come.

        One thread reads small pieces of whatever is ready, and of nothing that could not be
        passed on: who reads our stdout slowly does not keep stderr.
        """
        open_, full = {output.source: output for output in outputs}, set[int]()
        silent_since = system.monotonic()
        while open_:
            ready, free, _ = select.select(
                [source for source in open_ if source not in full],
                [open_[source].target for source in full],
                [],
                _LOOK_SECONDS if self._ended.is_set() else _SIGNAL_SECONDS,
            )
            full = {source for source in full if open_[source].target not in free}
            if not (ready or full):
                if self._ended.is_set() and system.monotonic() - silent_since > _BACKGROUND_SECONDS:
                    break
                continue
            silent_since = system.monotonic()
            for source in ready:
                output = open_[source]
                if not select.select([], [output.target], [], 0)[1]:
                    full.add(source)
                elif not self._pass_piece(output):
                    del open_[source]
                    os.close(source)
        for output in outputs:
            if rest := self._rest.get(output.name):
                self._line(rest, output.name)

    def _pass_piece(self, output: CommandOutput) -> bool:
        """Copies a piece; False at the end, or if nobody takes it any more."""
        try:
            piece = os.read(output.source, _PIECE)
        except OSError:  # a terminal that nobody has open any more
            return False
        if not piece or not _write_all(output.target, piece):
            return False  # as for the command alone: its next write fails
        *lines, rest = (self._rest.get(output.name, b"") + piece).split(b"\n")
        for line in lines:
            self._line(line, output.name)
        rest = collapse(rest)
        while len(rest) >= _LONGEST_LINE:
            self._line(rest[:_LONGEST_LINE], output.name, partial=True)
            rest = rest[_LONGEST_LINE:]
        self._rest[output.name] = rest
        self._unfinished.show(output.name, last_state(rest))
        return True

    def _line(self, line: bytes, stream: str, *, partial: bool = False) -> None:
        attributes: Dict[str, Any] = {"stream": stream}
        if partial:
            attributes["partial"] = True
        self._put(finished(line).decode("utf-8", "replace"), None, attributes)

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


def _open_outputs(kind: str) -> Tuple[List[CommandOutput], List[int]]:
    """What is read of the command, and its own ends: stdout first, stderr last."""
    if kind == TERMINAL:
        ours, theirs = _open_terminal()
        return [CommandOutput(ours, 1, "terminal")], [theirs]
    names = ("stdout", "stderr") if kind == SEPARATE else ("output",)
    pipes = [os.pipe() for _ in names]
    outputs = [
        CommandOutput(ours, target, name) for (ours, _), target, name in zip(pipes, (1, 2), names)
    ]
    return outputs, [theirs for _, theirs in pipes]


def _open_terminal() -> Tuple[int, int]:
    """Both ends of a terminal as large as ours, which passes every byte on as it is."""
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    for descriptor in (1, 2, 0):
        with suppress(OSError):
            size = fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
            break
    return ours, theirs


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
    add_ca_file(parser)
    parser.add_argument("--fqn", metavar="F", required=True, help="name of the pipeline")
    parser.add_argument(
        "--run", metavar="R", help="id of the run (default: a new one, printed on stderr)"
    )
    parser.add_argument(
        "--spool",
        metavar="DIR",
        default=DEFAULT_SPOOL,
        help="folder for records that are not delivered yet (default: %(default)s)",
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
    outputs = parser.add_mutually_exclusive_group()
    outputs.add_argument(
        "--pty",
        dest="outputs",
        action="store_const",
        const=TERMINAL,
        default=SEPARATE,
        help="run the command in a terminal: it does not buffer output, and shows colours and "
        "progress bars",
    )
    outputs.add_argument(
        "--merge",
        dest="outputs",
        action="store_const",
        const=MERGED,
        help="read stdout and stderr through one pipe, in the exact order of the writes",
    )
    parser.add_argument("command", nargs="+", metavar="CMD", help="the command, after --")


def run(parsed: argparse.Namespace) -> int:
    """Runs the command: its exit status. Raises `InvalidRequest`, `OSError`."""
    ids = BatchIds()
    name = parsed.run or ids.mint()
    spool = os.path.expanduser(parsed.spool)
    service = Service(parsed.url, token=token_of_environment(), ca_file=parsed.ca_file)
    run_path(parsed.fqn, name)
    target = Target(service.url, parsed.fqn, name, parsed.durability)
    began_ms = system.now_ms()
    delivery = Delivery(service, spool, target, say=_say, ids=ids, started_ms=began_ms)
    if parsed.run is None:
        _say(f"the output becomes run {parsed.fqn}/{name}")
    unfinished = UnfinishedLines(service, parsed.fqn, name, ids.mint())
    status = Command(parsed.command, delivery, unfinished, parsed.outputs).run()
    unfinished.stop()
    left = delivery.close(closing_of(status), parsed.exit_seconds)
    if left is not None:
        _say(left_behind(left, parsed.fqn, name))
    return end_as(status)


def _say(sentence: str) -> None:
    sys.stderr.write(f"tailrace-client: {sentence}\n")
