"""`tailrace forward`: ships files, or stdin to a run; shows and changes checkpoints of files.

    tailrace forward --config FILE                  files (`tailrace.forwarder.main`)
    tailrace forward HOST:PORT… --fqn F --run R     stdin (`tailrace.forwarder.stdin`)
    tailrace forward state list|export|reset        checkpoints (`tailrace.forwarder.checkpoints`)

Each module is imported only when it is needed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType

from tailrace.cli.terminal import say
from tailrace.forwarder.checkpoints import Checkpoints, encode, read_states
from tailrace.forwarder.config.load import read
from tailrace.forwarder.config.source import default_storage
from tailrace.forwarder.delivery.delivery import open_service
from tailrace.forwarder.delivery.targets import Token
from tailrace.forwarder.model import FileState
from tailrace.forwarder.stdin import (
    LEAST_SPOOL_BYTES,
    POLICIES,
    Balanced,
    Forwarding,
    Shape,
    options_for,
)
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput, NotFound
from tailrace.logstore.patterns import wildcard_test
from tailrace.logstore.progress import Line, ProgressLine
from tailrace_client import system
from tailrace_client.command import DEFAULT_SPOOL, add_ca_file
from tailrace_client.delivery import Delivery
from tailrace_client.errors import InvalidRequest
from tailrace_client.records import BatchIds
from tailrace_client.run import DURABILITIES, OUTCOMES, run_path
from tailrace_client.spool import Closing, Target
from tailrace_client.unfinished import UnfinishedLines

_STATE = "state"
_SPOOL_BYTES = 256 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Where to, which run, and what becomes of lines that find no room."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="*",
        help="services that share one store: host:port, https://host, srv+http://name; or `state "
        "list`, `state export` or `state reset`, to show or reset the recorded state of files",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="configuration: which files to ship, and to which "
        "services; without it, stdin is shipped",
    )
    parser.add_argument("--fqn", metavar="F", help="name of the pipeline")
    parser.add_argument(
        "--run", metavar="R", help="id of the run (default: a new one, printed on stderr)"
    )
    parser.add_argument("--prefix", metavar="P", default="", help="text before each line")
    parser.add_argument(
        "--attr",
        metavar="K=V",
        action="append",
        default=[],
        help="an attribute of each record; may be given several times",
    )
    parser.add_argument(
        "--durability", choices=DURABILITIES, default="durable", help="default: %(default)s"
    )
    parser.add_argument(
        "--on-full",
        choices=POLICIES,
        default="block",
        help="when the spool reaches --spool-bytes: stop reading, drop the oldest batch, or "
        "continue until the disk is full (default: %(default)s)",
    )
    parser.add_argument(
        "--spool",
        metavar="DIR",
        default=DEFAULT_SPOOL,
        help="folder for records that are not delivered yet (default: %(default)s)",
    )
    parser.add_argument(
        "--spool-bytes",
        metavar="N",
        type=int,
        default=_SPOOL_BYTES,
        help="maximum size of the spool (default: %(default)s)",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="a file with the token (default: $TAILRACE_TOKEN, else the file $TAILRACE_TOKEN_FILE)",
    )
    add_ca_file(parser)
    parser.add_argument(
        "--close",
        metavar="OUTCOME",
        nargs="?",
        const="",
        help=f"close the run when stdin ends, as {', '.join(OUTCOMES)}, or without an outcome",
    )
    parser.add_argument(
        "--exit-seconds",
        metavar="N",
        type=float,
        default=10.0,
        help="how long to wait for the service when stdin has ended (default: %(default)s)",
    )
    parser.add_argument(
        "--storage",
        metavar="DIR",
        help="`state`: folder of the checkpoints (default: that of --config, else this user's)",
    )
    parser.add_argument("--all", action="store_true", help="`state reset`: every file")
    parser.add_argument(
        "--damaged",
        action="store_true",
        help="`state reset`: give up the states that a damaged checkpoint log lost; the others "
        "are kept",
    )


def run(arguments: argparse.Namespace) -> int:
    """Forwards until stdin ends or a signal comes; returns the exit status."""
    if arguments.target[:1] == [_STATE]:
        return run_state(arguments.target[1:], arguments)
    if arguments.config:
        return _forward_files(arguments)
    return _forward_stdin(arguments)


def _forward_files(arguments: argparse.Namespace) -> int:
    if arguments.target:
        raise InvalidInput(
            "--config and targets both name the services", hint="Leave one of them out."
        )
    config = read(arguments.config)
    from tailrace.forwarder.main import forward  # after a refusal, which need not wait for it

    return forward(config)


def _forward_stdin(arguments: argparse.Namespace) -> int:
    if not arguments.target:
        raise InvalidInput(
            "no target is given",
            hint="Ship files with --config FILE, or stdin with 127.0.0.1:8790 --fqn F.",
        )
    if not arguments.fqn:
        raise InvalidInput("--fqn is missing", hint="Give the name of the pipeline: --fqn NAME.")
    ids = BatchIds()
    name = arguments.run or ids.mint()
    closing = _closing(arguments.close)
    shape = Shape(arguments.prefix, _attributes(arguments.attr))
    line = Line(sys.stderr)
    say = partial(_say, line)
    service = _service(arguments, say)
    # A forwarder that closes the run is its only one: it knows when it began and that it goes on.
    started_ms = None if closing is None else system.now_ms()
    delivery = _delivery(arguments, service, name, ids, say, started_ms)
    if arguments.run is None:
        say(f"the lines become run {arguments.fqn}/{name}")
    forwarding = Forwarding(
        sys.stdin.fileno(),
        delivery,
        shape,
        waits=arguments.on_full != "drop-oldest",
        clock=SystemClock(),
        say=say,
        unfinished=UnfinishedLines(service, arguments.fqn, name, ids.mint()),
    )
    stopped = _stop_on_signals(forwarding)
    with ProgressLine(line, forwarding.progress, SystemClock(), say):
        forwarding.run()
        if stopped:
            say(f"signal {stopped[0]}: stops reading, and delivers the lines that it has read")
        return forwarding.finish(None if stopped else closing, arguments.exit_seconds)


def _service(arguments: argparse.Namespace, say: Callable[[str], None]) -> Balanced:
    """All targets as one service. Raises `InvalidInput`."""
    given = os.environ.get("TAILRACE_TOKEN", "")
    file = arguments.token_file or ("" if given else os.environ.get("TAILRACE_TOKEN_FILE", ""))
    token = Token(given, file=file)
    return open_service(arguments.target, token, say=say, ca_file=arguments.ca_file)


def _delivery(
    arguments: argparse.Namespace,
    service: Balanced,
    run: str,
    ids: BatchIds,
    say: Callable[[str], None],
    started_ms: int | None,
) -> Delivery:
    if arguments.spool_bytes < LEAST_SPOOL_BYTES:
        raise InvalidInput(
            f"--spool-bytes {arguments.spool_bytes} is too small",
            hint=f"Use {LEAST_SPOOL_BYTES} or more.",
        )
    try:
        run_path(arguments.fqn, run)
        return Delivery(
            service,
            os.path.expanduser(arguments.spool),
            Target(service.url, arguments.fqn, run, arguments.durability),
            options_for(arguments.on_full, arguments.spool_bytes),
            say=say,
            ids=ids,
            started_ms=started_ms,
        )
    except InvalidRequest as error:
        raise InvalidInput(error.message, hint=error.hint) from None
    except OSError as error:
        raise InvalidInput(
            f"the spool {arguments.spool} cannot be used: {error.strerror or error}",
            hint="Name another folder with --spool.",
        ) from None


def _attributes(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidInput(f"--attr {text!r} is not K=V", hint="As in --attr region=eu.")
        found[name] = value
    return found


def _closing(outcome: str | None) -> Closing | None:
    if outcome is None:
        return None
    if outcome and outcome not in OUTCOMES:
        raise InvalidInput(
            f"--close {outcome!r} is not an outcome", hint=f"One of {', '.join(OUTCOMES)}."
        )
    return Closing(outcome or None)


def _stop_on_signals(forwarding: Forwarding) -> list[str]:
    """The first signal ends reading, another one the wait; gives the signals that came."""
    came: list[str] = []

    def stop(number: int, _: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(signal.Signals(number).name)
        forwarding.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return came


def _say(line: Line, sentence: str) -> None:
    line.write(f"tailrace forward: {sentence}\n")
    line.flush()


# `tailrace forward state list|export|reset`: the checkpoints of a forwarder's files.
#
# `list` is for people, `export` for programs: a line of JSON for each file, as in the checkpoint
# log. Both may run while a forwarder does. `reset` needs it to be stopped.


_ACTS = ("list", "export", "reset")
_HEADS = ("STAGE", "SOURCE", "RUN", "ACKNOWLEDGED", "SIZE", "SENDING", "LOST", "PATH")


def run_state(words: Sequence[str], arguments: argparse.Namespace) -> int:
    """Does what the words say. Raises `InvalidInput` and what the checkpoints raise."""
    if not words or words[0] not in _ACTS:
        raise InvalidInput(
            "the action on the state is missing", hint=f"One of: state {', state '.join(_ACTS)}."
        )
    act, files = words[0], words[1:]
    folder = arguments.storage or _configured(arguments.config)
    if act == "reset":
        return _reset(folder, files, arguments)
    if files:
        raise InvalidInput(f"state {act} takes no files", hint="It always shows all files.")
    states = sorted(read_states(folder).values(), key=lambda state: (state.path, state.id))
    if act == "export":
        for state in states:
            sys.stdout.write(encode(state, with_fingerprint=True).decode("ascii"))
        return 0
    say(_table(states))
    return 0


def _configured(config: str | None) -> str:
    return read(config).folder if config else default_storage()


def _reset(folder: str, files: Sequence[str], arguments: argparse.Namespace) -> int:
    if bool(files) + arguments.all + arguments.damaged != 1:
        raise InvalidInput(
            "`state reset` needs files",
            hint="Name files by path, pattern or id, or use --all or --damaged.",
        )
    salvage = arguments.all or arguments.damaged
    with Checkpoints(folder, say=_say_state, salvage=salvage) as log:
        if arguments.damaged:
            _say_state(f"{len(log.files)} files are known")
        elif arguments.all:
            count = len(log.files)
            _say_state(
                f"{count} files are forgotten; a copy of their state is kept in {log.reset()}"
            )
        else:
            try:
                tests = [wildcard_test(one) for one in files]
            except ValueError as error:
                raise InvalidInput(f"a pattern {error}", hint="Name files by their ids.") from None
            chosen = [
                state
                for state in log.files.values()
                if state.id in files or any(test(state.path) for test in tests)
            ]
            if not chosen:
                raise NotFound(
                    f"no known file matches {' or '.join(files)}",
                    hint="`tailrace forward state list` shows the paths.",
                )
            for state in chosen:
                log.forget(state.id)
                say(_printable(state.path))
    return 0


def _table(states: Sequence[FileState]) -> str:
    rows = [_HEADS, *map(_cells, states)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    )


def _cells(state: FileState) -> tuple[str, ...]:
    return (
        state.stage,
        state.source,
        f"{state.fqn}/{state.run}" if state.fqn else "-",
        str(state.cursor.offset),
        str(state.size),
        str(len(state.prepared)),
        str(state.lost),
        _printable(state.path),
    )


def _printable(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()


def _say_state(sentence: str) -> None:
    say(f"tailrace forward: {sentence}", sys.stderr)
