"""A command whose output becomes a run goes as it would alone, whatever the service does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.client.programs import ROOT, left_in, messages, records, start_command, state_of
from tests.e2e.service_process import ServiceProcess


def test_output_input_and_status_are_those_of_the_command(
    service: ServiceProcess, tmp_path: Path
) -> None:
    script = r"""
    read line; echo "got $line"; printf 'no UTF-8 \377\000 and no end' ; echo oops >&2
    head -c 1300000 /dev/zero | tr '\0' 'x'; echo; exit 3
    """
    alone = subprocess.run(["sh", "-c", script], input=b"hello\n", capture_output=True, check=False)
    process = start_command(service.url, tmp_path, "command", "sh", "-c", script)
    out, errors = process.communicate(b"hello\n", timeout=120)
    assert (process.returncode, out, errors) == (3, alone.stdout, alone.stderr)
    found = records(service.url, "command")
    by_stream: dict[str, list[str]] = {}
    for record in found[:-1]:
        by_stream.setdefault(record["attributes"]["stream"], []).append(record["message"])
    assert by_stream["stderr"] == ["oops"]
    stdout = by_stream["stdout"]
    assert stdout[0] == "got hello"
    assert "".join(stdout[1:]) == "no UTF-8 \ufffd\0 and no end" + "x" * 1_300_000
    assert [record["attributes"].get("partial") for record in found].count("true") == 2
    assert found[-1]["message"] == "sh exited with 3"
    assert found[-1]["attributes"] == {"exit_code": "3"}
    assert state_of(service.url, "command") == ("closed", "failed")
    assert left_in(tmp_path) == []


def test_signals_reach_the_command_and_its_end_is_ours(
    service: ServiceProcess, tmp_path: Path
) -> None:
    trap = "trap 'echo caught; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    gentle = start_command(service.url, tmp_path, "gentle", "sh", "-c", trap)
    killed = start_command(
        service.url, tmp_path, "killed", "sh", "-c", "echo ready; exec sleep 600"
    )
    by_kill = start_command(service.url, tmp_path, "by-kill", "sh", "-c", "echo ready; kill -9 $$")
    for process in (gentle, killed):
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
    assert gentle.communicate(timeout=120)[0] == b"caught\n"
    assert gentle.returncode == 0
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGTERM
    by_kill.communicate(timeout=120)
    assert by_kill.returncode == -signal.SIGKILL
    assert state_of(service.url, "by-kill") == ("closed", "failed")
    assert messages(service.url, "gentle") == ["ready", "caught", "sh exited with 0"]
    assert state_of(service.url, "gentle") == ("closed", "success")
    assert messages(service.url, "killed") == ["ready", "sh ended by signal 15"]
    assert state_of(service.url, "killed") == ("closed", "stopped")


def test_a_service_that_is_away_changes_nothing_and_gets_all_later(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """The socket takes connections and never answers: who waited for it would wait for ever."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = start_command(away, tmp_path, "away", "seq", "20000", wait=0.2)
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    assert out == b"".join(b"%d\n" % number for number in range(1, 20_001))
    assert b"20001 records could not be delivered in time" in errors
    (target,) = tmp_path.rglob("target.json")
    target.write_text(target.read_text().replace(away, service.url))  # it is back, elsewhere
    send = [sys.executable, "-m", "tailrace_client", "send", str(tmp_path)]
    subprocess.run(
        send,
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
        check=True,
        capture_output=True,
        timeout=120,
    )
    expected = [*map(str, range(1, 20_001)), "seq exited with 0"]
    assert messages(service.url, "away") == expected
    assert state_of(service.url, "away") == ("closed", "success")
    assert left_in(tmp_path) == []


def test_a_reader_that_leaves_ends_the_command_as_without_us(
    service: ServiceProcess, tmp_path: Path
) -> None:
    process = start_command(service.url, tmp_path, "head", "yes")
    assert process.stdout is not None
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    with process:
        pass
    assert process.returncode == -signal.SIGPIPE
    assert messages(service.url, "head")[-1] == "yes ended by signal 13"


def test_a_command_that_cannot_be_started(service: ServiceProcess, tmp_path: Path) -> None:
    process = start_command(service.url, tmp_path, "nowhere", str(tmp_path / "no-such-program"))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 127
    assert b"cannot be started: No such file" in errors
    assert state_of(service.url, "nowhere") == ("closed", "failed")
    wrong = start_command("ftp://x", tmp_path, "wrong", "true")
    assert b"error: 'ftp://x' is not an address" in wrong.communicate(timeout=120)[1]
    assert wrong.returncode == 2


def test_what_a_command_leaves_in_the_background_is_not_waited_for(
    service: ServiceProcess, tmp_path: Path
) -> None:
    process = start_command(
        service.url, tmp_path, "background", "sh", "-c", "sleep 100000 2>&1 & echo $!; exit 4"
    )
    assert process.stdout is not None
    out = process.stdout.readline()
    try:
        process.wait(timeout=120)
    finally:
        os.kill(int(out), signal.SIGKILL)
    process.communicate()
    assert process.returncode == 4
    assert messages(service.url, "background") == [out.decode().strip(), "sh exited with 4"]
