"""A torn tail is what a crash leaves, and is set aside; any other damage refuses to start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tailrace.forwarder.checkpoints import Checkpoints, StorageDamaged, read_states
from tailrace.forwarder.model import FileState
from tailrace.logstore.errors import UnsupportedVersion
from tests.forwarder.checkpoints.states import batch, state

ROUNDS = 6


def opened(folder: Path, *, salvage: bool = False) -> tuple[Checkpoints, list[str]]:
    said: list[str] = []
    return Checkpoints(str(folder), say=said.append, salvage=salvage), said


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, list[int], list[dict[str, FileState]]]:
    """The log's file; its size behind each frame, and what was known then."""
    log, _ = opened(tmp_path)
    (path,) = tmp_path.glob("*.checkpoints")
    sizes, known = [path.stat().st_size], [dict(log.files)]
    for offset in range(1, ROUNDS):
        log.put(state(1, offset, batch(offset, offset, offset + 3)))
        log.put(state(offset + 1))
        log.sync()
        sizes.append(path.stat().st_size)
        known.append(dict(log.files))
    log.close()
    return path, sizes, known


def _tails(whole: bytes, border: int) -> Iterator[bytes]:
    """What a crash in the write behind `border` may leave."""
    tail = whole[border:]
    for cut in {1, 4, 11, 12, 13, len(tail) // 2, len(tail) - 1}:
        yield tail[:cut]
        yield bytes(cut)
        yield bytes(len(tail) - cut) + tail[-cut:]
        yield tail[:cut] + bytes(len(tail) - cut)


def test_a_torn_tail_is_set_aside_and_said(
    written: tuple[Path, list[int], list[dict[str, FileState]]],
) -> None:
    path, sizes, known = written
    whole = path.read_bytes()
    border = sizes[-2]
    for number, tail in enumerate(_tails(whole, border)):
        path.with_name(f"{number + 1:09d}0.checkpoints").write_bytes(whole[:border] + tail)
        assert read_states(str(path.parent)) == known[-2]
        log, said = opened(path.parent)
        assert log.files == known[-2]
        log.close()
        (sentence,) = said
        (kept,) = path.parent.glob("*.torn")
        assert str(kept) in sentence
        assert f"the last {len(tail)} bytes" in sentence
        assert kept.read_bytes() == tail
        log, said = opened(path.parent)
        log.close()
        assert said == [], "it is said once"


def test_damage_before_the_tail_refuses_to_start_and_names_the_verb(
    written: tuple[Path, list[int], list[dict[str, FileState]]],
) -> None:
    path, sizes, _ = written
    whole, dice = path.read_bytes(), Random(1)
    places = {0, 7, 8, 11, 12, 16, 19, 20, *(dice.randrange(sizes[-2]) for _ in range(200))}
    for place in sorted(places):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises((StorageDamaged, UnsupportedVersion)) as refused:
            opened(path.parent)
        assert path.name in str(refused.value)
        if isinstance(refused.value, StorageDamaged):
            assert "tailrace forward state reset --damaged" in refused.value.hint
        assert path.read_bytes() == damaged, "what is damaged is left as it is"
        with pytest.raises((StorageDamaged, UnsupportedVersion)):
            read_states(str(path.parent))


def test_a_file_that_is_shorter_than_when_it_got_its_name_is_damaged(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    for number in range(600):
        log.put(state(number))
    log.close()
    log, _ = opened(tmp_path)  # writes all of them into a new file, in several frames
    log.close()
    (path,) = tmp_path.glob("*.checkpoints")
    whole = path.read_bytes()
    for size in (0, 5, 8, 30, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(StorageDamaged):
            opened(tmp_path)


def test_what_can_be_read_of_a_damaged_file_is_kept_on_request(
    written: tuple[Path, list[int], list[dict[str, FileState]]],
) -> None:
    path, sizes, known = written
    whole = bytearray(path.read_bytes())
    whole[sizes[2] + 40] ^= 0xFF  # in the frame that has the fingerprint of file-4
    path.write_bytes(whole)
    log, said = opened(path.parent, salvage=True)
    expected = dict(known[-1])
    del expected["file-4"]
    assert log.files == expected
    log.close()
    (kept,) = path.parent.glob("*.damaged")
    assert kept.read_bytes() == whole
    assert str(kept) in said[0]
    log, said = opened(path.parent)
    assert (log.files, said) == (expected, [])
    log.close()


def test_a_file_of_a_newer_program_is_not_guessed_at(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    log.close()
    (path,) = tmp_path.glob("*.checkpoints")
    data = path.read_bytes()
    from tailrace.forwarder.checkpoints import frame

    later = json.dumps({"version": 2, "states": 0}).encode() + b"\n"
    path.write_bytes(b"TRFCKPT1" + frame(later) + later)
    with pytest.raises(UnsupportedVersion, match="newer"):
        opened(tmp_path)
    path.write_bytes(b"TRFCKPT2" + data[8:])
    with pytest.raises(UnsupportedVersion, match="newer"):
        opened(tmp_path)


def test_checkpoints_that_are_gone_are_an_alarm(
    written: tuple[Path, list[int], list[dict[str, FileState]]],
) -> None:
    written[0].unlink()
    log, said = opened(written[0].parent)
    assert log.files == {}
    log.close()
    (sentence,) = said
    assert sentence.startswith("ALARM: ")
    assert "its checkpoints are gone" in sentence
    log, said = opened(written[0].parent)
    log.close()
    assert said == []
