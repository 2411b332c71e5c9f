"""`tailrace forward` as a process: each line once and in order, whoever is killed.

What OK Log's forwarder does wrong is asked of ours: it loses the record in flight at each
disconnect, ends with status 0 at a line beyond 64 KiB, never looks a name up again (see
tests/forwarder/delivery/test_pool.py), and can only block when the service is away.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.client.answering import Asked, Given, answering
from tests.client.programs import FQN, left_in, messages, records, state_of, until
from tests.e2e.service_process import BASE, ServiceProcess
from tests.faults.kinds import KNOWABLE, Kind
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.forwarder.delivery.test_delivery import receipt

PATIENCE_SECONDS = 120


def start(
    *words: str | Path, run: str, spool: Path, wait: float = 60, fqn: str = FQN
) -> subprocess.Popen[bytes]:
    options = ["--fqn", fqn, "--run", run, "--spool", str(spool), "--exit-seconds", str(wait)]
    return subprocess.Popen(
        [sys.executable, "-m", "tailrace", "forward", *map(str, words), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def end(process: subprocess.Popen[bytes], data: bytes = b"", status: int = 0) -> str:
    """Writes the last data and waits: what it said."""
    out, errors = process.communicate(data, timeout=PATIENCE_SECONDS)
    assert process.returncode == status, errors
    assert out == b""
    return errors.decode()


def write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()


def numbered(first: int, last: int) -> list[str]:
    return [f"line {number}" for number in range(first, last)]


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.fixture
def away() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"127.0.0.1:{silent.getsockname()[1]}"


def test_lines_become_records_in_order(service: ServiceProcess, tmp_path: Path) -> None:
    process = start(service.url, run="lines", spool=tmp_path)
    said = end(process, text(numbered(0, 20_000)) + b"\n\xff\xfe and no end")
    assert messages(service.url, "lines") == [
        *numbered(0, 20_000),
        "",
        "\ufffd\ufffd and no end",
    ]
    assert said == ""
    assert left_in(tmp_path) == []
    assert state_of(service.url, "lines") == ("open", None), "the end of stdin closes nothing"


def test_a_bar_is_shown_and_its_last_state_is_stored(
    service: ServiceProcess, tmp_path: Path
) -> None:
    process = start(service.url, run="bar", spool=tmp_path)
    write(process, b"begin\n10%\r20%")
    shown = f"{service.url}{BASE.removesuffix('/logs')}/unfinished/{FQN}/bar"
    until(lambda: [x["text"] for x in httpx.get(shown, timeout=60).json()["lines"]] == ["20%"])
    assert end(process, b"\r30%\r\n") == ""
    assert messages(service.url, "bar") == ["begin", "30%"]
    assert httpx.get(shown, timeout=60).json() == {"lines": []}


def test_a_prefix_attributes_and_an_outcome(service: ServiceProcess, tmp_path: Path) -> None:
    words = ["--prefix", "web1 ", "--attr", "region=eu", "--attr", "empty=", "--attr", "a=b=c"]
    process = start(service.url, *words, "--close", "failed", run="prefix", spool=tmp_path)
    end(process, b"one\ntwo\n")
    found = records(service.url, "prefix")
    assert [record["message"] for record in found] == ["web1 one", "web1 two"]
    assert found[0]["attributes"] == {"region": "eu", "empty": "", "a": "b=c"}
    assert state_of(service.url, "prefix") == ("closed", "failed")
    end(start(service.url, run="bare", spool=tmp_path), b"x\n")
    process = start(service.url, "--close", run="bare", spool=tmp_path)
    end(process, b"y\n")
    assert state_of(service.url, "bare")[0] == "closed"


def test_lines_that_share_their_attributes_are_sent_as_text(tmp_path: Path) -> None:
    seen: list[Asked] = []

    def answer(asked: Asked) -> Given:
        seen.append(asked)
        return receipt(asked)

    with answering(answer) as url:
        words = ["--prefix", "ü ", "--attr", "region=eu"]
        end(start(url, *words, run="text", spool=tmp_path), b'one\n"two"\r\n')
    (asked,) = seen
    assert asked.body.decode() == 'ü one\nü "two"\r\n'
    assert asked.headers["content-type"] == "text/plain; charset=utf-8; attributes=header"
    assert json.loads(asked.headers["tailrace-attributes"]) == {"region": "eu"}


def test_a_line_of_any_length_is_kept(service: ServiceProcess, tmp_path: Path) -> None:
    """OK Log's forwarder ends at 64 KiB, with status 0."""
    long = "x" * 100_000
    longer = "y" * 1_300_000
    end(start(service.url, run="long", spool=tmp_path), text(["a", long, longer, "b"]))
    found = records(service.url, "long")
    assert [record["message"] for record in found[:2]] == ["a", long]
    assert "".join(record["message"] for record in found[2:-1]) == longer
    partial = [(record["attributes"] or {}).get("partial") for record in found]
    assert partial == [None, None, "true", "true", None, None]
    assert found[-1]["message"] == "b"


def test_nothing_is_lost_or_repeated_at_disconnects(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """OK Log's forwarder loses the record in flight, and what is in the socket's buffers."""
    kinds = [kind for kind in KNOWABLE if kind is not Kind.ERROR_IN_200]
    schedule, expected = Schedule(5, evenly(0.4, kinds)), []
    with fault_proxy(service.url, schedule) as url:
        process = start(url, run="disconnects", spool=tmp_path)
        for number in range(15):
            lines = numbered(number * 100, number * 100 + 100)
            expected += lines
            before = schedule.requests
            write(process, text(lines))
            until(lambda: schedule.requests > before)  # noqa: B023
        assert sum(schedule.injected.values()) > 2
        schedule.calm()
        end(process)
    assert messages(service.url, "disconnects") == expected


def test_a_service_that_is_killed_and_targets_that_do_not_answer(tmp_path: Path, away: str) -> None:
    service = ServiceProcess(tmp_path / "node")
    service.start()
    dead = ServiceProcess(tmp_path / "never-started")
    targets = [f"127.0.0.1:{dead.port}", service.url, f"localhost:{dead.port}"]
    process = start(*targets, run="killed", spool=tmp_path / "spool")
    write(process, text(numbered(0, 1000)))
    until(lambda: len(messages(service.url, "killed")) > 0)
    service.kill()
    write(process, text(["while it is away"]))
    service.start()
    end(process, b"again")
    expected = [*numbered(0, 1000), "while it is away", "again"]
    assert messages(service.url, "killed") == expected
    service.stop()


MOST_UNSAVED_BYTES = 64 << 10
"""A pipe of the kernel holds as much, and so does a piece that a forwarder reads."""


def test_a_forwarder_that_is_killed_leaves_what_it_read_to_the_next(
    service: ServiceProcess, tmp_path: Path
) -> None:
    schedule, lines = Schedule(), numbered(0, 40_000)
    with fault_proxy(service.url, schedule) as url:
        process = start(url, run="again", spool=tmp_path)
        write(process, text(lines[:1000]))
        until(lambda: messages(service.url, "again") == lines[:1000])
        schedule.refuse(Kind.DROPPED)  # stored, and the forwarder does not learn of it
        write(process, text(lines[1000:]))
        until(lambda: len(messages(service.url, "again")) > 1000)
        process.kill()
        process.communicate()
        schedule.relent()
        end(start(url, run="again", spool=tmp_path), b"next\n")
    assert left_in(tmp_path) == []
    *found, last = messages(service.url, "again")
    assert found == lines[: len(found)], "a piece that was read last may be missing, at the end"
    assert len(found) > 1000
    missing = len(text(lines[len(found) :]))
    assert missing <= 2 * MOST_UNSAVED_BYTES, "what the pipe held, and what was read last"
    assert last == "next"


def test_block_reads_no_more_until_there_is_room(service: ServiceProcess, tmp_path: Path) -> None:
    schedule, lines = Schedule(), [f"{line} {'x' * 80}" for line in numbered(0, 60_000)]
    with fault_proxy(service.url, schedule) as url:
        schedule.refuse(Kind.RESET)
        words = ["--on-full", "block", "--spool-bytes", "2100000"]
        process = start(url, *words, run="block", spool=tmp_path)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        data, written, full = memoryview(text(lines)), 0, 0
        while full < 100:  # the pipe takes no more, for as long as a hundred looks
            try:
                written += os.write(process.stdin.fileno(), data[written : written + 65536])
                full = 0
            except BlockingIOError:
                full += 1
                until(lambda: True)
        assert written < 2_500_000 < len(data)
        schedule.relent()
        os.set_blocking(process.stdin.fileno(), True)
        end(process, bytes(data[written:]))
    assert messages(service.url, "block") == lines


def test_drop_oldest_keeps_the_newest_and_counts_the_others(
    service: ServiceProcess, tmp_path: Path
) -> None:
    schedule, lines = Schedule(), numbered(0, 100_000)
    with fault_proxy(service.url, schedule) as url:
        schedule.refuse(Kind.RESET)
        words = ["--on-full", "drop-oldest", "--spool-bytes", "3000000"]
        process = start(url, *words, run="drop", spool=tmp_path)
        write(process, text(lines))
        assert process.stderr is not None
        said = process.stderr.readline()
        while b"were dropped" not in said:
            said = process.stderr.readline()
        schedule.relent()
        errors = end(process, b"the last\n", status=1)
    found = records(service.url, "drop")
    told = [one for one in found if "tailrace_client.dropped" in (one["attributes"] or {})]
    dropped = sum(int(record["attributes"]["tailrace_client.dropped"]) for record in told)
    kept = [record["message"] for record in found if record not in told]
    assert 0 < dropped < len(lines)
    assert len(kept) + dropped == len(lines) + 1
    assert kept[-1] == "the last"
    there = set(kept)
    assert kept == [line for line in [*lines, "the last"] if line in there]
    in_words = re.findall(r"(\d+) records were dropped", said.decode() + errors)
    assert sum(map(int, in_words)) == dropped


def test_spool_keeps_all_that_the_disk_takes(
    service: ServiceProcess, tmp_path: Path, away: str
) -> None:
    schedule, lines = Schedule(), numbered(0, 100_000)
    with fault_proxy(service.url, schedule) as url:
        schedule.refuse(Kind.RESET)
        words = ["--on-full", "spool", "--spool-bytes", "2100000", "--close", "success"]
        process = start(url, *words, run="spool", spool=tmp_path, wait=0.2)
        said = end(process, text(lines), status=1)
        assert "100000 records are not delivered yet" in said
        schedule.relent()
        end(start(url, run="spool", spool=tmp_path))
    assert messages(service.url, "spool") == lines
    assert state_of(service.url, "spool") == ("closed", "success")


def test_a_signal_ends_reading_and_what_was_read_is_delivered(
    service: ServiceProcess, tmp_path: Path
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        run = f"signal-{number}"
        process = start(service.url, "--close", "success", run=run, spool=tmp_path)
        write(process, b"one\ntwo without an end")
        until(lambda: messages(service.url, run) == ["one"])  # noqa: B023
        process.send_signal(number)
        assert process.stderr is not None
        assert process.wait(PATIENCE_SECONDS) == 0
        assert b"stops reading" in process.stderr.read()
        process.communicate()
        assert messages(service.url, run) == ["one", "two without an end"]
        assert state_of(service.url, run) == ("open", "running"), "the input had not ended"


def test_a_signal_ends_a_forwarder_that_has_no_room(tmp_path: Path) -> None:
    dead = ServiceProcess(tmp_path / "never-started")
    words = [f"127.0.0.1:{dead.port}", "--spool-bytes", "2100000"]
    process = start(*words, run="full", spool=tmp_path / "spool", wait=0.1)
    data = text(numbered(0, 55_000))  # more than there is room for, and less than that and a pipe
    write(process, data)
    size = 1_900_000
    until(lambda: sum(p.stat().st_size for p in (tmp_path / "spool").rglob("*.batch")) > size)
    process.send_signal(signal.SIGTERM)
    said = end(process, status=1)
    (left,) = re.findall(r"(\d+) records are not delivered yet", said)
    dropped = sum(map(int, re.findall(r"(\d+) records were dropped", said)))
    assert int(left) > 0
    assert int(left) + dropped <= 55_000 + 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no target is given"),
        (["ftp://x", "--fqn", "F"], "'ftp://x' is not a target"),
        (["logs"], "--fqn is missing"),
        (["logs", "--fqn", "F", "--attr", "x"], "--attr 'x' is not K=V"),
        (["logs", "--fqn", "F", "--close", "well"], "--close 'well' is not an outcome"),
        (["logs", "--fqn", "F", "--spool-bytes", "0"], "--spool-bytes"),
        (["logs", "--fqn", "F", "--token-file", "/nowhere"], "the token in /nowhere"),
        (["logs", "--fqn", "F", "--ca-file", "/nowhere"], "the certificates in /nowhere"),
        (["state"], "the action on the state is missing"),
        (["state", "drop"], "the action on the state is missing"),
        (["state", "list", "--storage", "/nowhere"], "/nowhere has no checkpoints"),
    ],
)
def test_what_cannot_be_is_said_with_a_hint(words: list[str], message: str) -> None:
    command = [sys.executable, "-m", "tailrace", "forward", *words]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "\nhint: " in done.stderr


def test_a_token_is_sent_and_not_shown(tmp_path: Path) -> None:
    from tests.client.answering import answering
    from tests.forwarder.delivery.test_delivery import receipt

    seen: list[str] = []

    def answer(asked: Asked) -> Given:
        seen.append(asked.headers["authorization"])
        return receipt(asked)

    (tmp_path / "token").write_text("a-secret\n")
    with answering(answer) as url:
        words = [url, "--token-file", str(tmp_path / "token")]
        said = end(start(*words, run="token", spool=tmp_path / "spool"), b"x\n")
    assert seen == ["Bearer a-secret"]
    assert "a-secret" not in said
    kept = [path.read_bytes() for path in (tmp_path / "spool").rglob("*") if path.is_file()]
    assert not any(b"a-secret" in content for content in kept)


def test_a_silent_run_is_there_at_once_if_it_will_be_closed(
    service: ServiceProcess, tmp_path: Path
) -> None:
    status = f"{service.url}{BASE.removesuffix('/logs')}/{FQN}/pipelineStatus"

    def said(run: str) -> str | None:
        answer = httpx.get(f"{status}/{run}", timeout=60)
        return answer.json()["pipelineState"] if answer.status_code == 200 else None

    target = service.url.removeprefix("http://")
    open_ = start(target, run="silent-open", spool=tmp_path / "a")
    closed = start(target, "--close", "success", run="silent-closed", spool=tmp_path / "b")
    until(lambda: said("silent-closed") == "running")
    end(closed)
    assert state_of(service.url, "silent-closed") == ("closed", "success")
    end(open_)
    assert said("silent-open") is None, "others may write to it"
