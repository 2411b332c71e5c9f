"""Verifying over HTTP: the real command on a running service, and children that misbehave."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.http.system import ReportLines, VerificationCommand, verify_environment
from service.settings import Settings
from tailrace.logstore.errors import Conflict, Unavailable
from tests.service.test_main import PLAIN, RUN, service, settings_for

QUIET = 600.0
FAULT, SUMMARY = b'{"kind":"run-lost"}\n', b'{"summary":{"sound":false}}\n'


def child(
    program: str, *, quiet_seconds: float = QUIET, stop_seconds: float = 10.0
) -> VerificationCommand:
    words = [sys.executable, "-S", "-c", f"import os, signal, sys, time\n{program}"]
    return VerificationCommand(words, {}, quiet_seconds=quiet_seconds, stop_seconds=stop_seconds)


def said(line: bytes) -> str:
    return f"os.write(1, {line!r})\n"


async def all_of(lines: ReportLines) -> list[dict[str, Any]]:
    found = [orjson.loads(line) async for line in lines]
    await lines.aclose()
    return found


@pytest.mark.in_turn(4)
async def test_a_running_service_tells_what_its_store_has(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, flush={"segment_seconds": 0.1})
    async with service(settings) as (client, _):
        await client.post(RUN, content=b"a\nb\n", headers=PLAIN)
        store = tmp_path / "data" / "store"
        async with asyncio.timeout(120):
            while not (segments := list(store.glob("segments/*/*.parquet"))):
                await asyncio.sleep(0.05)
        answer = await client.post("/verify")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
        summary = orjson.loads(answer.text.splitlines()[-1])["summary"]
        assert (summary["sound"], summary["compared"]["segment lines"]) == (True, 2)
        assert "a service holds" in summary["notes"][0]
        segments[0].write_bytes(b"PAR1 it was PAR1")
        answer = await client.post("/verify", params={"repair": "true"})
        kinds = [orjson.loads(line).get("kind") for line in answer.text.splitlines()]
        assert "segment-damaged" in kinds
        assert list(store.glob("segments/.aside/*/*"))
        assert (await client.post("/verify?repair=perhaps")).status_code == 400


async def test_its_lines_and_what_is_said_in_a_silence(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    silent = f"while not os.path.exists({str(heard)!r}): time.sleep(0.01)\n"
    one = child(said(FAULT) + silent + said(SUMMARY) + "sys.exit(1)", quiet_seconds=0.05)
    lines: list[dict[str, Any]] = []
    async for line in await one.begin(repair=False):
        lines.append(orjson.loads(line))
        if {"kind": "run-lost"} in lines[:-1]:
            heard.touch()  # the silence, too
    found = lines.index({"kind": "run-lost"})
    silence, last = lines[found + 1 : -1], lines[-1]
    assert {word for line in silence for word in line} == {"progress"}
    assert silence[-1]["progress"].keys() == {"seconds"}
    assert last == {"summary": {"sound": False}}


async def test_no_progress_follows_the_summary_while_the_command_ends() -> None:
    one = child(said(SUMMARY) + "time.sleep(0.5)\nsys.exit(1)", quiet_seconds=0.05)
    lines = await all_of(await one.begin(repair=False))
    assert lines[-1] == orjson.loads(SUMMARY)


async def test_one_at_a_time_and_repair_is_a_flag() -> None:
    one = child(said(SUMMARY) + "assert sys.argv[1:] == ['--repair']\n")
    first = await one.begin(repair=True)
    with pytest.raises(Conflict):
        await one.begin(repair=True)
    assert await all_of(first) == [orjson.loads(SUMMARY)]
    assert await all_of(await one.begin(repair=True)) == [orjson.loads(SUMMARY)]


async def test_what_breaks_off_says_why() -> None:
    why = "sys.stderr.write('warning: w\\nerror: the store is away\\nhint: wait: a bit\\n')\n"
    with pytest.raises(Unavailable, match="the store is away") as refused:
        await child(why + "sys.exit(1)").begin(repair=False)
    assert refused.value.hint == "wait: a bit"
    one = child(said(FAULT) + why + "sys.exit(1)")
    assert (await all_of(await one.begin(repair=False)))[1] == {
        "error": "verifying broke off: the store is away",
        "hint": "wait: a bit",
    }
    mute = child(said(FAULT) + "os.kill(os.getpid(), 9)")
    last = (await all_of(await mute.begin(repair=False)))[-1]
    assert "with status -9 and without a word" in last["error"]


async def test_what_cannot_be_started_is_said_and_tried_again() -> None:
    nothing = VerificationCommand(["/nowhere/tailrace"], {}, quiet_seconds=QUIET)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await nothing.begin(repair=False)


@pytest.mark.parametrize("stubborn", [False, True])
async def test_whoever_closes_the_report_ends_the_work(tmp_path: Path, *, stubborn: bool) -> None:
    """Read to some line, or not at all."""
    wide = tmp_path / "ended"
    deaf = "signal.signal(15, signal.SIG_IGN)\n"
    polite = f"signal.signal(15, lambda *_: (open({str(wide)!r}, 'w').close(), os._exit(0)))\n"
    program = (deaf if stubborn else polite) + (said(FAULT) * 2) + "time.sleep(600)\n"
    one = child(f"{program}", stop_seconds=0.2 if stubborn else 120)
    await (await one.begin(repair=False)).aclose()
    lines = await one.begin(repair=False)
    async for _ in lines:
        break
    await lines.aclose()
    assert wide.exists() != stubborn


async def test_it_is_told_where_the_store_is(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), store=str(tmp_path / "elsewhere"))
    assert verify_environment(settings)["TAILRACE_STORE"] == str(tmp_path / "elsewhere")
    program = "sys.stdout.write('{\"summary\":\"' + os.environ['TAILRACE_STORE'] + '\"}')"
    words = [sys.executable, "-S", "-c", f"import os, sys\n{program}"]
    one = VerificationCommand(words, verify_environment(settings), quiet_seconds=QUIET)
    assert await all_of(await one.begin(repair=False)) == [{"summary": str(tmp_path / "elsewhere")}]
    assert "TAILRACE_STORE" not in os.environ


@pytest.mark.in_turn(3)
async def test_what_stands_in_the_working_directory_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "somewhere"
    trap.mkdir()
    for name in ("tailrace", "orjson", "argparse"):
        (trap / f"{name}.py").write_text(f"open({str(trap / 'sprung')!r}, 'w')\n")
    settings = settings_for(tmp_path)
    async with service(settings) as (client, _):
        await client.post(RUN, content=b"a\n", headers=PLAIN)
        monkeypatch.chdir(trap)
        answer = await client.post("/verify")
    assert orjson.loads(answer.text.splitlines()[-1])["summary"]["sound"]
    assert not (trap / "sprung").exists()
