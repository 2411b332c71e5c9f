"""The command line of the compactor. Standard output has a line of JSON per pass.

Exit codes: 0 done; 1 done as far as possible, with alarms; 2 wrong flags or settings;
3 nothing could be done (Java, store); 4 something in the store is damaged.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from compactor.compaction import Compactor
from compactor.report import Report
from compactor.schedule import once, repeat
from compactor.session import Session
from compactor.settings import load_settings
from logstore.clock import SystemClock
from logstore.disk import Disk
from logstore.entropy import system_entropy
from logstore.errors import InvalidInput, TailraceError, Unavailable
from logstore.objects.local import LocalStore

log = logging.getLogger("tailrace.compactor")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and gives its exit code."""
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)
    try:
        return _run(_parser().parse_args(arguments))
    except TailraceError as error:
        log.error("%s%s", error, f" ({error.hint})" if error.hint else "")
        return _exit_code(error)


def seconds(text: str) -> float:
    """`90`, `90s`, `5m`, `1h` in seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text)
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 5m")
    return float(found[1]) * _UNITS[found[2]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compactor", description="Takes flushed segments into the table."
    )
    parser.add_argument("--data", metavar="DIR", help="data folder of the service")
    parser.add_argument("--config", metavar="FILE", help="settings file")
    parser.add_argument("--every", metavar="TIME", type=seconds, help="again and again, as 5m")
    parser.add_argument("--kill-at", default="", help=argparse.SUPPRESS)
    return parser


def _run(flags: argparse.Namespace) -> int:
    compactor = _compactor(flags)
    alarmed = False

    def emit(report: Report) -> None:
        nonlocal alarmed
        alarmed = alarmed or bool(report.alarms)
        for alarm in report.alarms:
            log.error("%s", alarm)
        sys.stdout.write(report.line() + "\n")
        sys.stdout.flush()

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if flags.every is None:
            emit(asyncio.run(once(compactor)))
        else:
            asyncio.run(repeat(compactor, flags.every, emit))
    except KeyboardInterrupt:
        log.info("stopped")
    finally:
        compactor.session.stop()
    return 1 if alarmed else 0


def _compactor(flags: argparse.Namespace) -> Compactor:
    given: dict[str, Any] = {} if flags.data is None else {"data": flags.data}
    settings = load_settings(given, flags.config)
    clock, entropy, disk = SystemClock(), system_entropy(), Disk()
    store = LocalStore(settings.store_folder, disk, clock, entropy)
    session = Session(settings.compaction.driver_memory)
    limits = settings.compaction
    return Compactor(store, disk, clock, entropy, limits, session, _killer(flags.kill_at))


def _killer(step: str) -> Callable[[str], None]:
    """Ends this process as kill -9 does when the step is reached: what crash tests need."""

    def reached(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _exit_code(error: TailraceError) -> int:
    if isinstance(error, InvalidInput):
        return 2
    return 3 if isinstance(error, Unavailable) else 4
