"""Plugins in folders of `--lib`: found, checked, and what is said about those that cannot be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tailrace.logstore.errors import InvalidInput
from tailrace.pipelines.appenders.registry import AppenderRegistry, Libraries
from tailrace.pipelines.appenders.simple import Stdout
from tailrace.pipelines.definition import parse

PLUGIN = Path(__file__).parents[1] / "plugin"
SOURCE = (PLUGIN / "tailrace_plugin_for_tests.py").read_text()
APPENDERS = '\nAPPENDERS = {"counts": Counting}\n'


def wrong(registry: AppenderRegistry) -> str:
    """What is wrong with the one plugin that is."""
    (error,) = registry.wrong.values()
    return str(error)


def registry(folder: Path) -> AppenderRegistry:
    return AppenderRegistry(Libraries([str(folder)]))


def one(type_: str, **more: str) -> dict[str, object]:
    return {"name": "p", "appenders": [{"type": type_, "name": "x", **more}]}


def wheel(folder: Path, scratch: Path) -> Path:
    """The plugin's wheel, as its build makes it."""
    scratch.mkdir(exist_ok=True)
    for path in PLUGIN.glob("*.*"):
        (scratch / path.name).write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    options = ["--no-build-isolation", "--disable-pip-version-check", "--wheel-dir", str(folder)]
    subprocess.run([*command, *options, str(scratch)], check=True)
    (found,) = folder.glob("*.whl")
    return found


def test_a_file_is_a_plugin_and_is_loaded_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "counts.py"
    path.write_text(SOURCE + APPENDERS)
    libraries = Libraries([str(tmp_path)])
    first = parse(one("counts", file="/x"), AppenderRegistry(libraries))
    assert parse(one("counts", file="/x"), AppenderRegistry(libraries)) == first
    path.write_text(SOURCE + APPENDERS + "# changed\n")
    assert parse(one("counts", file="/x"), AppenderRegistry(libraries)) != first


def test_a_change_that_keeps_second_and_size_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "counts.py"
    libraries = Libraries([str(tmp_path)])
    for moment, name in enumerate(("counts", "events")):
        path.write_text(SOURCE + APPENDERS.replace("counts", name))
        os.utime(path, ns=(0, 1_700_000_000_000_000_000 + moment))
        assert name in AppenderRegistry(libraries).names
    assert os.listdir(tmp_path) == ["counts.py"], "nothing is written beside it"


def test_a_wheel_is_a_plugin_that_need_not_be_installed(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    path = wheel(folder, tmp_path / "source")
    assert {"counting", "broken"} <= set(registry(folder).names)
    try:
        found = parse(one("counting", file="/x"), registry(folder))
        assert found.appenders[0].make() is not None
        # It is on Python's path now, and is looked at again by every reload.
        assert registry(folder).wrong == {}
        assert parse(one("counting", file="/x"), registry(folder)) == found
        with pytest.raises(InvalidInput, match=r"'broken' of .*nothing_of_that_name in .*\.whl"):
            parse(one("broken"), registry(folder))
    finally:
        sys.path.remove(str(path))
        sys.modules.pop("tailrace_plugin_for_tests", None)


BAD_FILES = {
    "raise RuntimeError('no')": r"bad\.py cannot be loaded: RuntimeError: no",
    "import nothing_of_that_name": r"bad\.py cannot be loaded: ModuleNotFoundError",
    "def (": r"bad\.py cannot be loaded: SyntaxError",
    "x = 1": r"bad\.py has no appenders",
    "APPENDERS = {1: 2}": r"bad\.py has no appenders",
}


@pytest.mark.parametrize("source", BAD_FILES)
def test_a_file_that_is_no_plugin_is_named(tmp_path: Path, source: str) -> None:
    """And keeps nobody from running who does not need it."""
    (tmp_path / "bad.py").write_text(source)
    (tmp_path / "counts.py").write_text(SOURCE + APPENDERS)
    found = registry(tmp_path)
    assert re.search(BAD_FILES[source], wrong(found))
    assert "counts" in found.names


BAD_KINDS = {
    "APPENDERS = {'x': 1}": "have `settings`",
    "class X:\n    settings = dict\nAPPENDERS = {'x': X}": "must be a class derived from",
    "from tailrace.pipelines.section import Section\nclass X:\n    settings = Section\n"
    "    def start(self): ...\nAPPENDERS = {'x': X}": "it has no append, sync, saved, stop",
}


@pytest.mark.parametrize("source", BAD_KINDS)
def test_what_a_plugin_names_is_checked(tmp_path: Path, source: str) -> None:
    (tmp_path / "bad.py").write_text(source)
    with pytest.raises(InvalidInput, match=BAD_KINDS[source]):
        parse(one("x"), registry(tmp_path))


def test_a_name_that_two_have_is_refused(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(SOURCE + APPENDERS)
    assert re.search(r"'counts' of .*b\.py is also one of .*a\.py", wrong(registry(tmp_path)))
    os.unlink(tmp_path / "a.py")
    (tmp_path / "b.py").write_text(SOURCE + '\nAPPENDERS = {"stdout": Counting}\n')
    assert "also one of Tailrace itself" in wrong(registry(tmp_path))
    assert registry(tmp_path).kind("stdout") is Stdout


def test_folders_and_wheels_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="absent of --lib cannot be read"):
        registry(tmp_path / "absent")
    (tmp_path / "x-1-py3-none-any.whl").write_bytes(b"none")
    assert "is not a wheel" in wrong(registry(tmp_path))
    with zipfile.ZipFile(tmp_path / "x-1-py3-none-any.whl", "w") as made:
        made.writestr("x/fast.so", b"")
    assert "has compiled code (x/fast.so)" in wrong(registry(tmp_path))
    with zipfile.ZipFile(tmp_path / "x-1-py3-none-any.whl", "w") as made:
        made.writestr("x/__init__.py", b"")
    assert "has no appenders" in wrong(registry(tmp_path))
