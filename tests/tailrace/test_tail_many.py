"""`tailrace tail` of a running service: where it begins, which run, and many runs by pattern."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import re
import sys
from pathlib import Path

import httpx
import pytest

from tailrace.cli.tail import _run, before, condition, configure, regex
from tailrace.cli.tail import run as tail
from tailrace.logstore.errors import InvalidInput, NotFound
from tests.service.test_main import PLAIN, service, settings_for
from tests.settings import changed

BASE = "/api/v1/services/ingestionPipelines/logs"


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(words)


async def post(client: httpx.AsyncClient, fqn: str, run: str, text: str) -> None:
    reply = await client.post(f"{BASE}/{fqn}/{run}", content=text.encode(), headers=PLAIN)
    assert reply.status_code == 200, reply.text


async def printed(client: httpx.AsyncClient, *words: str) -> str:
    out = io.StringIO()
    assert await _run(parsed("--url", str(client.base_url), "--no-follow", *words), out) == 0
    return out.getvalue()


async def until(out: io.StringIO, *lines: str) -> None:
    """Waits for these lines, in any order, and for no other and none twice."""
    async with asyncio.timeout(120):
        while (now := out.getvalue().splitlines()) != list(lines):
            assert len(set(now)) == len(now)
            assert set(now) <= set(lines)
            if sorted(now) == sorted(lines):
                return
            await asyncio.sleep(0.02)


async def test_a_person_is_told_that_a_run_has_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, out = io.StringIO(), io.StringIO()
    monkeypatch.setattr(said, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", said)
    async with service(settings_for(tmp_path)) as (client, _):
        following = asyncio.create_task(_run(parsed("--url", str(client.base_url), "p", "r"), out))
        async with asyncio.timeout(60):
            while not said.getvalue():
                await asyncio.sleep(0.02)
        assert said.getvalue() == "p/r has no lines yet: waiting for the first\n"
        await post(client, "p", "r", "first\n")
        await until(out, "first")
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    assert len(said.getvalue().splitlines()) == 1


async def test_it_begins_where_it_is_told_and_ends_where_the_run_does(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        text = "".join([f"line {n}\n" for n in range(250)])
        middle = text.index("line 125\n")
        await post(client, "p", "r", text[:middle])
        await asyncio.sleep(0.01)  # ULIDs of another millisecond
        await post(client, "p", "r", text[middle:])
        assert await printed(client, "p", "r") == text[text.index("line 150") :]
        assert await printed(client, "p", "--tail", "-1") == text
        assert await printed(client, "p", "r", "--tail", "2") == "line 248\nline 249\n"
        assert await printed(client, "p", "r", "--tail", "0") == ""
        for since in ("1h", "1h ago", "yesterday", "now-1d/d", "yesterday 10:00"):
            assert await printed(client, "p", "r", "--since", since) == text, since
            search = {"from": since, "fqn": "p*", "format": "text", "order": "asc"}
            assert (await client.get("/query", params=search)).text == text, since
        reply = await client.get("/query", params={"q": '"line 125"', "from": "0", "order": "asc"})
        at = json.loads(reply.text.splitlines()[0])["ulid"]
        assert await printed(client, "p", "r", "--since", at) == text[middle:]
        assert await printed(client, "p", "r", "--since", at, "--tail", "1") == "line 249\n"
        assert await printed(client, "p", "r", "--since", "2100-01-01T00:00:00Z") == ""
        assert await printed(client, "p", "r", "--tail", "1", "--prefix", "run") == "r: line 249\n"
        whole = json.loads(await printed(client, "p", "r", "--tail", "1", "--json"))
        assert whole["message"] == "line 249"
        with pytest.raises(NotFound, match="nobody has no lines"):
            await printed(client, "p", "nobody")
        await post(client, "p", "ends-empty", "a\n\n")
        assert await printed(client, "p", "ends-empty") == "a\n\n"
        assert await printed(client, "p", "ends-empty", "--tail", "1") == "\n"
        out = io.StringIO()
        asked = parsed("--url", str(client.base_url), "p", "r", "--tail", "1")
        following = asyncio.create_task(_run(asked, out))
        await until(out, "line 249")
        await post(client, "p", "r", "more\n")
        await until(out, "line 249", "more")
        await client.post(f"{BASE}/p/r/close")
        assert await asyncio.wait_for(following, 120) == 0


async def test_the_attempt_before_and_the_run_before(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        for run in ("n-1", "n-2", "n-2-again"):
            await post(client, "p", run, f"of {run}\n")
            await asyncio.sleep(0.005)  # runs that begin at different milliseconds
        assert await printed(client, "p", "n-2", "--previous") == "of n-1\n"
        assert await printed(client, "p", "--previous") == "of n-2\n"
        with pytest.raises(NotFound, match="no run before n-1"):
            await printed(client, "p", "n-1", "-p")


def test_an_attempt_is_before_runs_that_began_later() -> None:
    def one(run: str, attempt: int | None) -> dict[str, object]:
        return {"runId": run, "attempt": attempt}

    runs = [one("a/attempt-2", 2), one("b/attempt-1", 1), one("a/attempt-1", 1)]
    assert before(runs, "a/attempt-2") == "a/attempt-1"
    assert before(runs, "b/attempt-1") == "a/attempt-1"
    assert before(runs, "a/attempt-1") is None
    assert before(runs, "unknown") is None


async def test_runs_that_match_are_followed_those_that_begin_later_too(tmp_path: Path) -> None:
    out, settings = io.StringIO(), settings_for(tmp_path)
    following = None
    try:
        async with service(settings) as (client, _):
            port = client.base_url.port
            await post(client, "shop.a", "r1", "one\n")
            await post(client, "bank", "r1", "not this\n")
            assert await printed(client, "shop.*") == "shop.a/r1: one\n"
            assert await printed(client, "*", "r?", "--prefix", "none", "--tail", "1") == (
                "not this\n"
            )
            asked = parsed("--url", str(client.base_url), "shop.*", "r[1-3]", "--tail", "-1")
            following = asyncio.create_task(_run(asked, out))
            await until(out, "shop.a/r1: one")
            await post(client, "shop.b", "r2", "two\nthree\n")
            await post(client, "shop.b", "r9", "not this\n")
            first = ("shop.a/r1: one", "shop.b/r2: two", "shop.b/r2: three")
            await until(out, *first)
        again = changed(settings, server=changed(settings.server, port=port))
        async with service(again) as (client, _):
            await post(client, "shop.c", "r3", "four\n")
            await until(out, *first, "shop.c/r3: four")
    finally:
        if following is not None:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("shop.*", ["shop.", "shop.a/b"], ["shopx", "a.shop.b"]),
        ("a/?", ["a/b"], ["a/", "a/bc"]),
        ("r[1-3]", ["r1", "r3"], ["r4", "r-"]),
        ("r[!1]", ["r2"], ["r1"]),
        ("[[]x", ["[x"], ["x"]),
        ("a\\*", ["a\\b"], ["ab"]),
    ],
)
def test_patterns_are_those_of_a_shell(pattern: str, matching: list[str], other: list[str]) -> None:
    compiled = re.compile(regex(pattern))
    assert all(compiled.search(name) for name in matching)
    assert not any(compiled.search(name) for name in other)


def test_a_name_is_no_pattern_and_a_broken_one_is_refused() -> None:
    assert condition("fqn", "shop.a") == {"fqn": "shop.a"}
    with pytest.raises(InvalidInput, match="without a ]"):
        condition("run", "a[b")


@pytest.mark.parametrize(
    "words",
    [
        ["p", "--tail", "-2"],
        ["p", "--after", "1", "--tail", "1"],
        ["p*", "--previous"],
        ["p*", "--since", "5m", "--tail", "1"],
        ["p*", "--after", "x", "--no-follow"],
    ],
)
def test_flags_that_say_nothing_together_are_refused(words: list[str]) -> None:
    with pytest.raises(InvalidInput, match="--"):
        tail(parsed(*words))


def test_letters_are_those_of_tail_and_kubectl() -> None:
    given = parsed("p", "-f", "-n", "3")
    assert (given.tail, given.no_follow) == (3, False)
    assert parsed("p", "-p").previous
    with pytest.raises(SystemExit):
        parsed("p", "-f", "--no-follow")
