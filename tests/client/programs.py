"""Programs that log, as processes of their own, and what the service has of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.service_process import BASE

ROOT = Path(__file__).parents[2]
FQN = "shop.orders"
_PATIENCE_SECONDS = 120.0
_BEGIN = """
import logging, os, signal, sys, threading, time
from tailrace_client import Handler, Options

signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs in the background ignores it

url, spool, run = sys.argv[1:4]
log = logging.getLogger("program")
log.setLevel(logging.DEBUG)

def handler(**more):
    made = Handler(url, "shop.orders", run, spool=spool, **more)
    log.addHandler(made)
    return made
"""


def start(code: str, url: str, spool: Path, run: str, *more: str) -> subprocess.Popen[str]:
    """A program that has `log`, `handler()` and the arguments above, started from a file."""
    spool.parent.mkdir(parents=True, exist_ok=True)
    program = spool.with_name(f"{spool.name}-{run}-{'-'.join(more)}.py")
    program.write_text(_BEGIN + textwrap.dedent(code))
    return subprocess.Popen(
        [sys.executable, str(program), url, str(spool), run, *more],
        env={**os.environ, "PYTHONPATH": str(ROOT / "client"), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_command(
    url: str, spool: Path, run: str, *words: str, wait: float = 60
) -> subprocess.Popen[bytes]:
    """`python -m tailrace_client run` around a command; it waits so long for the service."""
    options = ["--fqn", FQN, "--run", run, "--spool", str(spool), "--exit-seconds", str(wait)]
    return subprocess.Popen(
        [sys.executable, "-m", "tailrace_client", "run", "--url", url, *options, "--", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str], status: int = 0) -> tuple[str, str]:
    """What it wrote to stdout and stderr, when it has ended with `status`."""
    out, errors = process.communicate(timeout=120)
    assert process.returncode == status, errors
    return out, errors


def run_program(code: str, url: str, spool: Path, run: str, *more: str) -> str:
    """Runs a program to its end: what it wrote to stderr."""
    return finish(start(code, url, spool, run, *more))[1]


def records(url: str, run: str, fqn: str = FQN) -> list[dict[str, Any]]:
    """All records of a run, as the service gives them for a download."""
    answer = httpx.get(f"{url}{BASE}/{fqn}/{run}/download?format=ndjson", timeout=60)
    if answer.status_code == 404:
        return []
    assert answer.status_code == 200, answer.text
    *found, stats = [json.loads(line) for line in answer.content.split(b"\n") if line]
    assert stats["stats"]["complete"]
    return found


def messages(url: str, run: str) -> list[str]:
    """The messages of a run, in the order of its log."""
    return [record["message"] for record in records(url, run)]


def state_of(url: str, run: str) -> tuple[str, str | None]:
    """The run's state and what its client reported; a close that the service still works on is
    waited for."""

    def row() -> dict[str, Any]:
        rows = httpx.get(f"{url}{BASE}/{FQN}?name={run}", timeout=60).json()["details"]
        return next(row for row in rows if row["runId"] == run)

    until(lambda: row()["state"] != "closing")
    return row()["state"], row()["reported"]


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition. Fails when it is not so after minutes."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it is still not so"
        time.sleep(0.02)


def left_in(spool: Path) -> list[str]:
    """Names of the files that a spool has beside locks and targets."""
    names = sorted(path.name for path in spool.rglob("*") if path.is_file())
    return [name for name in names if name not in ("lock", "target.json")]
