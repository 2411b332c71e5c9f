"""What a terminal is given of a log, and what a pipe is."""

from __future__ import annotations

import ast
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cli.terminal import coloured, shown
from tests.client.answering import Asked, Given, answering

SGR = re.compile(r"\x1b\[[0-9;:]*m")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PIECES = [
    *("\x1b", "[", "]", "2J", "31m", "0;", "?", "\x9b", "\x07", "\x1b\\", "P", "\r", "\n", "\t"),
    *("m", "H", "text", "\u202e", "\x9d", "\x9c", "\x7f", "\x00", " ", "ü", "(B"),
]


@settings(max_examples=500, deadline=None, database=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_nothing_but_colours_reaches_a_terminal(text: str) -> None:
    for given_out in (shown(text), coloured(text, "ERROR", colour=True)):
        assert not CONTROL.search(SGR.sub("", given_out)), given_out
        assert given_out.count("\n") == text.count("\n")
        for line in given_out.split("\n"):
            assert "\x1b" not in line or line.endswith("\x1b[0m")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ü\n", "plain ü\n"),
        ("a\tb\r\nc", "a\tb\nc"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m\x1b[0m"),
        ("\x1b[2J\x1b[Hcleared", "cleared"),
        ("\x1b]0;title\x07x\x1b]52;c;aGk=\x1b\\y", "xy"),
        ("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("10%\r20%", "10%\u240d20%"),
        ("\x1b[31\nm", "\nm"),
        ("a\u202eb\x7f", "a\ufffdb\u2421"),
    ],
)
def test_escapes_but_colours_are_taken_out(text: str, expected: str) -> None:
    assert shown(text) == expected


RECORDS = [
    {"ulid": "0" * 26, "fqn": "p", "run_id": "r", "level": level, "message": message}
    for level, message in (("ERROR", "bad"), ("INFO", "\x1b[2Jwell"), (None, "\x1b[32mgreen"))
]
TEXT = "".join(f"{record['message']}\n" for record in RECORDS)


def answer(asked: Asked) -> Given:
    if "/stream/" not in asked.path:
        stats = {"stats": {"complete": True}}
        lines = b"".join(orjson.dumps(record) + b"\n" for record in [*RECORDS, stats])
        return Given(200, {}, lines)
    if "format=ndjson" in asked.path:
        body = b"".join(b"id: 1\ndata: %b\n\n" % orjson.dumps(record) for record in RECORDS)
    else:
        body = b"id: 1\nevent: logs\ndata: %b\n\n" % orjson.dumps({"logs": TEXT})
    return Given(200, {}, body + b"event: complete\ndata: \n\n")


def in_terminal(
    *words: str, person: bool = False, errors_too: bool = False, **variables: str
) -> str:
    """What a command writes to a terminal of its own; `person`: it reads from there, too."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrace", *words],
        stdin=theirs if person else subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs if errors_too else subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "", **variables},
    )
    os.close(theirs)
    pieces: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(ours, 65536):
                pieces.append(piece)
        except OSError:  # the terminal's other side is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    _, errors = process.communicate(timeout=120)
    reader.join()
    os.close(ours)
    assert process.returncode == 0 or errors_too, errors
    return b"".join(pieces).decode().replace("\r\n", "\n")


@pytest.mark.in_turn(3)
def test_a_terminal_gets_colours_and_a_pipe_the_text() -> None:
    colours = "\x1b[31mbad\x1b[0m\nwell\n\x1b[32mgreen\x1b[0m\n"
    with answering(answer) as url:
        tail = ["tail", "--url", url, "p", "r"]
        query = ["query", "--url", url, "--fqn", "p", "--run", "r", "x"]
        assert in_terminal(*tail) == colours
        assert in_terminal(*tail, NO_COLOR="1") == "bad\nwell\n\x1b[32mgreen\x1b[0m\n"
        assert in_terminal(*query) == colours
        for words in (tail, query):
            piped = subprocess.run(
                [sys.executable, "-m", "tailrace", *words],
                capture_output=True,
                timeout=120,
                check=True,
            )
            assert piped.stdout.decode() == TEXT
        whole = subprocess.run(
            [sys.executable, "-m", "tailrace", *tail, "--json"],
            capture_output=True,
            timeout=120,
            check=True,
        )
        assert [orjson.loads(line) for line in whole.stdout.splitlines()] == RECORDS


def test_what_has_an_end_goes_through_the_pager_of_a_terminal(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text('#!/bin/sh\necho "pager $LESS"\nexec cat\n')
    pager.chmod(0o755)
    leaves = tmp_path / "leaves"
    leaves.write_text("#!/bin/sh\nexec head -n 1\n")
    leaves.chmod(0o755)
    colours = "\x1b[31mbad\x1b[0m\nwell\n\x1b[32mgreen\x1b[0m\n"
    with answering(answer) as url:
        query = ["query", "--url", url, "--fqn", "p", "--run", "r", "x"]
        through = str(pager)
        assert in_terminal(*query, person=True, PAGER=through, LESS="") == f"pager \n{colours}"
        assert in_terminal(*query, "--no-pager", person=True, PAGER=through, LESS="") == colours
        assert in_terminal(*query, person=True, PAGER=str(leaves)) == "\x1b[31mbad\x1b[0m\n"
        # Following has no end, and nobody pages where no person types.
        assert (
            in_terminal("tail", "--url", url, "p", "r", person=True, PAGER=through, LESS="")
            == colours
        )
        assert in_terminal(*query, PAGER=through, LESS="") == colours


HOSTILE = "a\x9b2Jb\x9d0;title\x9cc\x1b[2Jd\u202ee\x7ff"


def answer_hostile(asked: Asked) -> Given:
    record = {"ulid": "0" * 26, "fqn": HOSTILE, "run_id": HOSTILE, "message": HOSTILE}
    problem = {"detail": HOSTILE, "hint": HOSTILE, "message": HOSTILE, "type": "x", "status": 400}
    if "/refused" in asked.path or "fqn=refused" in asked.path:
        return Given(400, {"Content-Type": "application/problem+json"}, orjson.dumps(problem))
    if asked.path.endswith("tail=1"):
        return Given(200, {}, orjson.dumps({"totalLines": 1}))
    if "/stream/" in asked.path:
        end = b": silent %b\n\nevent: complete\ndata: \n\n"
        nodes = orjson.dumps({"nodes": [HOSTILE]})
        return Given(200, {}, b"id: 1\ndata: %b\n\n" % orjson.dumps(record) + end % nodes)
    if "/histogram" in asked.path:
        buckets = [{"at": HOSTILE, "count": 1, "levels": {HOSTILE: 1}}]
        return Given(200, {}, orjson.dumps({"buckets": buckets, "stats": {"complete": True}}))
    if "/count" in asked.path:
        counted = [{"values": {"fqn": HOSTILE}, "records": 1}]
        found = {"records": 2, "counts": counted, "stats": {"complete": True}}
        return Given(200, {}, orjson.dumps(found))
    stats = {"stats": {"complete": False, "missing": [HOSTILE], "set_aside": [HOSTILE]}}
    return Given(200, {}, b"".join(orjson.dumps(line) + b"\n" for line in (record, stats)))


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    "words",
    [
        *("tail p r", "tail p r --json", "tail p r --prefix full", "tail refused r"),
        *("query --fqn p x", "query --fqn p x --json", "query --fqn refused x"),
        *("query --fqn p x --histogram", "query --fqn p x --histogram --json"),
        *("query --fqn p x --count fqn", "query --fqn p x --count fqn --json"),
    ],
)
def test_no_command_gives_a_terminal_what_others_wrote(words: str) -> None:
    verb, *rest = words.split()
    with answering(answer_hostile) as url:
        written = in_terminal(verb, "--url", url, "--no-pager", *rest, errors_too=True)
    assert "title" not in written or "--json" in words
    assert "Traceback" not in written, written
    assert "b" in written
    assert not CONTROL.search(SGR.sub("", written)), written
    if "tail" in words and "--json" in words:
        [record] = [line for line in written.splitlines() if line.startswith("{")]
        assert orjson.loads(record)["message"] == HOSTILE


def test_nothing_is_printed_past_what_knows_terminals() -> None:
    """All of `tailrace` prints by `say`, `say_json`, or a printer that asks for `shown`."""
    root = Path(__file__).parents[3] / "tailrace"
    found = {
        path.name
        for path in root.rglob("*.py")
        if path.name != "terminal.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == "print")
            or ast.unparse(node.func) in ("sys.stdout.write", "sys.stderr.write")
        )
    }
    assert found == {"remote.py", "forward.py"}, (
        "the first prints a script of ours, the second ASCII: use say()"
    )
