"""Programs that run on macOS need no call that only Linux has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.e2e.service_process import BASE, ServiceProcess
from tests.waiting import until

WITHOUT = Path(__file__).with_name("without_linux")


def tailrace(environment: dict[str, str], *words: str) -> list[str]:
    """Runs the command, and returns the lines of its output."""
    done = subprocess.run(
        [sys.executable, "-m", "tailrace", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.in_turn(4)
async def test_programs_run_without_the_calls_of_linux_and_sync_as_macos_needs(
    tmp_path: Path,
) -> None:
    syncs = tmp_path / "syncs"
    environment = os.environ | {"PYTHONPATH": str(WITHOUT), "FULL_SYNCS": str(syncs)}
    service = ServiceProcess(tmp_path / "data")
    service.settings |= environment
    service.start()
    try:
        run = f"{service.url}{BASE}/shop.load/run-1"
        text = {"content-type": "text/plain"}
        httpx.post(run, content=b"first\nsecond\n", headers=text, timeout=60).raise_for_status()
        assert "['serve']" in syncs.read_text().splitlines(), "an acknowledged batch is synced"
        httpx.post(f"{run}/close", timeout=60).raise_for_status()
        assert httpx.get(f"{run}/download", timeout=60).text == "first\nsecond\n"
        named = ("--url", service.url)

        command = ("sh", "-c", "echo third")
        tailrace(environment, "run", *named, "--fqn", "shop.run", "--run", "r-1", "--", *command)
        assert "['run']" in syncs.read_text().splitlines(), "the spool is synced"
        assert tailrace(environment, "tail", *named, "--no-follow", "shop.run")[0] == "third"

        (tmp_path / "app.log").write_text("fourth\n")
        config = tmp_path / "logs.yaml"
        config.write_text(
            f"targets: ['{service.url}']\ninclude: ['{tmp_path}/app.log']\nstart_at: beginning\n"
            f"storage: {tmp_path / 'state'}\nfqn: shop.files\nrun: r-2\n"
        )
        words = [sys.executable, "-m", "tailrace", "forward", "--config", str(config)]
        with subprocess.Popen(words, env=environment) as forwarder:
            try:
                file = f"{service.url}{BASE}/shop.files/r-2/download"
                await until(lambda: httpx.get(file, timeout=60).text == "fourth\n")
            finally:
                forwarder.terminate()
        found = tailrace(environment, "query", *named, "fourth")
        assert any("shop.files/r-2" in line and "fourth" in line for line in found), found
    finally:
        service.stop()
