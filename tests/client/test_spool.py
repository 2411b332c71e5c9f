"""What is written to the spool is read back, wherever a crash cut it, and by one process only."""

from __future__ import annotations

import json
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

from tailrace_client import system
from tailrace_client.records import BatchIds
from tailrace_client.spool import (
    Closing,
    SpoolEntry,
    SpoolQueue,
    Target,
    has_work,
    parse,
    queues,
    read_target,
    set_aside_in,
)

TARGET = Target("http://node:8790", "shop.orders", "r", "fast")
HEAD = 29  # bytes before the first record
RECORDS = [b'{"message":"one"}\n', b'{"message":"two"}\n', b'{"message":"three"}\n']


def written(payloads: list[bytes]) -> list[SpoolEntry]:
    """Records of this moment."""
    return [SpoolEntry(system.steady_ms(), payload) for payload in payloads]


def _queue(spool: Path) -> tuple[SpoolQueue, BatchIds]:
    ids = BatchIds()
    return SpoolQueue.create(str(spool), TARGET, ids), ids


def test_a_file_that_is_cut_anywhere_has_the_records_before(tmp_path: Path) -> None:
    queue, ids = _queue(tmp_path)
    ends = []
    for record in RECORDS:
        queue.append(written([record]), ids)
        ends.append(queue.open_size)
    (path,) = tmp_path.rglob("*.batch")
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        intact = sum(end <= cut for end in ends)
        content = parse(whole[:cut])
        assert content.payload == b"".join(RECORDS[:intact])
        assert content.records == intact
        assert content.damaged == cut - max([HEAD, *ends[:intact]]) or cut < HEAD


def test_a_bit_that_is_flipped_is_noticed(tmp_path: Path) -> None:
    queue, ids = _queue(tmp_path)
    queue.append(written(RECORDS), ids)
    (path,) = tmp_path.rglob("*.batch")
    whole = path.read_bytes()
    for at in range(len(whole)):
        content = parse(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert content.damaged > 0
        assert b"".join(RECORDS).startswith(content.payload)


def test_a_queue_belongs_to_one_process_until_that_has_ended(tmp_path: Path) -> None:
    queue, ids = _queue(tmp_path)
    queue.append(written(RECORDS), ids)
    queue.closing = Closing("failed")
    code = (
        "import sys; from tailrace_client.spool import SpoolQueue\n"
        "q = SpoolQueue.take_over(sys.argv[1])\n"
        "print(q and (q.target, [b[:2] for b in q.sealed()], q.closing))"
    )
    command = [sys.executable, "-c", code, queue.path]
    environment = {**os.environ, "PYTHONPATH": "client"}

    def other() -> str:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert other() == "None"
    queue.release()
    (path,) = tmp_path.rglob("*.batch")
    expected = (TARGET, [(path.stem, 3)], Closing("failed"))
    assert other() == str(expected)


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    os.umask(0)
    try:
        queue, ids = _queue(tmp_path / "spool")
        queue.append(written(RECORDS), ids)
        queue.closing = Closing(None)
    finally:
        os.umask(0o022)
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in [tmp_path / "spool", *(tmp_path / "spool").rglob("*")]
    }
    assert len(modes) == 6
    assert {modes.pop("spool"), modes.pop(Path(queue.path).name)} == {0o700}
    assert set(modes.values()) == {0o600}


def test_batches_are_in_the_order_of_their_ids_and_each_is_removed_alone(tmp_path: Path) -> None:
    queue, ids = _queue(tmp_path)
    for record in RECORDS:
        queue.append(written([record]), ids)
        queue.seal()
    batches = queue.sealed()
    assert [batch.id for batch in batches] == sorted(batch.id for batch in batches)
    assert [queue.read(batch.id).payload for batch in batches] == RECORDS
    assert queue.size == sum(batch.size for batch in batches)
    queue.remove(batches[0].id)
    new = queue.give_new_id(batches[1].id, ids)
    assert [batch.id for batch in queue.sealed()] == [new, batches[2].id], "the order stays"
    aside = queue.set_aside(new, "refused")
    assert parse(Path(aside).read_bytes()).payload == RECORDS[1]
    queue.remove(batches[2].id)
    assert (queue.size, queue.records) == (0, 0)
    queue.release()
    assert Path(aside).exists()
    assert not has_work(queue.path)


def test_after_a_deletion_what_was_written_since_is_a_batch_in_its_old_place(
    tmp_path: Path,
) -> None:
    queue, ids = _queue(tmp_path)
    queue.append(written(RECORDS[:1]), ids)
    between_ms = system.steady_ms() + 1
    while system.steady_ms() < between_ms:
        """The clock goes on."""
    queue.append(written(RECORDS[1:]), ids)
    queue.seal()
    queue.append(written(RECORDS[:1]), ids)
    queue.seal()
    mixed, later = queue.sealed()
    ahead = BatchIds(now_ms=lambda: system.now_ms() + 660_000).mint()
    whole = Path(queue.path, f"{mixed.id}.batch").read_bytes()
    new, dropped = queue.send_anew(mixed.id, ahead, between_ms)
    assert (new, dropped) == (ahead, 1)
    assert [batch.id for batch in queue.sealed()] == [ahead, later.id]
    assert queue.read(ahead) == (b"".join(RECORDS[1:]), 2, 0, True)
    assert (queue.records, queue.size) == (3, sum(batch.size for batch in queue.sealed()))
    # A service that gives the same id again, or a lower one, does not change the order.
    second, dropped = queue.send_anew(later.id, ahead, between_ms)
    assert (second > ahead, dropped) == (True, 0)
    queue.release()

    # A crash left the refused file: its records are not sent a second time.
    Path(queue.path, f"{mixed.id}.batch").write_bytes(whole)
    Path(queue.path, f"{ahead}.batch.new").write_bytes(whole[:40])
    again = SpoolQueue.take_over(queue.path)
    assert again is not None
    assert [batch.id for batch in again.sealed()] == [ahead, second]
    assert not Path(queue.path, f"{mixed.id}.batch").exists()
    third, dropped = again.send_anew(ahead, ahead, system.steady_ms() + 1000)
    assert (third, dropped) == ("", 2), "all of it is from before a later deletion"
    assert [batch.id for batch in again.sealed()] == [second]
    again.release()


def test_a_spool_of_the_version_before_is_read(tmp_path: Path) -> None:
    ids = BatchIds()
    folder, batch = tmp_path / ids.mint(), ids.mint()
    entries = [struct.pack("<II", len(r), crc32(r, len(r))) + r for r in RECORDS]
    folder.mkdir()
    (folder / "target.json").write_text(json.dumps({"version": 1, **TARGET._asdict()}))
    (folder / f"{batch}.batch").write_bytes(b"TRBATCH1" + b"".join(entries))
    written_ms = int((folder / f"{batch}.batch").stat().st_mtime * 1000)
    old = SpoolQueue.take_over(str(folder))
    assert old is not None
    assert old.read(batch) == (b"".join(RECORDS), 3, 0, False)
    new, dropped = old.send_anew(batch, ids.mint(), written_ms)
    assert (old.read(new).records, dropped) == (3, 0), "as if written when the file was"
    assert old.send_anew(new, ids.mint(), written_ms + 1) == ("", 3)
    old.release()


def test_what_was_refused_is_sent_again_where_that_is_asked_for(tmp_path: Path) -> None:
    queue, ids = _queue(tmp_path)
    for why in ("refused", "conflict", "damaged"):
        queue.append(written(RECORDS), ids)
        queue.seal()
        queue.set_aside(queue.sealed()[0].id, why)
    queue.release()
    assert not has_work(queue.path)
    assert len(set_aside_in(queue.path)) == 3
    again = SpoolQueue.take_over(queue.path, refused=True)
    assert again is not None
    assert again.records == 3
    assert len(set_aside_in(queue.path)) == 2
    again.release()


def test_an_empty_queue_leaves_nothing(tmp_path: Path) -> None:
    queue, _ = _queue(tmp_path)
    assert queues(str(tmp_path)) == [queue.path]
    queue.release()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_takes_no_half_record(tmp_path: Path) -> None:
    """The limit of a file's size stops a write in the middle, as a full disk does."""
    code = """
import resource, signal, sys
from tailrace_client.records import BatchIds
from tailrace_client.spool import SpoolEntry, SpoolQueue, Target
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ids = BatchIds()
queue = SpoolQueue.create(sys.argv[1], Target("http://n", "p", "r"), ids)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
kept = 0
try:
    while True:
        queue.append([SpoolEntry(1, b"x" * 99 + b"\\n")], ids)
        kept += 1
except OSError:
    pass
(batch,) = [queue.seal()] and queue.sealed()
print(kept, batch.records, queue.read(batch.id).records, queue.read(batch.id).damaged)
"""
    environment = {**os.environ, "PYTHONPATH": "client"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    kept, records, read, damaged = map(int, done.stdout.split())
    assert kept == records == read > 0
    assert damaged == 0


def _flips(data: bytes) -> list[bytes]:
    return [
        data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        for at in range(len(data))
        for bit in range(8)
    ]


def test_no_bit_sends_a_queue_to_another_run(tmp_path: Path) -> None:
    queue, _ = _queue(tmp_path)
    path = Path(queue.path) / "target.json"
    whole, read = path.read_bytes(), 0
    for changed in _flips(whole):
        path.write_bytes(changed)
        try:
            target = read_target(queue.path)
        except ValueError:
            continue
        read += 1  # a bit of the URL, or of the name of the checksum
        assert target[1:] == TARGET[1:]
    assert read > 0
    path.write_bytes(whole.replace(b"node:8790", b"elsewhere:1"))
    assert read_target(queue.path) == TARGET._replace(url="http://elsewhere:1")


def test_a_damaged_close_is_kept_and_the_run_closed_without_an_outcome(tmp_path: Path) -> None:
    queue, _ = _queue(tmp_path)
    queue.closing = Closing("failed")
    path = Path(queue.path) / "close.json"
    whole, kept = path.read_bytes(), path.with_name("close.json.damaged")
    damaged = 0
    for changed in [b"", whole[:5], b"[]", *_flips(whole)]:
        path.write_bytes(changed)
        if queue.closing == Closing("failed"):
            continue
        damaged += 1
        assert queue.closing == Closing(None)
        assert kept.read_bytes() == changed
        assert set_aside_in(queue.path) == [str(kept)]
        kept.unlink()
    assert damaged > len(whole)
    path.write_text('{"outcome": "success"}')  # of an earlier version
    assert queue.closing == Closing("success")


def test_a_folder_that_is_no_queue_is_refused(tmp_path: Path) -> None:
    queue, _ = _queue(tmp_path)
    target = Path(queue.path) / "target.json"
    target.write_text('{"version": 3}')
    with pytest.raises(ValueError, match="version 3: use a newer"):
        read_target(queue.path)
    target.unlink()
    with pytest.raises(ValueError, match="is not a queue"):
        read_target(queue.path)
