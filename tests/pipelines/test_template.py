"""The template of an appender's package builds, and its own tests pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "deploy" / "appender-template"


@pytest.mark.slow
def test_the_template_builds_and_its_tests_pass(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    for path in TEMPLATE.glob("*.*"):
        (source / path.name).write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    options = ["--no-build-isolation", "--disable-pip-version-check", "--target", str(target)]
    subprocess.run([*command, *options, str(source)], check=True)
    environment = {**os.environ, "PYTHONPATH": f"{target}:{ROOT}"}
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*tests, "--rootdir", str(source), str(source)],
        cwd=source,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
