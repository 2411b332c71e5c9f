"""The checkpoint log: what is put is there at the next start, for one process at a time."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.forwarder.checkpoints import Checkpoints, StorageFailed, StorageInUse, read_states
from tailrace.forwarder.model import FileState
from tailrace.logstore.errors import NotFound
from tests.forwarder.checkpoints.states import batch, state

ROOT = Path(__file__).parents[3]


def no_say(sentence: str) -> None:
    raise AssertionError(f"nothing was to be said: {sentence}")


def opened(folder: Path, **more: object) -> Checkpoints:
    return Checkpoints(str(folder), say=no_say, **more)  # type: ignore[arg-type]


def test_what_was_put_is_there_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "storage"
    with opened(folder) as log:
        log.put(state(1, 10, batch(1, 10, 50)))
        log.put(state(2))
        log.sync()
        log.put(state(1, 50))
        log.put(state(3))
        log.forget("file-2")
        log.forget("never seen")
        assert set(log.files) == {"file-1", "file-3"}
    with opened(folder) as log:
        assert log.files == {"file-1": state(1, 50), "file-3": state(3)}
        log.put(state(2, 7))
    assert read_states(str(folder)) == {
        "file-1": state(1, 50),
        "file-2": state(2, 7),
        "file-3": state(3),
    }


def test_everything_in_the_folder_is_its_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "storage"
    before = os.umask(0)
    try:
        opened(folder).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_second_forwarder_refuses_to_start_until_the_first_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from tailrace.forwarder.checkpoints import Checkpoints\n"
        "log = Checkpoints(sys.argv[1], say=print)\n"
        "print('open', flush=True)\n"
        "time.sleep(600)\n"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert first.stdout is not None
    with first, first.stdout:
        assert first.stdout.readline() == b"open\n"
        with pytest.raises(StorageInUse, match="another forwarder uses the storage") as refused:
            opened(tmp_path)
        assert "storage" in refused.value.hint
        first.kill()
        first.wait()
    opened(tmp_path).close()


def test_a_log_that_grows_is_compacted_and_loses_nothing(tmp_path: Path) -> None:
    names = set()
    with opened(tmp_path, compact_from_bytes=50_000) as log:
        for number in range(40):
            log.put(state(number))
        log.sync()
        for offset in range(1, 2000):
            number = offset % 10
            log.put(state(number, offset, batch(offset, offset, offset + 1)))
            log.sync()
            names.add(next(path.name for path in tmp_path.glob("*.checkpoints")))
            sizes = [path.stat().st_size for path in tmp_path.glob("*.checkpoints")]
            assert len(sizes) == 1
            assert sizes[0] < 4 * 80_000
        expected = dict(log.files)
    assert len(names) > 3
    with opened(tmp_path) as log:
        assert log.files == expected


def test_a_fingerprint_is_written_once_for_a_file_of_the_log(tmp_path: Path) -> None:
    def size() -> int:
        return sum(path.stat().st_size for path in tmp_path.glob("*.checkpoints"))

    with opened(tmp_path) as log:
        log.put(state(1))
        log.sync()
        whole, before = size(), size()
        for offset in range(100):
            log.put(state(1, offset))
            log.sync()
        assert (size() - before) / 100 < whole / 3
        longer = state(8, 5)
        log.put(state(8, 5))
        log.sync()
    with opened(tmp_path) as log:
        assert log.files == {"file-1": state(1, 99), "file-8": longer}


def test_of_several_puts_of_a_file_the_last_is_written(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        for offset in range(1000):
            log.put(state(1, offset))
        log.sync()
        (path,) = tmp_path.glob("*.checkpoints")
        assert path.read_bytes().count(b'"id":"file-1"') == 1


def test_syncs_are_timed_and_those_without_work_cost_none(tmp_path: Path) -> None:
    seconds: list[float] = []
    with opened(tmp_path, on_sync=seconds.append) as log:
        log.sync()
        assert seconds == []
        log.put(state(1))
        log.sync()
        log.sync()
    assert len(seconds) == 1


def test_reset_forgets_all_and_keeps_the_file(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.put(state(1, 10))
        log.sync()
        kept = log.reset()
        assert log.files == {}
        log.put(state(2))
    assert b'"id":"file-1"' in Path(kept).read_bytes()
    with opened(tmp_path) as log:
        assert log.files == {"file-2": state(2)}


def test_states_are_read_beside_a_forwarder_that_writes(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no checkpoints"):
        read_states(str(tmp_path))
    with opened(tmp_path, compact_from_bytes=1000) as log:
        for offset in range(200):
            log.put(state(offset % 3, offset))
            log.sync()
            assert read_states(str(tmp_path)) == log.files


def test_a_folder_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="Not a directory") as failed:
        opened(tmp_path / "file" / "storage")
    assert "storage" in failed.value.hint


def test_ten_thousand_files_in_frames_that_stay_small(tmp_path: Path) -> None:
    expected: dict[str, FileState] = {}
    with opened(tmp_path) as log:
        for number in range(10_000):
            expected[f"file-{number}"] = state(number, number, batch(number, number, number + 9))
            log.put(expected[f"file-{number}"])
    with opened(tmp_path) as log:
        assert log.files == expected


@pytest.mark.parametrize("taken", ["folder", "log", "replaced log"])
def test_checkpoints_that_are_taken_away_are_written_again_and_that_is_an_alarm(
    tmp_path: Path, taken: str
) -> None:
    folder, said = tmp_path / "storage", list[str]()
    log = Checkpoints(str(folder), say=said.append)
    log.put(state(1, 10))
    log.sync()
    assert said == []
    (path,) = folder.glob("*.checkpoints")
    if taken == "folder":
        shutil.rmtree(folder)
    elif taken == "log":
        path.unlink()
    else:
        kept = path.read_bytes()
        path.unlink()
        path.write_bytes(kept)
    log.sync()
    assert len(said) == 1
    assert "ALARM: somebody removed or replaced the checkpoints" in said[0]
    assert read_states(str(folder)) == {"file-1": state(1, 10)}
    log.sync()
    assert len(said) == 1
    with pytest.raises(StorageInUse):
        Checkpoints(str(folder), say=said.append)
    log.put(state(2))
    log.close()
    with opened(folder) as again:
        assert set(again.files) == {"file-1", "file-2"}


def test_a_forwarder_whose_folder_another_one_has_begun_again_ends(tmp_path: Path) -> None:
    folder, said = tmp_path / "storage", list[str]()
    first = Checkpoints(str(folder), say=said.append)
    first.put(state(1, 10))
    first.sync()
    shutil.rmtree(folder)
    with opened(folder) as second:
        second.put(state(2))
        second.sync()
        with pytest.raises(StorageInUse):
            first.sync()
        assert set(read_states(str(folder))) == {"file-2"}
