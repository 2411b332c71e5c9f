"""A folder of pipelines' files: what is wrong with one is said, and stops nobody else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tailrace.cli.main import main
from tailrace.pipelines.appenders.registry import AppenderRegistry, Libraries
from tailrace.pipelines.definition import PipelineConfig, PipelineFolder, beside, read_folder

OUT = "appenders: [{type: stdout, name: out}]\n"
PLUGIN = """
from tailrace.pipelines.appenders.simple import Stdout
from tailrace.pipelines.section import Section
from pydantic import field_validator

class Odd(Section):
    how: str = ""

    @field_validator("how")
    @classmethod
    def _check(cls, value):
        if value == "wrong":
            raise KeyError(value)
        return value

class Unmade(Stdout):
    settings = Odd

    def __init__(self, settings):
        if settings.how == "unmade":
            raise OSError("no such device")
        self._layout = None

APPENDERS = {"odd": Unmade}
"""
WRONG = {
    "name: [": "cannot be read",
    "1: 2\nname: p\n" + OUT: "the key 1 must be text",
    "name: p\nappenders: [{1: 2, type: stdout, name: x}]\n": "the key appenders.0.1 must be text",
    "name: p\ndescription: 2026-13-45\n" + OUT: "cannot be read: month must be in",
    "[" * 5000: "cannot be read",
    "name: p\nappenders: [{type: odd, name: x, how: wrong}]\n": "cannot be used: KeyError: 'wrong'",
    "name: p\nappenders: [{type: absent, name: x}]\n": "no appender of the type 'absent'",
    "- p": "file must hold keys and values",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text("name: good\n" + OUT)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "odd.py").write_text(PLUGIN)
    return tmp_path


def read(folder: Path, running: PipelineFolder | None = None) -> PipelineFolder:
    found = read_folder(str(folder), AppenderRegistry(Libraries([str(folder / "lib")])))
    return beside(found, {one.name: one for one in (running or PipelineFolder()).pipelines})


def names(folder: PipelineFolder) -> list[str]:
    return [one.name for one in folder.pipelines]


def wrong(folder: PipelineFolder) -> dict[str, str]:
    return {os.path.basename(path): str(error) for path, error in folder.wrong.items()}


@pytest.mark.parametrize("text", WRONG)
def test_a_file_that_is_wrong_is_said_and_the_others_run(folder: Path, text: str) -> None:
    path = folder / "p.yaml"
    path.write_text(text)
    found = read(folder)
    assert names(found) == ["good"]
    assert WRONG[text] in wrong(found)["p.yaml"]
    assert str(path) in wrong(found)["p.yaml"]
    path.write_text("name: p\n" + OUT)
    runs = read(folder)
    assert names(runs) == ["good", "p"]
    path.write_text(text)
    (folder / "good.yaml").write_text("name: good\ndescription: new\n" + OUT)
    found = read(folder, runs)
    assert names(found) == ["good", "p"], "it goes on as it is"
    assert [one.settings.description for one in found.pipelines] == ["new", ""]
    assert list(wrong(found)) == ["p.yaml"]


def test_a_pipeline_whose_file_is_taken_away_ends(folder: Path) -> None:
    runs = read(folder)
    os.unlink(folder / "good.yaml")
    assert names(read(folder, runs)) == []


def test_who_runs_keeps_its_name_and_its_files(folder: Path) -> None:
    def file(path: str) -> str:
        one = {"type": "rolling_file", "name": "f", "dir": "/out", "path": path}
        return yaml.safe_dump([one], default_flow_style=True)

    (folder / "m.yaml").write_text(f"name: m\nappenders: {file('m.log')}")
    runs = read(folder)
    (folder / "a.yaml").write_text("name: m\n" + OUT)
    (folder / "b.yaml").write_text(f"name: b\nappenders: {file('m.log')}")
    found = read(folder, runs)
    assert names(found) == ["good", "m"]
    assert [one.path for one in found.pipelines if one.name == "m"] == [str(folder / "m.yaml")]
    assert "both are the pipeline 'm'" in wrong(found)["a.yaml"]
    assert "m/f and b/f both write /out/m.log" in wrong(found)["b.yaml"]
    assert names(read(folder)) == ["b", "good", "m"], "who comes first, if nobody runs"
    (folder / "good.yaml").write_text(f"name: good\nappenders: {file('m.log')}")
    found = read(folder, runs)
    assert [one.appenders[0].part.type for one in found.pipelines] == ["stdout", "rolling_file"]
    assert "good.yaml" in wrong(found)


def test_a_change_is_tried_out_before_anything_is_stopped(folder: Path) -> None:
    path = folder / "p.yaml"
    path.write_text("name: p\nappenders: [{type: odd, name: x}]\n")
    runs = read(folder)
    path.write_text("name: p\nappenders: [{type: odd, name: x, how: unmade}]\n")
    found = read(folder, runs)
    (kept,) = [one for one in found.pipelines if one.name == "p"]
    assert isinstance(kept, PipelineConfig)
    assert kept == next(one for one in runs.pipelines if one.name == "p")
    assert "x of p cannot be made: OSError: no such device" in wrong(found)["p.yaml"]
    assert "p" in names(read(folder)), "at a start it is the appender that fails, and no other"


def test_a_plugin_that_breaks_stops_nobody(folder: Path) -> None:
    (folder / "p.yaml").write_text("name: p\nappenders: [{type: odd, name: x}]\n")
    runs = read(folder)
    (folder / "lib" / "odd.py").write_text("raise RuntimeError('half of it')")
    found = read(folder, runs)
    assert names(found) == ["good", "p"]
    assert set(wrong(found)) == {"odd.py", "p.yaml"}


def test_check_says_everything_that_is_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.yaml").write_text("name: [")
    (folder / "b.yaml").write_text("name: b\nappenders: [{type: odd, name: x, how: unmade}]\n")
    (folder / "c.yaml").write_text("name: c\nappenders: []\n")
    check = ["pipelines", "check", "--lib", str(folder / "lib"), "--data", str(folder)]
    assert main([*check, str(folder / "good.yaml")]) == 0
    assert main([*check, str(folder)]) == 1
    said = capsys.readouterr()
    assert "good.yaml: pipeline good: out (stdout)" in said.out
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        assert name in said.err
        assert name not in said.out
