"""`tailrace query`: what it asks, what it prints, and how it says that something is missing."""

from __future__ import annotations

import argparse
import asyncio
import io
from pathlib import Path
from typing import Any

import orjson
import pytest

from tailrace.cli.query import (
    PARTIAL,
    RecordPrinter,
    _lines,
    _verdict,
    chart,
    configure,
    follow,
    parameters,
    run,
)
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import InvalidInput, TailraceError
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tests.service.test_main import PLAIN, RUN, service, settings_for
from tests.settings import changed

RECORD = {"ulid": "0" * 26, "fqn": "svc.p", "run_id": "r1", "message": "hello"}
COMPLETE = {"complete": True, "set_aside": [], "missing": [], "unreadable": []}


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(words)


def line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value)


def test_only_what_was_given_is_asked() -> None:
    assert parameters(parsed()) == {"order": "desc", "format": "ndjson"}
    asked = parameters(parsed("--from", "0", "--limit", "5", "--regex", "--level", "ERROR", "a|b"))
    assert asked == {
        "q": "a|b",
        "from": "0",
        "level": "ERROR",
        "limit": "5",
        "regex": "true",
        "order": "desc",
        "format": "ndjson",
    }


def test_words_need_no_quotes_around_all_of_them() -> None:
    assert parameters(parsed("level>=WARN", "connection refused", "NOT", "retry"))["q"] == (
        "level>=WARN connection refused NOT retry"
    )


@pytest.mark.parametrize(
    ("whole", "named", "printed"),
    [
        (False, True, "svc.p/r1: hello\n"),
        (False, False, "hello\n"),
        (True, True, line(RECORD).decode() + "\n"),
    ],
)
def test_records_are_printed(whole: bool, named: bool, printed: str) -> None:
    out = io.StringIO()
    printer = RecordPrinter(out, whole=whole, named=named)
    printer.take([line(RECORD), line({"stats": COMPLETE})])
    assert out.getvalue() == printed
    assert printer.stats == COMPLETE


def test_a_search_that_broke_off_is_an_error_after_what_it_found() -> None:
    printer = RecordPrinter(io.StringIO(), whole=False, named=False)
    with pytest.raises(TailraceError, match="too long") as caught:
        printer.take([line({"error": {"detail": "too long", "hint": "narrow it"}})])
    assert caught.value.hint == "narrow it"


def test_groups_around_hits_look_as_those_of_grep() -> None:
    out = io.StringIO()
    printer = RecordPrinter(out, whole=False, named=True)
    groups = [(0, False), (0, True), (1, True)]
    printer.take([line(RECORD | {"group": group, "hit": hit}) for group, hit in groups])
    assert out.getvalue() == "svc.p/r1- hello\nsvc.p/r1: hello\n--\nsvc.p/r1: hello\n"


def test_a_chart_has_a_line_for_each_bucket() -> None:
    buckets = [
        {"at": "2026-11-21T10:00:00.000Z", "count": 20, "levels": {"INFO": 19, "null": 1}},
        {"at": "2026-11-21T10:05:00.000Z", "count": 0, "levels": {}},
        {"at": "2026-11-21T10:10:00.500Z", "count": 1, "levels": {"ERROR": 1}},
    ]
    assert chart({"buckets": buckets}).splitlines() == [
        f"2026-11-21T10:00:00  20  {'#' * 40}  19 INFO, 1 without a level",
        "2026-11-21T10:05:00   0",
        f"2026-11-21T10:10:00.500Z   1  {'##':<40}  1 ERROR",
    ]


@pytest.mark.parametrize(
    "words", [["--follow", "--histogram"], ["--follow", "--to", "now"], ["--context=1", "--follow"]]
)
def test_flags_that_say_nothing_together_are_refused(words: list[str]) -> None:
    with pytest.raises(InvalidInput, match=r"--follow"):
        run(parsed(*words))


def test_lines_do_not_depend_on_pieces() -> None:
    whole = b'{"a":1}\n{"b":2}\n{"c":3}\n'
    for size in range(1, len(whole) + 1):
        pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
        assert [found for lines in _lines(pieces) for found in lines] == whole.split(b"\n")[:-1]


def test_a_partial_result_warns_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert _verdict(COMPLETE) == 0
    assert capsys.readouterr().err == ""
    assert _verdict(None) == PARTIAL
    assert "partial" in capsys.readouterr().err
    assert _verdict(COMPLETE | {"complete": False, "missing": ["segments/n/7"]}) == PARTIAL
    assert "segments/n/7" in capsys.readouterr().err
    assert _verdict(COMPLETE | {"set_aside": ["segments/.aside/n/3"]}) == 0
    assert "segments/.aside/n/3" in capsys.readouterr().err


def test_how_much_is_missing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"segments": 9, "segments_failed": 2, "files": 3, "files_failed": 1}
    assert _verdict(COMPLETE | {"complete": False, "missing": ["segments/n/7"]} | counts) == PARTIAL
    said = capsys.readouterr().err
    assert "2 segments failed, 9 were to be read; 1 files failed, 3 were to be read" in said


async def test_the_command_says_what_a_running_service_could_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(tmp_path / "data" / "store")
    bad = keys.segment("other-node", 1)
    await LocalStore(root, Disk(), SystemClock(), system_entropy()).put(bad, b"no segment" * 99)
    async with service(settings_for(tmp_path)) as (client, _):
        await client.post(RUN, content=b"found\n", headers=PLAIN)
        arguments = parsed("--url", str(client.base_url), "--from", "0", "found")
        assert await asyncio.to_thread(run, arguments) == PARTIAL
    out = capsys.readouterr()
    assert out.out == "p/r: found\n"
    assert bad in out.err


async def test_context_and_counts_of_a_running_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        await client.post(RUN, content=b"INFO before\nERROR found\nbehind\n", headers=PLAIN)
        url = str(client.base_url)
        asked = parsed("--url", url, "--context", "1", "--fqn", "p", "--run", "r", "found")
        assert await asyncio.to_thread(run, asked) == 0
        assert capsys.readouterr().out == "INFO before\nERROR found\nbehind\n"
        assert await asyncio.to_thread(run, parsed("--url", url, "--histogram")) == 0
        drawn = capsys.readouterr().out
        assert "1 INFO, 1 ERROR, 1 without a level" in drawn
        assert await asyncio.to_thread(run, parsed("--url", url, "--count", "fqn,run")) == 0
        assert capsys.readouterr().out == "3  records\n3  fqn=p  run=r\n"
        assert await asyncio.to_thread(run, parsed("--url", url, "--histogram", "--json")) == 0
        counts = orjson.loads(capsys.readouterr().out)
        assert sum(bucket["count"] for bucket in counts["buckets"]) == 3


async def test_a_search_is_followed_over_a_restart(tmp_path: Path) -> None:
    out, settings = io.StringIO(), settings_for(tmp_path)
    following = None
    try:
        async with service(settings) as (client, _):
            url = str(client.base_url)
            port = client.base_url.port
            printer = RecordPrinter(out, whole=False, named=True)
            asked = {"q": "found", "from": "now-5m"}
            following = asyncio.create_task(follow(url, asked, printer))
            await client.post(RUN, content=b"found 1\nother\n", headers=PLAIN)
            await printed(out, "p/r: found 1\n")
        async with service(changed(settings, server=changed(settings.server, port=port))) as (
            client,
            _,
        ):
            await client.post(RUN, content=b"found 2\n", headers=PLAIN)
            await printed(out, "p/r: found 1\np/r: found 2\n")
    finally:
        assert following is not None
        following.cancel()
        await asyncio.wait({following})


async def printed(out: io.StringIO, text: str) -> None:
    async with asyncio.timeout(120):
        while out.getvalue() != text:
            assert text.startswith(out.getvalue())
            await asyncio.sleep(0.05)
