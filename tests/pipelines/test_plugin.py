"""An appender of another distribution: found, checked, run, failed, disabled, enabled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.pipelines.lake import Lake
from tests.seeds import some

PLUGIN = Path(__file__).parent / "plugin"
_PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which the plugin is installed."""
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    options = ["--no-build-isolation", "--disable-pip-version-check", "--target", str(target)]
    subprocess.run([*command, *options, str(_copy(target.parent / "source"))], check=True)
    return {**os.environ, "PYTHONPATH": str(target), "TAILRACE_PIPELINES__POLL_SECONDS": "0.1"}


def _copy(folder: Path) -> Path:
    """The plugin's source, where a build may write."""
    folder.mkdir(exist_ok=True)
    for path in PLUGIN.glob("*.*"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def _built(folder: Path) -> Path:
    """A folder with the plugin's wheel."""
    lib = folder / "lib"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    options = ["--no-build-isolation", "--disable-pip-version-check", "--wheel-dir", str(lib)]
    subprocess.run([*command, *options, str(_copy(folder / "source"))], check=True)
    return lib


def tailrace(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailrace", "pipelines", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    appender = {
        "type": "counting",
        "name": "levels",
        "file": str(tmp_path / "counts"),
        "fail_while": str(tmp_path / "fail"),
    }
    settings = {"event_delay_ms": 0, "idle_node_ms": 200, "checkpoint_interval_ms": 50}
    tries = {"error_threshold": 3, "retry_ms": 10, "dead_letter_dir": str(tmp_path / "dead")}
    content = {"name": "p", **settings, **tries, "appenders": [appender]}
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "p.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def test_what_is_not_installed_is_refused_by_name(folder: Path) -> None:
    done = tailrace(dict(os.environ), "check", str(folder / "pipelines"))
    assert done.returncode == 1
    assert "this process has no appender of the type 'counting'" in done.stderr
    assert "It knows async, filter, mask" in done.stderr
    assert "install its package, or name its folder with --lib" in done.stderr


@pytest.mark.in_turn(3)
def test_a_plugin_that_cannot_be_loaded_is_named(folder: Path, installed: dict[str, str]) -> None:
    path = folder / "pipelines" / "p.yaml"
    path.write_text("name: p\nappenders: [{type: broken, name: x}]\n")
    done = tailrace(installed, "check", str(path))
    assert done.returncode == 1
    assert "the appender 'broken' of tailrace_plugin_for_tests:nothing_of_that_name" in done.stderr


def test_its_keys_are_checked(folder: Path, installed: dict[str, str]) -> None:
    path = folder / "pipelines" / "p.yaml"
    path.write_text("name: p\nappenders: [{type: counting, name: x, files: y}]\n")
    done = tailrace(installed, "check", str(path))
    assert done.returncode == 1
    assert "appenders.0.file" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", some(["installed", "wheel"], 2, "plugins"))
async def test_it_runs_fails_is_disabled_and_enabled(
    folder: Path, request: pytest.FixtureRequest, how: str
) -> None:
    environment: dict[str, str] = request.getfixturevalue("installed")
    lib: list[str] = []
    if how == "wheel":  # this process has it from the folder alone
        environment = {k: v for k, v in environment.items() if k != "PYTHONPATH"}
        lib = ["--lib", str(_built(folder))]
    lake, counts = Lake(folder), folder / "counts"
    where = ["--data", str(folder), *lib]
    assert tailrace(environment, "check", *lib, str(folder / "pipelines")).returncode == 0
    await lake.put("INFO a", "ERROR b", "INFO c")
    command = [sys.executable, "-m", "tailrace", "pipelines", *where]
    process = subprocess.Popen([*command, "--dir", str(folder / "pipelines")], env=environment)
    try:
        until(lambda: _counts(counts) == {"INFO": 2, "ERROR": 1})
        (folder / "fail").touch()
        await lake.put("WARN d")
        until((folder / "dead" / "p.levels.0.json").exists)
        said = tailrace(environment, "status", *where, "--dir", str(folder / "pipelines"))
        assert "  disabled  " in said.stdout
        assert "it failed 3 times in a row" in said.stdout
        lacks = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
        other = tailrace(lacks, "status", *where[:2], "--dir", str(folder / "pipelines"))
        assert "  disabled  " in other.stdout  # the state is of those who run it
        assert "this process has no appender of the type 'counting'" in other.stderr
        (folder / "fail").unlink()
        done = tailrace(environment, "enable", *where[:2], "p", "levels")
        assert (done.returncode, done.stdout) == (0, "p: running; disabled: -\n")
        time.sleep(1.0)  # it hears of that within `poll_seconds`
        await lake.put("FATAL e")
        until(lambda: _counts(counts) == {"INFO": 2, "ERROR": 1, "FATAL": 1})
    finally:
        process.terminate()
        assert process.wait(timeout=_PATIENCE_SECONDS) == 0
    letters = (folder / "dead" / "p.levels.0.json").read_text().splitlines()
    assert [json.loads(line)["message"] for line in letters] == ["WARN d"]


def _counts(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):  # not there yet, or half written
        return None
