"""What the machine cannot run is left out, named, and a failure where CI=true."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

@pytest.mark.spark
def test_with_spark(): pass

@pytest.mark.minio
def test_with_minio(): pass

def test_without(): pass

@pytest.mark.skipif(True, reason="no such disk")
def test_skipped(): pass
"""


def _run(folder: Path, *options: str, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    (folder / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), *options, str(folder)]
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "PYTHONPATH": str(ROOT), "CI": ci}
    bare = {"PATH": str(folder), "XDG_CACHE_HOME": str(folder), "GOBIN": str(folder)}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment | bare,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    ("ci", "status", "spread"), [("", 0, ()), ("true", 1, ("-n2", "--dist=worksteal"))]
)
def test_it_is_named_with_its_reason_and_fails_ci(
    tmp_path: Path, ci: str, status: int, spread: tuple[str, ...]
) -> None:
    done = _run(tmp_path, *spread, ci=ci)
    assert done.returncode == status, done.stdout + done.stderr
    assert "1 tests: no Spark here: no Java 17 found" in done.stdout
    assert "test_it.py::test_with_spark" in done.stdout
    assert "1 tests: no MinIO here: no Go found to build it" in done.stdout
    assert "1 tests: no such disk" in done.stdout
    assert "1 passed" in done.stdout
