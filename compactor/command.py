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

from compactor.schedule import once, repeat
from compactor.settings import load_settings
from compactor.telling.passes import Passes
from compactor.telling.summary import Summary
from compactor.wiring import make_session, open_compactor
from logstore.clock import SystemClock
from logstore.errors import InvalidInput, OutcomeUnknown, TailraceError, Unavailable

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
    given: dict[str, Any] = {} if flags.data is None else {"data": flags.data}
    settings = load_settings(given, flags.config)
    session = make_session(settings)
    passes = Passes(SystemClock(), [Summary(sys.stdout)])

    async def work() -> None:
        async with open_compactor(settings, session, _killer(flags.kill_at)) as compactor:
            if flags.every is None:
                async with passes.next() as report:
                    await once(compactor, report)
            else:
                await repeat(compactor, flags.every, passes.next)

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        log.info("stopped")
    finally:
        session.stop()
    return 1 if passes.alarmed else 0


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
    return 3 if isinstance(error, Unavailable | OutcomeUnknown) else 4
