"""Lines without an end: shown while they change, sent once, with their last state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forwarder.engine.world import World


def _messages(world: World) -> list[str]:
    """What the store has, of bodies of both kinds."""
    return [
        json.loads(line)["message"] if line.startswith("{") else line
        for line in world.store.lines()
    ]


def test_a_bar_is_shown_as_it_is_and_sent_once(tmp_path: Path) -> None:
    world = World(tmp_path, packs=True)
    world.write("a.log", "one\nGo on? ")
    world.poll()
    (shown,) = world.shown
    assert (world.store.lines(), shown[1]) == (["one"], "Go on? ")
    for state in ("yes\n10%", "\r20%\r30%", "\r40%\r"):
        world.write("a.log", state)
        world.settle(250)
        world.restart()
    world.poll()
    assert [line for _, line in world.shown] == ["Go on? ", "10%", "30%", "40%", "40%"]
    assert {file for file, _ in world.shown} == {shown[0]}, "one producer, also after a restart"
    world.write("a.log", "\r100%\r\ntwo\n")
    world.poll()
    assert world.store.lines() == ["one", "Go on? yes", "100%", "two"]
    assert world.shown[-1][1] == ""


def test_a_line_that_stays_unfinished_is_sent_in_the_end(tmp_path: Path) -> None:
    world = World(tmp_path, packs=True, unfinished_wait="10s")
    world.write("a.log", "1%\r2%")
    world.settle(9)
    assert (world.store.lines(), world.shown[-1][1]) == ([], "2%")
    world.settle(2)
    assert (world.store.lines(), world.shown[-1][1]) == (["2%"], "")
    world.write("a.log", "\r3%\nend\n")
    world.poll()
    assert _messages(world) == ["2%", "3%", "end"]
    assert '"log.record.part":"2"' in world.store.lines()[1]


def test_a_long_bar_is_passed_over_and_survives_kills(tmp_path: Path) -> None:
    world = World(tmp_path, packs=True)
    states = [f"{number:7} of many, and still at it" for number in range(20_000)]
    for first in range(0, len(states), 2000):
        world.write("a.log", "".join(f"\r{state}" for state in states[first : first + 2000]))
        world.poll()
        if first % 6000 == 0:
            world.restart()
    (file,) = world.shared.registry.files.values()
    assert file.read.offset > 400_000, "what nobody sees any more is not read again"
    assert world.store.lines() == []
    world.write("a.log", "\nend\n")
    world.poll()
    assert world.store.lines() == [states[-1].strip(), "end"]


@pytest.mark.parametrize("keys", [{}, {"multiline": {"builtin": "python"}}])
def test_a_long_bar_that_was_finished_is_one_record(tmp_path: Path, keys: dict[str, Any]) -> None:
    world = World(tmp_path, packs=True, **keys)
    bar = "".join(f"\r{number:9} of many, and at it" for number in range(200_000))
    world.write("a.log", f"one\n{bar}\nend\n")
    world.settle(2)
    assert _messages(world) == ["one", "199999 of many, and at it", "end"]


def test_a_moving_bar_holds_no_line_before_it_back(tmp_path: Path) -> None:
    world = World(tmp_path, packs=True, multiline={"builtin": "python"})
    world.write("a.log", "may go on\n")
    for number in range(20):
        world.write("a.log", f"\r{number}%")
        world.settle(0.2)
    assert _messages(world) == ["may go on"]
    assert world.shown[-1][1] == "19%"


def test_a_rotated_line_waits_no_longer(tmp_path: Path) -> None:
    world = World(tmp_path, packs=True, run="r")
    world.write("a.log", "1%\r2%")
    world.poll()
    world.path("a.log").rename(world.path("a.log.1"))
    world.write("a.log", "next\n")
    world.settle(5)
    assert world.store.lines() == ["2%", "next"]


def test_as_in_opentelemetry(tmp_path: Path) -> None:
    world = World(tmp_path, packs=True, unfinished_wait=0, overwritten="all")
    world.write("a.log", "1%\r2%")
    world.settle(1)
    assert [body for _, body in world.store.batches.values()] == [b"1%\r2%\n"]
    assert world.shown == []


def test_an_unfinished_line_of_another_encoding(tmp_path: Path) -> None:
    world = World(tmp_path, packs=True, encoding="utf-16le", multiline={"builtin": "python"})
    with world.path("a.log").open("wb") as file:
        file.write("héld\n1%\r2% é".encode("utf-16-le"))
    world.settle(3)
    assert (_messages(world), world.shown[-1][1]) == (["héld"], "2% é")


def _cri(text: str, stream: str, *, goes_on: bool) -> str:
    return f"2026-11-30T10:00:00.123456789Z {stream} {'P' if goes_on else 'F'} {text}\n"


def _docker(text: str, stream: str, *, goes_on: bool) -> str:
    log = text if goes_on else f"{text}\n"
    return json.dumps({"log": log, "stream": stream, "time": "2026-11-30T10:00:00.1Z"}) + "\n"


@pytest.mark.parametrize("runtime", [_cri, _docker])
@pytest.mark.parametrize("parts", [3, 3000])
def test_the_parts_of_a_containers_bar_are_one_record(
    tmp_path: Path, parts: int, runtime: Callable[..., str]
) -> None:
    """As containerd and Docker write them: 16 KiB of a line, without its end, are a part."""
    world = World(tmp_path, packs=True, operators=[{"type": "container"}])

    def write(text: str, stream: str = "stdout", *, goes_on: bool = False) -> None:
        world.write("a.log", runtime(text, stream, goes_on=goes_on))

    write("one")
    for number in range(parts):
        bar = "".join(f"\r{number * 10 + step}%" for step in range(200)) + "\r100"
        write(bar, goes_on=True)
        if number % 1000 == 1:
            world.settle(60)
            world.restart()
    assert world.shown[-1][1] == "100"
    write("%\r10", "stderr", goes_on=True)
    write("%\r101%")
    write("%", "stderr")
    world.settle(2)
    assert _messages(world) == ["one", "101%", "10%"]


@pytest.mark.parametrize("runtime", [_cri, _docker])
@pytest.mark.parametrize("named", [True, False], ids=["its format", "any format"])
def test_a_containers_prompt_is_shown_and_sent_with_its_answer(
    tmp_path: Path, runtime: Callable[..., str], named: bool
) -> None:
    format_ = {_cri: "containerd", _docker: "docker"}[runtime] if named else ""
    operator = {"type": "container", "format": format_} if named else {"type": "container"}
    world = World(tmp_path, packs=True, operators=[operator])
    world.write("a.log", runtime("begins", "stdout", goes_on=False))
    world.write("a.log", runtime("Go on? ", "stdout", goes_on=True))
    world.settle(5)
    assert (_messages(world), world.shown[-1][1]) == (["begins"], "Go on? ")
    world.write("a.log", runtime("yes", "stdout", goes_on=False))
    world.settle(2)
    assert _messages(world) == ["begins", "Go on? yes"]
    assert world.shown[-1][1] == ""
