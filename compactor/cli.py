"""The command line of the compactor, and its flags.

Standard output has a line of JSON for each pass worth reporting, unless it is a terminal.

Exit codes: 0 done; 1 done as far as possible, with alarms; 2 wrong flags or settings; 3 nothing
could be done (Java, store); 4 something in the store is damaged.

It stops on a signal, or when the `spark-submit` that started it ends. It then cancels its work and
releases its leases; the work of Spark is left undone. A signal to `spark-submit` ends its JVM and
does not reach this process, which would continue without a Spark. But its input is a pipe from that
JVM, so the end of the input counts as a signal.

`configure` adds the flags, which `compactor/job.py` and `tailrace compact` share; the latter passes
them on (`words`).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, TextIO

from compactor.context import Compactor
from compactor.listeners import configure as configure_log
from compactor.listeners import listeners
from compactor.passes import Passes
from compactor.runner import make_session, once, open_compactor, repeat
from compactor.settings import CompactorSettings, load_settings
from compactor.spark.engine import submitted
from compactor.spark.session import in_thread
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput, OutcomeUnknown, TailraceError, Unavailable
from tailrace.logstore.filesystem import Disk, apply_umask

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags to a parser."""
    parser.add_argument("--data", metavar="DIR", help="data folder (default: ./data)")
    parser.add_argument("--config", metavar="FILE", help="settings file (default: ./tailrace.yaml)")
    parser.add_argument(
        "--every",
        metavar="TIME",
        type=seconds,
        help="keep compacting with this pause, such as 5m (default: once)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what a pass would do, change nothing; needs no Java",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait for other compactors that have the work, then do the rest",
    )
    parser.add_argument(
        "--erase",
        action="store_true",
        help="remove deleted lines now: rewrite files whatever their size, remove files of older"
        " versions of the table and segments that the table has; searches of these versions fail",
    )
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument(
        "--json",
        action="store_true",
        help="print a JSON line on stdout for each pass, even without work and on a terminal;"
        " with --dry-run: the plan of a pass",
    )
    lines.add_argument("--quiet", action="store_true", help="no lines of JSON, no progress bar")
    parser.add_argument(
        "--log-format",
        choices=["text", "json"],
        help="format of the log on stderr: text, or one JSON object per line (default: text)",
    )
    parser.add_argument("--metrics-file", metavar="FILE", help="see `compaction.metrics_file`")
    parser.add_argument("--push-gateway", metavar="URL", help="see `compaction.push_gateway`")
    parser.add_argument("--kill-at", default="", help=argparse.SUPPRESS)


def settings_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Returns the given flags that are settings, in the nested form of the settings file."""
    names = ("log_format", "metrics_file", "push_gateway")
    given = {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
    nested: dict[str, Any] = {} if flags.data is None else {"data": flags.data}
    return nested | ({"compaction": given} if given else {})


def words(flags: argparse.Namespace) -> list[str]:
    """Returns the command line for these flags."""
    parser = argparse.ArgumentParser(add_help=False)
    configure(parser)
    return list(_words(parser, flags))


def seconds(text: str) -> float:
    """Returns `90`, `90s`, `5m` or `1h` in seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text)
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 5m")
    return float(found[1]) * _UNITS[found[2]]


def _words(parser: argparse.ArgumentParser, flags: argparse.Namespace) -> Iterator[str]:
    for action in parser._actions:
        value = getattr(flags, action.dest)
        if value == action.default:
            continue
        option = action.option_strings[0]
        # In one word, since a value may begin with a dash.
        yield option if action.nargs == 0 else f"{option}={value}"


log = logging.getLogger("tailrace.compactor")

_LOOK_AGAIN_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns its exit code."""
    parser = _parser()
    flags = parser.parse_args(arguments)
    if flags.wait and flags.every is not None:
        parser.error("--wait is for a single pass; --every runs pass after pass")
    if flags.erase and flags.every is not None:
        parser.error("--erase is for a single pass")
    configure_log(flags.log_format or "text", sys.stderr)
    try:
        return _run(flags)
    except TailraceError as error:
        log.error("%s%s", error, f" ({error.hint})" if error.hint else "")
        return _exit_code(error)
    except Exception:
        log.exception("this is a defect of the compactor")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compactor", description="Ingests flushed segments into the table."
    )
    configure(parser)
    return parser


def _run(flags: argparse.Namespace) -> int:
    settings = load_settings(settings_of(flags), flags.config)
    apply_umask(settings.umask)
    if flags.dry_run:
        configure_log(settings.compaction.log_format, sys.stderr)
        _refuse_no_store(settings)
        return asyncio.run(_dry_run(settings, as_json=flags.json))
    session, clock = make_session(settings), SystemClock()
    hearing = listeners(
        settings,
        clock,
        Disk(),
        lambda: in_thread(session.tasks),
        out=_out(flags),
        errors=sys.stderr,
        every_line=flags.json,
        single=flags.every is None,
        watched=not flags.quiet,
    )
    passes = Passes(clock, hearing)
    if flags.every is None:  # otherwise its service may start later
        _refuse_no_store(settings)

    async def work() -> None:
        async with open_compactor(settings, session, _killer(flags.kill_at)) as compactor:
            if flags.every is None:
                await _single(compactor, passes, wait=flags.wait, erase=flags.erase)
            else:
                await repeat(compactor, flags.every, passes.next)

    try:
        asyncio.run(_until_signalled(work()))
    except asyncio.CancelledError:
        log.info("stopped")
    finally:
        session.abandon()
    return 1 if passes.alarmed else 0


async def _single(compactor: Compactor, passes: Passes, *, wait: bool, erase: bool) -> None:
    while True:
        async with passes.next() as report:
            await once(compactor, report, erase=erase)
        if not (wait and report.held):
            return
        await compactor.clock.sleep(_LOOK_AGAIN_SECONDS)


async def _until_signalled(work: Coroutine[Any, Any, None]) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.create_task(work)

    def on_signal() -> None:
        # A JVM whose work ends logs that at length; imported only if Spark was started.
        if jvm := sys.modules.get("compactor.spark.jvm"):
            jvm.hush()
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if submitted():
        _at_the_end_of_input(loop, task.cancel)
    await task


def _at_the_end_of_input(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    def read() -> None:
        with suppress(OSError):
            while os.read(sys.stdin.fileno(), 4096):
                pass
        with suppress(RuntimeError):  # the loop is closed: nothing has to be stopped
            loop.call_soon_threadsafe(call)

    threading.Thread(target=read, name="input", daemon=True).start()


def _out(flags: argparse.Namespace) -> TextIO | None:
    """The output for lines of JSON. A person reads the log instead of them."""
    if flags.json:
        return sys.stdout
    return None if flags.quiet or sys.stdout.isatty() else sys.stdout


def _refuse_no_store(settings: CompactorSettings) -> None:
    if settings.bucket is None and not os.path.isdir(settings.store_folder):
        raise InvalidInput(  # opening a store would make it
            f"there is no store at {settings.store_folder}",
            hint="Name the data folder of a service with --data, or its settings with --config.",
        )


async def _dry_run(settings: CompactorSettings, *, as_json: bool) -> int:
    from compactor.dry_run import dry_run

    async with open_compactor(settings, make_session(settings), _killer(""), alone=True) as looks:
        preview = await dry_run(looks)
    sys.stdout.write((preview.line() if as_json else preview.text()) + "\n")
    sys.stdout.flush()
    return 1 if preview.alarms else 0


def _killer(step: str) -> Callable[[str], None]:
    """Ends this process like kill -9 when the step is reached, for crash tests."""

    def reached(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


def _exit_code(error: TailraceError) -> int:
    if isinstance(error, InvalidInput):
        return 2
    return 3 if isinstance(error, Unavailable | OutcomeUnknown) else 4
