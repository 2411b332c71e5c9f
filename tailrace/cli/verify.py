"""`tailrace verify`: compares all lines of journal, segments, run logs and table.

Prints a line for each fault, and at the end the number of compared things; with `--json` one
JSON object per line, the last one the summary. Exit status: 0 no fault is left, 1 there are faults.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Any, Final, TextIO

import orjson

from tailrace.cli.source_flags import add_source, load_source
from tailrace.cli.terminal import add_json, say, say_json
from tailrace.logstore.filesystem import apply_umask
from tailrace.logstore.progress import Line
from tailrace.verification.findings import Fault, Findings

_SHOWN_EVERY: Final = 50


def configure(parser: argparse.ArgumentParser) -> None:
    """Where to look, and the command to run about it."""
    add_source(parser)
    add_json(parser)
    parser.add_argument(
        "--remember",
        metavar="FILE",
        help="skip data that was intact according to FILE and has not changed, and update FILE; "
        "without FILE, all data is read",
    )
    parser.add_argument(
        "--sample",
        type=float,
        default=1.0,
        metavar="PERCENT",
        help="with --remember: share of the unchanged data to read anyway (default: 1)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--repair",
        action="store_true",
        help="quarantine damaged segments, and bring back segments that are intact again;"
        " nothing is deleted",
    )
    what.add_argument(
        "--give-up",
        metavar="KEY",
        action="append",
        help="skip the check; give up the lines of this quarantined segment, or the missing "
        "segments that this node registration names. May be repeated",
    )
    what.add_argument(
        "--drop",
        metavar="KEY",
        action="append",
        help="skip the check; remove this unreadable state object, and keep a copy of it in the "
        "data folder. May be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compares, and says what is wrong. Raises `StoreUnavailable`, `Damaged`, `InvalidInput`."""
    settings = load_source(arguments)
    # After a refusal, which need not wait for it.
    from tailrace.verification.verifier import drop_objects, give_up_segments, verify

    apply_umask(settings.umask)
    if arguments.give_up:
        asyncio.run(give_up_segments(settings, arguments.give_up))
        for key in arguments.give_up:
            say(f"given up: {key}")
        return 0
    if arguments.drop:
        for key, copy in asyncio.run(drop_objects(settings, arguments.drop)).items():
            say(f"removed: {key}; a copy is {copy}")
        return 0
    printer = FaultPrinter(sys.stdout, Line(sys.stderr), as_json=arguments.json)
    findings = Findings(printer.fault, printer.progress)
    with tempfile.TemporaryDirectory(prefix="tailrace-verify-") as spill:
        try:
            work = verify(
                settings,
                findings,
                spill,
                repair=arguments.repair,
                remember=arguments.remember,
                sample=arguments.sample / 100,
            )
            asyncio.run(_until_signalled(work))
        except asyncio.CancelledError:  # what it spilled goes, and no summary is said
            return 128 + signal.SIGTERM
    printer.summary(findings)
    return 0 if findings.sound else 1


async def _until_signalled(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


class FaultPrinter:
    """Prints faults as they are found; in a terminal, progress on a line of its own."""

    def __init__(self, out: TextIO, line: Line, *, as_json: bool) -> None:
        self._out = out
        self._line = line
        self._json = as_json
        self._calls = 0
        self._faults = 0

    def fault(self, fault: Fault) -> None:
        """One line, at once."""
        self._line.clear()
        self._faults += 1
        if self._json:
            say_json(orjson.dumps(asdict(fault)).decode(), self._out)
        else:
            word = "repaired" if fault.repaired else "fault"
            more = f"; {fault.repaired}" if fault.repaired else ""
            say(f"{word}: {fault.kind}: {fault.place}: {fault.detail}{more}", self._out)

    def progress(self, what: str, count: int) -> None:
        """How many of them were looked at by now."""
        self._calls += 1
        if self._line.terminal and self._calls % _SHOWN_EVERY == 1:
            self._line.draw(f"{what}: {count}, faults: {self._faults}")

    def summary(self, findings: Findings) -> None:
        """The result as text: what was compared, what was not, and the faults."""
        self._line.clear()
        if self._json:
            whole = {
                "sound": findings.sound,
                "compared": findings.compared,
                "faults": findings.faults,
                "repaired": findings.repaired,
                "notes": findings.notes,
            }
            say_json(orjson.dumps({"summary": whole}).decode(), self._out)
            return
        for note in findings.notes:
            say(f"note: {note}", self._out)
        compared = ", ".join(f"{count} {what}" for what, count in sorted(findings.compared.items()))
        say(f"compared: {compared or 'nothing, the store is empty'}", self._out)
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(findings.faults.items()))
        repaired = sum(findings.repaired.values())
        begin = f"{repaired} repaired; " if repaired else ""
        say(f"{begin}{f'faults: {faults}' if faults else 'no fault'}", self._out)
