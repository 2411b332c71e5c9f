"""Cells of files that are no part of a store. Each has one reader, and nothing else has it.

a client's spool          the next program with it, which delivers it to a service
a forwarder's checkpoints its next start
an undo log, an undo note the next start of an appender of rolling files or objects
its catalog               the same
dead letters              a redelivery
what OpenMetadata wrote   a page
a copy for scans          a search
a kept file of S3         the same
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson
import pyarrow as pa

from service.query.request import QueryRequest
from tailrace.forwarder.checkpoints import Checkpoints
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import StoreSettings
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import record_batches
from tailrace.pipelines.appenders.rolling.file import UndoLog
from tailrace.pipelines.appenders.rolling.object import Objects, UndoObjects
from tailrace.pipelines.appenders.rolling.rolled import RolledCatalog, catalog_in
from tailrace.pipelines.world import admin_of
from tailrace_client import system
from tailrace_client.__main__ import main as send_spool
from tailrace_client.records import BatchIds
from tailrace_client.spool import Closing, SpoolEntry, SpoolQueue, Target
from tests.batches import make_batches
from tests.damage.matrix import COLUMNS, Cell, damaged_file
from tests.damage.objects import ObjectKind, flip_json, flip_middle, flip_text
from tests.damage.store import SERVICE, settings_for
from tests.forwarder.checkpoints.states import state
from tests.pipelines.appenders.receiver import Receiver
from tests.pipelines.lake import Lake
from tests.pipelines.test_dead_letters import pipeline, posting, redelivered
from tests.servers.minio import running_minio
from tests.service.query.world import NODE, NOW_MS, World, engine_of, search
from tests.service.test_main import service
from tests.tailrace.verification.world import BASE
from tests.waiting import until

ALONE: Final = "nothing else names it"
PLAIN: Final = "a plain text without a checksum"
CRASH: Final = "as a crash leaves it"
LINES: Final = tuple(f"line {number}" for number in range(9))
_ALL: Final = QueryRequest()


@dataclass(slots=True)
class Seen:
    """What a reader got, and what it told people."""

    data: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    stopped: str = ""


Damage: TypeAlias = Callable[[Path], None]
Reader: TypeAlias = Callable[[Path, Damage], Coroutine[Any, Any, Seen]]
"""Makes everything in a folder, has it damaged, and reads it."""


@dataclass(frozen=True, slots=True)
class OutsideKind:
    """A kind of file below the folder that `read` makes; `program` reads it."""

    kind: ObjectKind
    program: str
    read: Reader

    @property
    def name(self) -> str:
        """Its row."""
        return self.kind.name

    def cell(self, folder: Path, damage: str) -> Cell | None:
        """One cell; None if the damage is none of this kind's."""
        expected = self._seen(folder, lambda _: None)
        assert not expected.stopped, expected.stopped
        assert not expected.said, expected.said
        applicable = [True]

        def harm(root: Path) -> None:
            applicable[0] = damaged_file(self.kind, damage, root)

        found = self._seen(folder, harm)
        if not applicable[0]:
            return None
        excuse = self.kind.excused.get(damage, "")
        cell = Cell(self.kind.name, damage, program=self.program, excuse=excuse)
        cell.problems += found.said
        if found.stopped:
            cell.stops.append(found.stopped)
        else:
            cell.reads[self.program] = _outcome(found.data, expected.data)
        return cell

    def _seen(self, folder: Path, harm: Damage) -> Seen:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return asyncio.run(self.read(folder, harm))


def _outcome(found: list[str], expected: list[str]) -> str:
    if found == expected:
        return "all"
    return "other" if set(found) - set(expected) or len(found) > len(expected) else "less"


async def _spool(folder: Path, harm: Damage) -> Seen:
    """A program was killed with a batch in its spool; somebody has it delivered."""
    seen, spool = Seen(), folder / "spool"
    async with service(settings_for(folder / "data")) as (client, _):
        target = Target(str(client.base_url).rstrip("/"), "shop.orders", "r")
        ids = BatchIds()
        queue = SpoolQueue.create(str(spool), target, ids)
        records = [b'{"message":"%s"}\n' % line.encode() for line in LINES]
        queue.append([SpoolEntry(system.steady_ms(), record) for record in records], ids)
        queue.closing = Closing("success")
        queue.release()
        harm(folder)
        said = StringIO()
        with redirect_stderr(said):
            failed = await asyncio.to_thread(send_spool, ["send", str(spool), "--seconds", "2"])
        seen.said += [line for line in said.getvalue().splitlines() if "delivered to" not in line]
        if failed:
            seen.stopped = "the delivery"
        for pipeline in (await client.get(BASE)).json()["pipelines"]:
            for run in (await client.get(f"{BASE}/{pipeline}")).json()["runs"]:
                page = (await client.get(f"{BASE}/{pipeline}/{run}")).json()
                seen.data += [f"{pipeline}/{run} {line}" for line in page["logs"].splitlines()]
                status = await client.get(f"{SERVICE}/{pipeline}/pipelineStatus/{run}")
                said_end = status.content and status.json().get("pipelineState")
                seen.data.append(f"{pipeline}/{run} is {page['state']}, {said_end or 'no status'}")
    return seen


async def _checkpoints(folder: Path, harm: Damage) -> Seen:
    seen = Seen()
    log = Checkpoints(str(folder), say=seen.said.append)
    for number in range(4):
        log.put(state(number, 100 * number))
        log.sync()
    log.close()
    harm(folder)
    try:
        log = Checkpoints(str(folder), say=seen.said.append)
    except Exception as error:  # noqa: BLE001 -- whatever stops a start is what the cell says
        seen.stopped, seen.said = "the start", [str(error)]
        return seen
    seen.data = [f"{one.id} {one.cursor.offset}" for one in log.files.values()]
    log.close()
    return seen


async def _undo(folder: Path, harm: Damage) -> Seen:
    """A process was killed behind a checkpoint; the next one takes its files back to it."""
    seen, files = Seen(), [folder / "a.log", folder / "b.log"]
    log = UndoLog(Disk(), str(folder), "p")
    log.start(None)
    number = log.prepare()
    for file in files:
        file.write_text("before\n")
        log.touch([file.name])
        file.write_text("before\nbehind the checkpoint\n")
    log.stop()
    harm(folder)
    again = UndoLog(Disk(), str(folder), "p")
    try:
        again.start(number)
    except Exception as error:  # noqa: BLE001 -- as above
        seen.stopped, seen.said = "the appender", [str(error)]
        return seen
    again.stop()
    seen.data = [f"{file.name} {line}" for file in files for line in file.read_text().split()]
    return seen


async def _catalog(folder: Path, harm: Damage) -> Seen:
    """A writer of rolling files starts again, and looks which files are its own."""
    seen, own = Seen(), folder / ".tailrace" / "p"
    own.mkdir(parents=True)
    catalog = RolledCatalog(Disk(), catalog_in(str(own)))
    catalog.start()
    catalog.add(["a.log", "b.log", "c.log"])
    catalog.sync()
    catalog.stop()
    harm(folder)
    again = RolledCatalog(Disk(), catalog_in(str(own)))
    with _warnings(seen.said):
        again.start()
    seen.data = list(again)
    again.stop()
    return seen


@contextmanager
def _warnings(said: list[str]) -> Iterator[None]:
    """Collects warnings, also in a process that makes cells and logs nothing else."""

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    heard, log, disabled = Heard(logging.WARNING), logging.getLogger("tailrace"), logging.root
    before = disabled.manager.disable
    logging.disable(logging.NOTSET)
    log.addHandler(heard)
    try:
        yield
    finally:
        log.removeHandler(heard)
        logging.disable(before)


async def _letters(folder: Path, harm: Damage) -> Seen:
    """A target that refused records takes them now, and somebody has them sent again."""
    seen = Seen()
    with Receiver().running() as receiver:
        receiver.judge = lambda _: 400
        lake = Lake(folder)
        appender = posting(receiver, "webhook")
        made = pipeline(appender, error_threshold=0, dead_letter_dir=str(folder / "dead"))
        await lake.put(*LINES)
        async with lake.running(made) as process:
            await until(lambda: sum(o.counts.refused for o in process.workers) == len(LINES))
        harm(folder)
        taken: list[bytes] = []

        def judge(body: bytes) -> int:
            taken.append(body)
            return 200

        receiver.judge = judge
        async with lake.running(made), lake.world() as world:
            try:
                async with asyncio.timeout(120):
                    sent, refused = await redelivered(admin_of(world))
            except TimeoutError:
                seen.stopped = "the redelivery"
                return seen
        seen.said += [f"{refused} of {sent} are no dead letters"] if refused else []
        seen.data = [orjson.loads(line)["message"] for b in taken for line in b.splitlines()]
    return seen


async def _openmetadata(folder: Path, harm: Damage) -> Seen:
    """OpenMetadata's server wrote a run into the bucket; somebody reads it here."""
    seen, text = Seen(), "".join(f"{line}\n" for line in LINES)
    run = folder / "data/store/pipeline-logs/shop_orders/6f1c0e5e-0d1f-4b7c-8f3a-2a2f3a3b4c5d"
    run.mkdir(parents=True)
    (run / "logs.txt").write_text(text)
    harm(folder)
    async with service(settings_for(folder / "data")) as (client, _):
        page = await client.get(f"{BASE}/shop.orders/{run.name}")
        if page.status_code >= 400:
            seen.said.append(page.text)
            return seen
        seen.data = [page.json()["state"], *page.json()["logs"].splitlines()]
    return seen


async def _undo_objects(folder: Path, harm: Damage) -> Seen:
    """The same of objects."""
    return await asyncio.to_thread(_undone_objects, folder, harm)


def _undone_objects(folder: Path, harm: Damage) -> Seen:
    seen, key = Seen(), "logs/a.log"
    settings = StoreSettings(data=str(folder), store=str(folder / "store"))
    objects = Objects(settings, SystemClock())
    try:
        notes = UndoObjects(objects, "logs/.tailrace/p/")
        notes.start(0)
        notes.note({key: 0})
        objects.call(lambda store: store.put(key, b"before\n"))
        number = notes.prepare()
        notes.saved()
        notes.note({key: 7})
        objects.call(lambda store: store.put(key, b"before\nbehind the checkpoint\n"))
        harm(folder)
        UndoObjects(objects, "logs/.tailrace/p/").start(number)
        seen.data = objects.call(lambda store: store.get(key))[1].decode().splitlines()
    except Exception as error:  # noqa: BLE001 -- as above
        seen.stopped, seen.said = "the appender", [str(error)]
    finally:
        objects.close()
    return seen


async def _cached(folder: Path, harm: Damage) -> Seen:
    """The table is on S3, and a node keeps its files on its disk."""
    with running_minio() as server:
        bucket = server.bucket()
        async with bucket.open() as store:
            return await _searched(World(folder, bucket, store), harm)


async def _copies(folder: Path, harm: Damage) -> Seen:
    return await _searched(World(folder), harm)


async def _searched(world: World, harm: Damage) -> Seen:
    """What searches find of one file, which is kept or copied first."""
    dice, seen = random.Random(4), Seen()
    text = "".join(f"{dice.getrandbits(64):016x} word\n" for _ in range(200)).encode()
    batch = RunKey("shop.orders", "r"), ulids.lowest_at(NOW_MS), text
    world.know(batch)
    lines = record_batches(make_batches(NODE, [batch]), Carry())
    world.write_table(pa.Table.from_batches(lines), {})
    settings: dict[str, Any] = {} if world.bucket is None else {"scan_copies_bytes": 0}
    async with engine_of(world, **settings) as engine:
        await search(engine, _ALL)
        await until(lambda: 1 in (engine.copies.made, engine.files.fetched))
        harm(world.root)
        for _ in range(2):
            found, stats = await search(engine, _ALL)
            seen.data += [str(key) for key in found]
            seen.said += [] if stats["complete"] else ["not complete"]
    return seen


OUTSIDE: Final = (
    OutsideKind(
        ObjectKind(
            "batch of a client's spool",
            "spool/*/*.batch",
            flip_middle,
            excused={"removed": ALONE},
        ),
        "client",
        _spool,
    ),
    OutsideKind(
        ObjectKind("target of a client's spool", "spool/*/target.json", flip_json), "client", _spool
    ),
    OutsideKind(
        ObjectKind(
            "close of a client's spool",
            "spool/*/close.json",
            flip_json,
            excused={"removed": ALONE},
        ),
        "client",
        _spool,
    ),
    OutsideKind(
        ObjectKind("checkpoint log of a forwarder", "*.checkpoints", flip_middle),
        "forwarder",
        _checkpoints,
    ),
    OutsideKind(
        ObjectKind(
            "undo log of a rolling file",
            ".tailrace/p/*.undo",
            flip_middle,
            at=-1,
            excused=dict.fromkeys(("emptied", "cut"), CRASH),
        ),
        "appender",
        _undo,
    ),
    OutsideKind(
        ObjectKind(
            "undo note of a rolling object",
            "store/logs/.tailrace/p/*",
            flip_json,
            excused={"removed": ALONE},
        ),
        "appender",
        _undo_objects,
    ),
    OutsideKind(
        ObjectKind(
            "mark of a rolling object's saved checkpoint",
            "store/logs/.tailrace/p.saved.json",
            flip_json,
        ),
        "appender",
        _undo_objects,
    ),
    OutsideKind(
        ObjectKind(
            "catalog of rolling files",
            ".tailrace/p/catalog",
            flip_middle,
            excused={"removed": ALONE, **dict.fromkeys(("emptied", "cut"), CRASH)},
        ),
        "appender",
        _catalog,
    ),
    OutsideKind(
        ObjectKind(
            "dead letters of an appender",
            "dead/*.json",
            flip_text,
            excused={**dict.fromkeys(COLUMNS[:2], ALONE), COLUMNS[3]: PLAIN},
        ),
        "redelivery",
        _letters,
    ),
    OutsideKind(
        ObjectKind(
            "logs.txt that OpenMetadata wrote",
            "data/store/pipeline-logs/*/*/logs.txt",
            flip_middle,
            excused=dict.fromkeys(COLUMNS[2:4], PLAIN),
        ),
        "page",
        _openmetadata,
    ),
    OutsideKind(
        ObjectKind("kept file of a table on S3", "cache/*.parquet", flip_middle),
        "search",
        _cached,
    ),
    OutsideKind(
        ObjectKind("copy of a table file for scans", "scratch/**/*.parquet", flip_middle),
        "search",
        _copies,
    ),
    OutsideKind(
        ObjectKind("rows of such a copy", "scratch/**/*.rows", flip_middle), "search", _copies
    ),
)
