"""`tailrace forward state`: what is known of files is listed, exported and reset."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.cli.main import main
from tailrace.forwarder.checkpoints import Checkpoints, decode, read_states
from tailrace.forwarder.config.source import default_storage
from tailrace.forwarder.model import FileState
from tests.forwarder.checkpoints.states import batch, state

NOT_UTF8 = replace(state(3, 5), path="/logs/\udcff.log", fqn="", run="")
STATES = {
    one.id: one for one in (state(1, 100, batch(1, 100, 150)), replace(state(2), lost=7), NOT_UTF8)
}


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """A storage folder with three files."""
    with Checkpoints(str(tmp_path), say=print) as log:
        for one in STATES.values():
            log.put(one)
    return str(tmp_path)


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    """What `forward state` writes."""
    capsys.readouterr()
    assert main(["forward", "state", *words]) == status
    written = capsys.readouterr()
    return written.out if status == 0 else written.err


def test_the_list_is_a_table_for_people(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "list", "--storage", storage).splitlines()
    assert lines[0].split() == [
        *("STAGE", "SOURCE", "RUN", "ACKNOWLEDGED", "SIZE", "SENDING", "LOST", "PATH"),
    ]
    cells = [line.split() for line in lines[1:]]
    assert cells == [
        ["open", "file_log/shop", "shop.orders/run-1", "100", "200", "1", "0", "/logs/1.log"],
        ["open", "file_log/shop", "shop.orders/run-2", "0", "100", "0", "7", "/logs/2.log"],
        ["open", "file_log/shop", "-", "5", "105", "0", "0", "/logs/\\udcff.log"],
    ]


def test_the_export_is_what_the_log_has(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "export", "--storage", storage).splitlines()
    assert {json.loads(line)["id"] for line in lines} == set(STATES)
    for line in lines:
        found = decode(line.encode(), {})
        assert isinstance(found, FileState)
        assert found == STATES[found.id]


@pytest.mark.parametrize(
    ("files", "left"),
    [
        (["/logs/1.log"], {"file-2", "file-3"}),
        (["file-2", "/logs/1.*"], {"file-3"}),
        (["/logs/*"], set()),
    ],
)
def test_files_are_forgotten_by_path_pattern_or_id(
    storage: str, capsys: pytest.CaptureFixture[str], files: list[str], left: set[str]
) -> None:
    out = said(capsys, "reset", *files, "--storage", storage)
    assert len(out.splitlines()) == len(STATES) - len(left)
    assert set(read_states(storage)) == left


def test_all_are_forgotten_and_what_was_known_is_kept(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "reset", "--all", "--storage", storage)
    assert read_states(storage) == {}
    (kept,) = Path(storage).glob("*.reset")
    assert b'"id":"file-1"' in kept.read_bytes()


def test_a_damaged_log_is_reset_to_what_can_be_read(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = Path(storage).glob("*.checkpoints")
    with Checkpoints(storage, say=print) as log:
        log.put(state(4))
    (path,) = Path(storage).glob("*.checkpoints")
    data = path.read_bytes()
    place = data.index(b'"id":"file-1"')
    path.write_bytes(data[:place] + b"\0" + data[place + 1 :])
    assert "reset --damaged" in said(capsys, "list", "--storage", storage, status=1)
    assert "reset --damaged" in said(capsys, "reset", "file-4", "--storage", storage, status=1)
    said(capsys, "reset", "--damaged", "--storage", storage)
    assert set(read_states(storage)) == {"file-4"}
    (kept,) = Path(storage).glob("*.damaged")
    assert kept.read_bytes() == data[:place] + b"\0" + data[place + 1 :]


def test_a_forwarder_that_runs_is_not_reset_under_its_feet(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Checkpoints(storage, say=print):
        assert "STAGE" in said(capsys, "list", "--storage", storage)
        error = said(capsys, "reset", "--all", "--storage", storage, status=1)
        assert "another forwarder uses the storage" in error
        assert "hint: Stop the other forwarder" in error
    assert set(read_states(storage)) == set(STATES)


@pytest.mark.parametrize(
    "words", [[], ["--all", "--damaged"], ["/logs/1.log", "--all"], ["/logs/none"]]
)
def test_a_reset_that_says_nothing_or_too_much_changes_nothing(
    storage: str, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert "hint: " in said(capsys, "reset", *words, "--storage", storage, status=1)
    assert set(read_states(storage)) == set(STATES)


def test_the_default_folder_is_said_where_it_has_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    error = said(capsys, "list", status=1)
    assert f"{tmp_path}/.local/state/tailrace/forwarder has no checkpoints" in error
    assert default_storage().startswith(str(tmp_path))
