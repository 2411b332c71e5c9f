"""`tailrace leases` in a store and at a service: the same rows, acts, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from tailrace.cli.leases import details, duration, table
from tailrace.cli.main import main
from tailrace.coordination.groups import (
    ConsumerGroup,
    FailedSegment,
    GroupCursor,
    GroupStart,
    State,
    group_document,
)
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.named_leases import NamedLeases, text_lease
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.partitions import Claim, NewPartition, completed
from tailrace.logstore import ulid
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tests.service.test_main import service, settings_for

SOURCE = "logs|file"
NODE = f"A-{ulid.encode(1)}"
Tell = Callable[..., tuple[int, str, str]]


async def fill(data: Path) -> None:
    """A named lease, a held, a free and a completed partition, and a group that failed at two."""
    clock, entropy = SystemClock(), system_entropy()
    store = LocalStore(str(data / "store"), Disk(), clock, entropy)
    time = StoreTime(clock, None)
    partitions = ObjectPartitions(store, clock, entropy, time)
    await partitions.start()
    await partitions.create(SOURCE, [NewPartition(key, progress="7") for key in ("a/b", "c", "d")])
    claim = Claim("host/P", 600_000, time.at_least_ms(), time.at_most_ms())
    for key in ("a/b", "d"):
        (held,) = (await partitions.acquire(SOURCE, claim, 1, only=key)).partitions
    await partitions.change(held, completed(held, time.at_most_ms()))
    await partitions.close()
    await NamedLeases(store, clock, entropy, time, node="node-A").acquire(text_lease("node-A"))
    now = clock.now_ms()
    at = {
        NODE: GroupCursor(
            2, failed={seq: FailedSegment(seq, now, 5, f"bad {seq}") for seq in (1, 2)}
        )
    }
    group = ConsumerGroup(
        "g", State.ACTIVE, GroupStart.NOW, now, now, cursors=at, version=ulid.encode(1)
    )
    await group_document(store, "g").write(group, None)


@pytest.fixture
def tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Runs the verb on a filled store: status, output, errors."""
    asyncio.run(fill(tmp_path / "data"))

    def run(*words: str) -> tuple[int, str, str]:
        status = main(["leases", "--data", str(tmp_path / "data"), *words])
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


def rows(out: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in out.splitlines()]


def test_a_table_for_people(tell: Tell) -> None:
    status, out, _ = tell()
    heads, *lines = out.splitlines()
    assert status == 0
    assert heads.split() == (
        ["SOURCE", "KEY", "STATUS", "OWNER", "EPOCH", "AGE", "UNTIL", "ATTEMPTS", "LAG", "ERROR"]
    )
    assert [line.split()[:3] for line in lines] == [
        ["text", "node-A", "ASSIGNED"],
        [SOURCE, "a/b", "ASSIGNED"],
        [SOURCE, "c", "UNASSIGNED"],
        [SOURCE, "d", "COMPLETED"],
    ]
    assert "host/P" in lines[1]
    assert tell("list", "--source", "nothing")[1].splitlines() == [
        " ".join(heads.split()).replace(" ", "  ")
    ]


def test_json_for_programs_and_filters(tell: Tell) -> None:
    assert [row["key"] for row in rows(tell("--json")[1])] == ["node-A", "a/b", "c", "d"]
    for words, keys in (
        (("--status", "assigned"), ["node-A", "a/b"]),
        (("--source", SOURCE), ["a/b", "c", "d"]),
        (("--owner", "host"), ["a/b"]),
        (("--key", "a/"), ["a/b"]),
        (("--older-than", "1h"), []),
    ):
        assert [row["key"] for row in rows(tell("list", "--json", *words)[1])] == keys
        assert [row["key"] for row in rows(tell("--json", *words)[1])] == keys


def test_show_has_everything(tell: Tell) -> None:
    status, out, _ = tell("show", SOURCE, "a/b")
    found = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert status == 0
    assert (found["owner"], found["status"], found["progress"]) == ("host/P", "ASSIGNED", "7")
    assert rows(tell("show", "--json", SOURCE, "a/b")[1])[0]["progress"] == "7"


def test_acts(tell: Tell) -> None:
    status, out, errors = tell("reset", SOURCE, "a/b")
    assert (status, out) == (1, "")
    assert "held by host/P" in errors
    assert "hint: " in errors
    for words, wanted in (
        (("reset", "--force", SOURCE, "a/b"), ("UNASSIGNED", None, "7")),
        (("reset", SOURCE, "a/b", "--forget"), ("UNASSIGNED", None, None)),
        (("fail", SOURCE, "c", "--reason", "poison"), ("FAILED", "poison", "7")),
        (("reopen", SOURCE, "c"), ("UNASSIGNED", "poison", "7")),
        (("reset", SOURCE, "c"), ("UNASSIGNED", None, "7")),
        (("reopen", SOURCE, "d"), ("UNASSIGNED", None, "7")),
    ):
        status, out, _ = tell("--json", *words)
        (row,) = rows(out)
        assert (row["status"], row["last_error"], row["progress"]) == wanted
        assert status == 0
    assert tell("reset", "text", "node-A", "--force")[0] == 0


def test_purge(tell: Tell) -> None:
    assert tell("purge", SOURCE, "--before", "1h")[1] == "0 removed\n"
    assert rows(tell("--json", "purge", SOURCE, "--before", "0s")[1]) == [{"purged": 1}]
    assert [row["key"] for row in rows(tell("--json", "--source", SOURCE)[1])] == ["a/b", "c"]


def test_groups(tell: Tell) -> None:
    (row,) = rows(tell("groups", "--json")[1])
    assert (row["group"], row["state"], row["lag"]["segments"]) == ("g", "active", 0)
    assert tell("groups")[1].splitlines()[1].split()[:2] == ["g", "active"]
    (again,) = rows(tell("--json", "reset-group", "g", "--to", "oldest")[1])
    assert again["start"] == "oldest"
    assert tell("forget-group", "g")[:2] == (0, "forgotten\n")
    assert rows(tell("groups", "--json")[1]) == []
    assert tell("forget-group", "g")[0] == 1


def test_what_failed_in_a_group_is_shown_and_tried_again(tell: Tell) -> None:
    status, out, _ = tell("show-group", "g")
    assert status == 0
    assert [line.split()[:2] for line in out.splitlines()[-2:]] == [
        [f"{NODE}-1", "failed"],
        [f"{NODE}-2", "failed"],
    ]
    assert "bad 2" in out
    (row,) = rows(tell("show-group", "--json", "g")[1])
    assert [one["reason"] for one in row["open"]] == ["bad 1", "bad 2"]
    assert tell("retry-group", "g", f"{NODE}-2")[:2] == (0, "1 free again\n")
    (row,) = rows(tell("show-group", "--json", "g")[1])
    assert [one["state"] for one in row["open"]] == ["failed", "waiting"]
    assert rows(tell("--json", "retry-group", "g")[1]) == [{"retried": [f"{NODE}-1"]}]
    status, _, errors = tell("retry-group", "g", f"{NODE}-1")
    assert (status, "has not failed" in errors, "hint: " in errors) == (1, True, True)
    assert tell("show-group", "nobody")[0] == 1


@pytest.mark.parametrize(
    "words",
    [
        ("show", SOURCE, "nothing"),
        ("reopen", "text", "node-A"),
        ("fail", SOURCE, "d", "--reason=x"),
    ],
)
def test_what_cannot_be_is_said(tell: Tell, words: tuple[str, ...]) -> None:
    status, out, errors = tell(*words)
    assert (status, out) == (1, "")
    assert errors.startswith("error: ")


def test_a_wrong_command_line(tell: Tell) -> None:
    for words in (("reset", SOURCE), ("fail", SOURCE, "c"), ("--older-than", "soon"), ("lsit",)):
        with pytest.raises(SystemExit) as ended:
            tell(*words)
        assert ended.value.code == 2


def test_a_store_that_is_not_there_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["leases", "--data", str(tmp_path / "typo")]) == 1
    assert f"there is no store at {tmp_path}/typo/store" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_durations_and_cells() -> None:
    shown = [duration(s) for s in (None, 0, 0.6, 59.6, 3_600, 3_661, 90_000, 864_000)]
    assert shown == ["-", "0s", "1s", "1m", "1h", "1h1m", "1d1h", "10d"]
    row = {
        **dict.fromkeys(("owner", "until", "lag_seconds", "last_error", "ended_at")),
        "source": "s",
        "key": "a\x1b[2Jb",
        "status": "FAILED",
        "held": False,
        "epoch": 1,
        "age_seconds": 1,
        "attempts": 3,
        "progress": None,
    }
    for text in (table([row], heading=False), details(row)):
        assert "\x1b" not in text
        assert "a\\u001b[2Jb" in text
    over = {**row, "owner": "host/P", "status": "ASSIGNED"}
    assert "(host/P)" in table([over], heading=False)


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[str]:
    await fill(tmp_path / "data")
    async with service(settings_for(tmp_path)) as (client, _):
        yield str(client.base_url)


async def test_a_service_tells_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with served(tmp_path) as url:

        async def asked(*words: str) -> tuple[int, list[dict[str, Any]], str]:
            work: Awaitable[int] = asyncio.to_thread(main, ["leases", *words, "--json"])
            status = await work
            told = capsys.readouterr()
            return status, rows(told.out), told.err

        ages = {"age_seconds", "lag_seconds"}
        here = (await asked("--data", str(tmp_path / "data"), "--source", SOURCE))[1]
        there = (await asked("--url", url, "--source", SOURCE))[1]
        assert [{k: v for k, v in row.items() if k not in ages} for row in here] == [
            {k: v for k, v in row.items() if k not in ages} for row in there
        ]
        assert len(there) == 3
        status, _, errors = await asked("--url", url, "reset", SOURCE, "a/b")
        assert (status, "held by host/P" in errors) == (1, True)
        (row,) = (await asked("--url", url, "reset", "--force", SOURCE, "a/b"))[1]
        assert row["status"] == "UNASSIGNED"
        (row,) = (await asked("--url", url, "fail", SOURCE, "c", "--reason", "x"))[1]
        assert row["last_error"] == "x"
        assert (await asked("--url", url, "purge", SOURCE, "--before", "0s"))[1] == [{"purged": 1}]
        assert [row["group"] for row in (await asked("--url", url, "groups"))[1]] == ["g"]
        (row,) = (await asked("--url", url, "show-group", "g"))[1]
        assert [one["state"] for one in row["open"]] == ["failed", "failed"]
        (row,) = (await asked("--url", url, "retry-group", "g", f"{NODE}-2"))[1]
        assert row == {"retried": [f"{NODE}-2"]}
        assert (await asked("--url", url, "retry-group", "g"))[1] == [{"retried": [f"{NODE}-1"]}]
        assert (await asked("--url", url, "reset-group", "g", "--to", "now"))[0] == 0
        assert (await asked("--url", url, "forget-group", "g"))[0] == 0
        assert (await asked("--url", url, "show", "text", "node-A"))[1][0]["kind"] == "lock"


def test_a_service_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["leases", "--url", "http://127.0.0.1:9"]) == 1
    assert "no answer from http://127.0.0.1:9" in capsys.readouterr().err
