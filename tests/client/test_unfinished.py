"""Unfinished lines are shown live, and stored once, as they end: real commands and services."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import tailrace_client as client
from tailrace_client.unfinished import collapse, finished, last_state
from tests.client.programs import FQN, ROOT, messages, records, state_of, until
from tests.e2e.service_process import BASE, ServiceProcess

UNFINISHED = f"{BASE.removesuffix('/logs')}/unfinished/{FQN}"
BAR = r"""printf 'Go on? '; read x; printf '10%%\r20%%\r30%%'; read x
for n in 40 50 60 70 80 90; do printf '\r%s%%' $n; done; printf '\r100%%\r\n'; echo done"""


def _start(
    url: str, spool: Path, run: str, *words: str, options: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    given = ["--fqn", FQN, "--run", run, "--spool", str(spool), "--exit-seconds", "60", *options]
    return subprocess.Popen(
        [sys.executable, "-m", "tailrace_client", "run", "--url", url, *given, "--", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _shown(url: str, run: str) -> list[str]:
    """What a new connection is shown."""
    answer = httpx.get(f"{url}{UNFINISHED}/{run}", timeout=60)
    return [line["text"] for line in answer.raise_for_status().json()["lines"]]


def _say(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"yes\n")
    process.stdin.flush()


def test_a_prompt_and_a_bar_are_shown_and_the_last_state_is_stored_once(
    service: ServiceProcess, tmp_path: Path
) -> None:
    process = _start(service.url, tmp_path, "bar", "sh", "-c", BAR)
    until(lambda: _shown(service.url, "bar") == ["Go on? "])
    events = f"{service.url}{UNFINISHED}/stream/bar"
    seen: list[list[str]] = []
    with httpx.stream("GET", events, timeout=120) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            value: dict[str, Any] = json.loads(line.removeprefix("data: "))
            seen.append([each["text"] for each in value.get("lines", [])])
            if seen[-1] in (["Go on? "], ["30%"]):
                _say(process)
            if seen[-1] == [] and len(seen) > 1:
                break
    assert seen[0] == ["Go on? "]
    assert ["30%"] in seen
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, b"")
    assert out.startswith(b"Go on? 10%\r20%\r30%\r40%")
    assert messages(service.url, "bar") == ["100%", "done", "sh exited with 0"]
    assert state_of(service.url, "bar") == ("closed", "success")
    assert _shown(service.url, "bar") == []


def test_a_tail_on_a_terminal_shows_the_last_state(service: ServiceProcess, tmp_path: Path) -> None:
    process = _start(service.url, tmp_path, "watched", "sh", "-c", BAR)
    until(lambda: _shown(service.url, "watched") == ["Go on? "])
    ours, theirs = pty.openpty()
    tail = subprocess.Popen(
        [sys.executable, "-m", "tailrace", "tail", "--url", service.url, FQN, "watched"],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "80", "TERM": "dumb"},
    )
    os.close(theirs)
    written = b""
    for shown in (b"Go on? ", b"30%"):
        while shown not in written:
            written += os.read(ours, 4096)
        _say(process)
    process.communicate(timeout=120)
    with suppress(OSError):  # the terminal is closed: the tail has ended
        while piece := os.read(ours, 4096):
            written += piece
    os.close(ours)
    assert tail.wait(timeout=60) == 0
    screen = [line.rpartition("\r\x1b[K")[2] for line in written.decode().split("\r\n")]
    assert screen == ["100%", "done", "sh exited with 0", ""]
    assert b"10%\r" not in written


def test_a_long_bar_is_one_short_line(service: ServiceProcess, tmp_path: Path) -> None:
    code = "import sys\nfor n in range(60000): sys.stdout.write(f'\\r{n:6} of many more')\nprint()"
    process = _start(service.url, tmp_path, "long", sys.executable, "-c", code)
    out, _ = process.communicate(timeout=120)
    assert out.count(b"\r") == 60_000
    assert messages(service.url, "long")[:-1] == [" 59999 of many more"]


ALTERNATING = """import os, sys
print(os.isatty(1), os.isatty(2), flush=True)
for n in range(500):
    os.write(1, b"out %d\\n" % n)
    os.write(2, b"err %d\\n" % n)
"""


@pytest.mark.parametrize(("option", "stream"), [("--merge", "output"), ("--pty", "terminal")])
def test_one_pipe_and_a_terminal_keep_the_order_of_both_streams(
    service: ServiceProcess, tmp_path: Path, option: str, stream: str
) -> None:
    run = stream
    process = _start(
        service.url, tmp_path, run, sys.executable, "-c", ALTERNATING, options=(option,)
    )
    out, errors = process.communicate(timeout=120)
    tty = option == "--pty"
    expected = [f"{tty} {tty}"]
    expected += [f"{name} {number}" for number in range(500) for name in ("out", "err")]
    assert (out.decode().splitlines(), errors) == (expected, b"")
    found = records(service.url, run)
    assert [record["message"] for record in found[:-1]] == expected
    assert {record["attributes"]["stream"] for record in found[:-1]} == {stream}


def test_separate_streams_keep_the_order_of_writes_that_wait_for_one_another(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """Each line is written once the one before has been passed on."""
    script = "for n in 1 2 3 4 5; do echo out $n; read x; echo err $n >&2; read x; done"
    process = _start(service.url, tmp_path, "turns", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stderr is not None
    for _ in range(5):
        for stream in (process.stdout, process.stderr):
            assert stream.readline()
            _say(process)
    process.communicate(timeout=120)
    expected = [f"{name} {number}" for number in range(1, 6) for name in ("out", "err")]
    assert messages(service.url, "turns")[:-1] == expected


@pytest.mark.in_turn(4)
def test_every_worker_shows_what_came_to_one(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "node", TAILRACE_SERVER__WORKERS="2")
    service.start()

    def everywhere(text: str, number: int) -> bool:
        body = {"producer": "p", "number": number, "text": text}
        put = httpx.put(f"{service.url}{UNFINISHED}/r", json=body, timeout=60)
        put.raise_for_status()
        expected = [text] if text else []
        return all(_shown(service.url, "r") == expected for _ in range(16))

    until(lambda: everywhere("50%", 1))
    until(lambda: everywhere("", 2))
    assert everywhere("", 1), "an older state is ignored"
    service.stop()


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"producer": "", "number": 1, "text": "x"}, "producer"),
        ({"producer": "p", "number": "1", "text": "x"}, "number"),
        ({"producer": "p", "number": 1, "text": "x\ny"}, "text"),
        ({"producer": "p", "number": 1, "text": "x" * 5000}, "text"),
    ],
)
def test_what_is_no_state_of_a_line_is_refused(
    service: ServiceProcess, value: dict[str, Any], field: str
) -> None:
    answer = httpx.put(f"{service.url}{UNFINISHED}/r", json=value, timeout=60)
    assert (answer.status_code, answer.json()["field"]) == (400, field)


@pytest.mark.parametrize(
    ("line", "shown", "stored"),
    [
        (b"", b"", b""),
        (b"plain", b"plain", b"plain"),
        (b"windows\r", b"windows", b"windows\r"),
        (b"1%\r2%", b"2%", b"2%"),
        (b"1%\r2%\r\r", b"2%", b"2%"),
        (b"\r1%\r2%\r", b"2%", b"2%"),
        (b"\r\r", b"", b"\r\r"),
    ],
)
def test_the_last_state_of_a_line_in_whatever_pieces_it_comes(
    line: bytes, shown: bytes, stored: bytes
) -> None:
    for at in range(len(line) + 1):
        rest = collapse(collapse(line[:at]) + line[at:])
        assert (last_state(rest), finished(rest)) == (shown, stored)


def test_a_run_shows_a_line_until_it_is_closed(service: ServiceProcess) -> None:
    with client.Run(service.url, FQN, "showing") as run:
        for done in range(3):
            run.show(f"\r{done}0% \N{BULLET}\r")
        until(lambda: _shown(service.url, "showing") == ["20% \N{BULLET}"])
        run.append("a line above it\n")
        assert _shown(service.url, "showing") == ["20% \N{BULLET}"]
        run.show("")
        until(lambda: _shown(service.url, "showing") == [])
        run.show("the end")
        until(lambda: _shown(service.url, "showing") == ["the end"])
        with pytest.raises(client.InvalidRequest, match="a single line"):
            run.show("two\nlines")
    assert _shown(service.url, "showing") == []
    assert messages(service.url, "showing") == ["a line above it"]
    run.show("it goes on")
    until(lambda: _shown(service.url, "showing") == ["it goes on"])
    run.close()


@pytest.mark.parametrize("outcome", [None, "success"])
def test_a_run_that_is_closed_without_a_line_is_one(
    service: ServiceProcess, outcome: str | None
) -> None:
    for within in (True, False):
        name = f"within-{within}-{outcome}"
        run = client.Run(service.url, FQN, name)
        if within:
            run.__enter__()
        assert run.close(outcome) == "closed"
        assert state_of(service.url, name) == ("closed", outcome)
        rows = httpx.get(f"{service.url}{BASE}/{FQN}", params={"name": name}, timeout=60).json()
        (row,) = rows["details"]
        expected = "unknown" if outcome is None else "succeeded"
        assert (row["state"], row["outcome"], row["lines"]) == ("closed", expected, 0)
        page = httpx.get(f"{service.url}{BASE}/{FQN}/{name}", timeout=60)
        assert (page.status_code, page.json()["state"]) == (200, "closed")
