"""`tailrace query`: what it asks, what it prints, and how it says that something is missing."""

from __future__ import annotations

import argparse
import asyncio
import io
from pathlib import Path
from typing import Any

import orjson
import pytest

from logstore import keys
from logstore.clock import SystemClock, system_entropy
from logstore.disk import Disk
from logstore.errors import TailraceError
from logstore.objects.local import LocalStore
from tailrace.query import PARTIAL, Printer, _lines, _verdict, configure, parameters, run
from tests.service.test_main import PLAIN, RUN, service, settings_for

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
    printer = Printer(out, whole=whole, named=named)
    printer.take([line(RECORD), line({"stats": COMPLETE})])
    assert out.getvalue() == printed
    assert printer.stats == COMPLETE


def test_a_search_that_broke_off_is_an_error_after_what_it_found() -> None:
    printer = Printer(io.StringIO(), whole=False, named=False)
    with pytest.raises(TailraceError, match="too long") as caught:
        printer.take([line({"error": {"detail": "too long", "hint": "narrow it"}})])
    assert caught.value.hint == "narrow it"


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
