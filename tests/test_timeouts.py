"""A test that waits for ever is ended and fails; the run goes on with the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import asyncio, threading
import pytest


async def test_a_wait_without_a_bound():
    while True:
        await asyncio.sleep(0.01)

def test_a_thread_that_never_ends():
    threading.Event().wait()

def test_the_next():
    pass
"""


def test_what_hangs_fails_and_the_rest_runs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c"]
    command += [str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "--timeout", "2"]
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "Timeout (>2.0s)" in done.stdout


def test_every_test_has_a_bound(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 600
