"""`tailrace doctor`: examines a set-up, and says for each finding what is wrong and what to do.

It looks at settings, process, disks, Java, a running service, the store, the clock, other nodes,
the table and the segment queue. It asks the parts that know: the check of the store that a node
makes at its start, `/health/ready` of a running service, the checks of `tailrace verify`. Compared
with `tailrace verify` it reads no lines, so it takes seconds on a store of any size.

It writes small probes into the data folder and the store, and removes them. It changes nothing
else, and takes no lock, so it may run while the service does.

A finding is `ok`, a `warning`, or a `fault`: with a fault the service does not start, does not do
its work, or does not see all lines. Exit status: 0 no fault, 1 a fault, 2 an invalid command line.
With `--json` each finding is a line of JSON, the last one the summary.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any, Final, Literal, TypeAlias

import httpx
import orjson

from service.access import rules as access_rules
from service.peers import rpc
from service.peers.register import NodeEntry, entry_at
from service.peers.rpc import Contacts, PeerRefused, PeerSilent
from service.queue.catalog import ListedSegments
from service.queue.queue import lag_of
from service.runtime.free_disk import INODES
from service.runtime.health import ClockSkew
from service.runtime.identity import UNFINISHED, read_identity
from service.runtime.process import for_connections, raise_limit
from service.settings import Settings, load_settings
from tailrace.cli.remote import add_token_file, authorization, trusted
from tailrace.cli.source_flags import add_source
from tailrace.cli.terminal import add_json, say, say_json
from tailrace.coordination.groups import State, read_groups
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock, Entropy, SystemClock, system_entropy
from tailrace.logstore.errors import (
    Damaged,
    InvalidInput,
    NotFound,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
)
from tailrace.logstore.filesystem import Disk, FileSystem, hint_of_trust
from tailrace.logstore.java import OLDEST, why_no_spark
from tailrace.logstore.objects.config import open_store
from tailrace.logstore.objects.s3.store import PROBES
from tailrace.logstore.objects.store import ObjectStore, RemoteStore, newest_date_of
from tailrace.logstore.segments.file_format import list_quarantined
from tailrace.logstore.settings import FILE
from tailrace.logstore.table.table import open_table
from tailrace.verification.findings import Fault, Findings
from tailrace.verification.table import check_table_log
from tailrace_client.command import add_ca_file

Severity: TypeAlias = Literal["ok", "warning", "fault"]
_AREA_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 5.0
_PROBES: Final = 5
_PROBE_BYTES: Final = 4096
_SLOW_SYNC_SECONDS: Final = 0.1
_LEAST_FILES: Final = 1024
_LAG_SECONDS: Final = 6 * 3600.0
_NAMED: Final = 5
_OF_DISK: Final = {
    errno.EROFS: "The file system is mounted read-only: mount it for writing. The kernel mounts a"
    " failing disk so; its log says why.",
    errno.ENOSPC: "Make room on this disk, or enlarge it.",
    errno.EDQUOT: "Make room within this user's quota, or raise it.",
    errno.EIO: "The disk fails: replace it, and see docs/operate/backup.md.",
}
_OF_RIGHTS: Final = "Let user {uid}, as whom this ran, write to {folder}, or name another folder."
_VERIFY: Final = "Run `tailrace verify`, which names it, and see docs/operate/verify.md."


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding: the part of the set-up, how bad it is, the finding, and the advice."""

    area: str
    severity: Severity
    finding: str
    advice: str = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Which set-up, and the form of the findings."""
    add_source(parser)
    add_json(parser)
    add_token_file(
        parser,
        "a token for the running service, whose problems only callers with a token see",
    )
    add_ca_file(parser)


def run(arguments: argparse.Namespace) -> int:
    """Examines, and prints each finding when it is there."""
    counts: Counter[Severity] = Counter()

    def report(found: Diagnosis) -> None:
        counts[found.severity] += 1
        if arguments.json:
            say_json(orjson.dumps(asdict(found)).decode())
            return
        say(f"{found.severity}: {found.area}: {found.finding}")
        if found.advice:
            say(f"  do: {found.advice}")

    settings = read_settings(arguments, report)
    if settings is not None:
        examination = Examination(settings, report)
        examination.headers = authorization(arguments.token_file)
        examination.trusted = trusted(arguments.ca_file or "")
        asyncio.run(examination.run())
    faults, warnings = counts["fault"], counts["warning"]
    if arguments.json:
        say_json(orjson.dumps({"summary": {"faults": faults, "warnings": warnings}}).decode())
    else:
        say(f"{_counted(faults, 'fault')}, {_counted(warnings, 'warning')}")
    return 1 if faults else 0


def read_settings(
    arguments: argparse.Namespace, report: Callable[[Diagnosis], None]
) -> Settings | None:
    """The settings as the service would read them; None, and a fault, if it would not start."""
    flags: dict[str, Any] = {} if arguments.data is None else {"data": arguments.data}
    try:
        settings, warnings = load_settings(flags, config=arguments.config)
    except InvalidInput as error:
        where = arguments.config or FILE
        advice = error.hint or f"Correct {where} or the environment; docs/reference/settings.md"
        report(Diagnosis("settings", "fault", str(error), advice))
        return None
    for warning in warnings:
        report(Diagnosis("settings", "warning", warning, "Correct the setting that it names."))
    place = f"data in {os.path.abspath(settings.data)}, store {settings.store_place}"
    report(Diagnosis("settings", "ok", f"node {settings.node_name}, {place}"))
    return settings


@dataclass(slots=True)
class Examination:
    """Examines one set-up; clock, randomness and file system are parameters."""

    settings: Settings
    report: Callable[[Diagnosis], None]
    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=system_entropy)
    fs: FileSystem = field(default_factory=lambda: Disk(private=True))
    headers: dict[str, str] = field(default_factory=dict)
    trusted: Any = True

    async def run(self) -> None:
        """Examines all areas, one after another; a fault in one does not end the others."""
        data = self._data
        local: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("access", self._access),
            ("process", self._process),
            ("disk", partial(self._disk, data, "data folder")),
            ("disk", partial(self._identity, data)),
            ("java", self._java),
            ("service", self._service),
        ]
        for area, look in local:
            await self._guarded(area, look)
        await self._guarded("store", self._store)

    @property
    def _data(self) -> str:
        return os.path.abspath(self.settings.data)

    async def _guarded(self, area: str, look: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_AREA_SECONDS):
                await look()
        except TimeoutError:
            self._fault(
                area,
                f"it gave no answer within {_AREA_SECONDS:g} s",
                "See whether disk, network and store answer at all; then run this again.",
            )
        except TailraceError as error:
            advice = error.hint or "See docs/operate/outages.md for this part."
            self._fault(area, str(error), advice)

    def _ok(self, area: str, finding: str) -> None:
        self.report(Diagnosis(area, "ok", finding))

    def _warning(self, area: str, finding: str, advice: str) -> None:
        self.report(Diagnosis(area, "warning", finding, advice))

    def _fault(self, area: str, finding: str, advice: str) -> None:
        self.report(Diagnosis(area, "fault", finding, advice))

    # --- this machine ----------------------------------------------------------------

    async def _access(self) -> None:
        path = self.settings.access.rules
        if path:
            access_rules.read(os.path.abspath(path))  # noqa: ASYNC240 - nothing runs meanwhile
            self._ok("access", f"the rules in {path} are sound")
        elif self.settings.server.insecure:
            self._warning(
                "access",
                "everybody who reaches the service may do everything",
                "Write rules of access, and name their file in access.rules"
                " (docs/operate/access.md).",
            )

    async def _process(self) -> None:
        files = raise_limit()  # as the service does
        connections, wanted = for_connections(files), self.settings.server.max_connections
        finding = f"it may open {files} files, so the service takes {connections} connections"
        advice = (
            "Raise the hard limit of open files: LimitNOFILE= of a systemd unit, --ulimit nofile="
            " of a container, `ulimit -Hn` of a shell."
        )
        if files < _LEAST_FILES:
            self._fault("process", finding, advice)
        elif connections < wanted:
            self._warning("process", f"{finding} of server.max_connections {wanted}", advice)
        else:
            self._ok("process", f"it may open {files} files")

    async def _disk(self, folder: str, what: str) -> None:
        """Whether the folder can be written, how long a sync takes, and what is free."""
        there = folder
        while not os.path.exists(there):  # noqa: ASYNC240 - nothing runs meanwhile
            there = os.path.dirname(there)
        try:
            free, inodes = self.fs.free_bytes(there), self.fs.free_inodes(there)
            seconds = await asyncio.to_thread(self._sync_seconds, there)
        except OSError as error:
            self._fault("disk", *self._unwritable(error, there, what))
            return
        least = self.settings.journal.min_free_bytes
        room = f"{free / (1 << 20):,.0f} MiB and {inodes:,} files are free"
        speed = f"a write of {_PROBE_BYTES >> 10} KiB is on disk after {seconds * 1000:.1f} ms"
        if free < least:
            self._fault(
                "disk",
                f"the {what} {folder} is nearly full, so no batch is accepted: {room}",
                f"Make room: {least >> 20} MiB are needed (journal.min_free_bytes).",
            )
        elif inodes < INODES:
            self._fault(
                "disk",
                f"the file system of the {what} {folder} is nearly out of inodes: {room}",
                "Remove files, or make the file system anew with more inodes.",
            )
        elif seconds > _SLOW_SYNC_SECONDS:
            self._warning(
                "disk",
                f"the {what} {folder} is slow: {speed}, and each acknowledgement waits for that",
                "See which programs write to this disk, the credit of a cloud volume, and the"
                " disk's health; do not use a network file system.",
            )
        elif free < least + self.settings.journal.max_bytes:
            self._warning(
                "disk",
                f"the {what} {folder} has less room than the journal may take: {room}",
                "Enlarge the disk, or lower journal.max_bytes.",
            )
        else:
            self._ok("disk", f"{what} {folder}: {speed}; {room}")

    def _sync_seconds(self, folder: str) -> float:
        """The median of some synced writes, of a file that is removed. Raises `OSError`."""
        path = os.path.join(folder, f".doctor-{self._fresh()}")
        file = self.fs.open(path, "create")
        times = []
        try:
            for _ in range(_PROBES):
                began = self.clock.monotonic()
                file.write([bytes(_PROBE_BYTES)])
                file.sync()
                times.append(self.clock.monotonic() - began)
        finally:
            file.close()
            self.fs.unlink(path)
        return median(times)

    def _unwritable(self, error: OSError, folder: str, what: str) -> tuple[str, str]:
        """What is wrong with a folder that takes no file, and what to do."""
        reason, advice = error.strerror or str(error), _OF_DISK.get(error.errno or 0, "")
        with suppress(OSError):
            if error.errno == errno.ENOSPC and self.fs.free_inodes(folder) == 0:
                reason = "no inode is left"
                advice = "Remove files, or make the file system anew with more inodes."
        if not os.path.isdir(folder):
            reason, advice = f"{folder} is a file", "Name another folder."
        advice = advice or _OF_RIGHTS.format(uid=os.geteuid(), folder=folder)
        return f"the {what} cannot be written: {folder}: {reason}", advice

    async def _identity(self, data: str) -> None:
        """Whether the folder is a node's own, whole, and named as the settings say."""
        try:
            known = read_identity(self.fs, data)
            unfinished = self.fs.stat(f"{data}/{UNFINISHED}") is not None
        except OSError as error:
            self._fault("disk", *self._unwritable(error, data, "data folder"))
            return
        if unfinished:
            self._fault(
                "disk",
                f"a restore into {data} did not end: folder and store are not whole",
                "Run `tailrace restore` again, with --replace.",
            )
        elif known is None:
            self._ok("disk", f"{data} holds no node yet: the first start makes one")
        elif self.settings.node_id and known.name != self.settings.node_id:
            self._warning(
                "disk",
                f"{data} holds the node {known.name}, and the settings say {self.settings.node_id}",
                "Start the node with its own folder. If it is to be renamed, go on: the next start"
                " continues the folder under the new name.",
            )

    async def _java(self) -> None:
        compaction = self.settings.compaction
        if not compaction.enabled or self.settings.server.role == "query":
            self._ok("java", "this service starts no compactor, so it needs no Java")
            return
        why = await asyncio.to_thread(why_no_spark)
        if why is None:
            self._ok("java", "the compactor can run")
            return
        self._warning(
            "java",
            f"without compaction there is no table: {why}",
            f"Install Java {OLDEST} or newer and the extra `spark`, or run the compactor elsewhere"
            " (docs/operate/compaction.md) and set compaction.enabled: false here.",
        )

    async def _service(self) -> None:
        """What a running service reports itself."""
        server = self.settings.server
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        url = f"http{'s' if server.tls_certificate else ''}://{host}:{server.port}"
        try:
            async with httpx.AsyncClient(
                headers=self.headers, verify=self.trusted, timeout=_ANSWER_SECONDS
            ) as client:
                reply = await client.get(f"{url}/health/ready")
        except httpx.HTTPError as error:
            hint = hint_of_trust(error, "--ca-file")
            if isinstance(error, httpx.ConnectError) and not hint:
                self._ok("service", f"none answers at {url}")
                return
            self._fault(
                "service",
                f"{url} gives no answer of a service: {str(error) or type(error).__name__}",
                hint or "If it is the service, see its log. Else choose another server.port.",
            )
            return
        self._report_health(url, reply)

    def _report_health(self, url: str, reply: httpx.Response) -> None:
        try:
            said = reply.json()
            problems = said["problems"] if reply.is_success else [said["detail"]]
        except (ValueError, KeyError, TypeError):
            self._fault(
                "service",
                f"another program answers at {url}",
                "Stop it, or choose another server.port.",
            )
            return
        for problem in problems:
            self._fault(
                "service",
                f"{url}/health/ready reports: {problem}",
                "Do what the sentence says; docs/operate/outages.md has each case.",
            )
        if not problems:
            self._ok("service", f"{url} is ready")

    # --- the store -------------------------------------------------------------------

    async def _store(self) -> None:
        if self.settings.bucket is None:
            folder = self.settings.store_folder
            if not folder.startswith(self._data + os.sep):
                await self._disk(folder, "folder of the store")
            if not os.path.isdir(folder):  # noqa: ASYNC240 - nothing runs meanwhile
                self._ok("store", f"there is no {folder} yet: the first start makes it")
                return
        async with self._opened() as store:
            if store is None:
                return
            await self._guarded("peers", partial(self._peers, store))
            await self._guarded("table", partial(self._table, store))
            await self._guarded("queue", partial(self._queue, store))
            self._compare_clocks(store)  # by the dates of the answers so far

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[ObjectStore | None]:
        """The store, once it has kept a probe as it must; else None, and a fault."""
        async with open_store(self.settings, self.clock, self.entropy, self.fs) as store:
            try:
                if isinstance(store, RemoteStore):
                    await store.check()
                else:
                    await self._probe(store)
            except TailraceError as error:
                advice = error.hint or "Correct `store` and the section `s3` (docs/operate/s3.md)."
                self._fault("store", str(error), advice)
                yield None
                return
            place = self.settings.store_place
            self._ok("store", f"{place} takes, lists and removes objects, and honours conditions")
            yield store

    async def _probe(self, store: ObjectStore) -> None:
        """Tries a folder as a node tries a bucket. Raises `StoreUnavailable`."""
        key = f"{PROBES}/{self._fresh()}"
        first = await store.put(key, b"1", if_absent=True)
        try:
            for condition in ({"if_absent": True}, {"if_match": f"{first.etag}0"}):
                with suppress(PreconditionFailed):
                    await store.put(key, b"2", **condition)
                    raise StoreUnavailable(
                        f"{store.uri(key)} was overwritten: writers would overwrite one another",
                        hint="Use a local file system, or S3 for several machines.",
                    )
        finally:
            await store.delete([key])
            with suppress(OSError):
                self.fs.remove_folder(os.path.join(self.settings.store_folder, PROBES))

    def _compare_clocks(self, store: ObjectStore) -> None:
        skew = ClockSkew(newest_date_of(store))
        problem = skew.problem
        if problem is not None:
            self._fault(
                "clock",
                problem,
                "Start the machine's time service (chrony, systemd-timesyncd): a node whose clock"
                " is a minute off accepts no batches.",
            )
        elif newest_date_of(store) is not None:
            self._ok("clock", "it agrees with the object store's")

    async def _peers(self, store: ObjectStore) -> None:
        """Asks each process in the register of nodes."""
        from service.wiring import make_network  # late: it imports the whole HTTP API

        entries = []
        async for info in store.list(keys.PEERS):
            with suppress(NotFound):  # it has left since
                entries.append(entry_at(info.key, (await store.get(info.key))[1]))
        holders = [entry for entry in entries if entry.holds]
        network = make_network(self.settings, "")
        if network is None:
            await self._without_network(holders)
            return
        contacts = Contacts(network.transport, self.clock)
        hello = rpc.encode({"instance": self._fresh()})
        seconds = self.settings.nodes.timeout_seconds

        async def answers(entry: NodeEntry) -> bool:
            try:
                await contacts.ask(entry.address, "hello", hello, seconds)
            except (PeerRefused, PeerSilent):
                return False
            return True

        try:
            heard = await asyncio.gather(*[answers(entry) for entry in holders])
            for problem in contacts.problems([entry.address for entry in holders], [], 0.0):
                self._fault(
                    "peers",
                    problem,
                    "Start that node again on its folder, or repair the network or nodes.secret."
                    " If it will not return: `tailrace leases forget-node`.",
                )
        finally:
            await network.transport.close()
        live = [entry for entry, answer in zip(holders, heard, strict=True) if answer]
        self._report_namesakes(live)
        self._ok("peers", f"{len(live)} of {_counted(len(holders), 'node')} answered")

    async def _without_network(self, holders: Sequence[NodeEntry]) -> None:
        nodes = {entry.node for entry in holders}
        with suppress(OSError, Damaged):  # both are reported for the disk
            own = read_identity(self.fs, self._data)
            nodes -= {own.node} if own is not None else set()
        if nodes:
            self._fault(
                "peers",
                f"this node asks no other, and the store has more: {_some(sorted(nodes))}",
                "Give all nodes on the store the same nodes.secret (docs/operate/cluster.md). A"
                " node that is gone for good: `tailrace leases forget-node`.",
            )
        else:
            self._ok("peers", "this node is alone on its store")

    def _report_namesakes(self, live: Sequence[NodeEntry]) -> None:
        """Nodes that have one name, which logs and metrics cannot tell apart."""
        by_name = defaultdict(set)
        for entry in live:
            by_name[entry.node.rpartition("-")[0]].add(entry.node)
        for name, nodes in by_name.items():
            if len(nodes) > 1:
                self._fault(
                    "peers",
                    f"{len(nodes)} nodes have the name {name}: {_some(sorted(nodes))}",
                    "Give each node a name of its own: node_id, or --node-id.",
                )

    async def _table(self, store: ObjectStore) -> None:
        """Whether the table's log reads, and how long segments wait for it."""

        def say_fault(fault: Fault) -> None:
            self._fault("table", f"{fault.kind}: {fault.place}", f"{fault.detail}.")

        damaged = await check_table_log(store, Findings(say_fault))
        quarantined = await list_quarantined(store)
        if quarantined:
            self._warning("table", f"segments in quarantine: {len(quarantined)}", _VERIFY)
        if damaged:
            return
        snapshot = await asyncio.to_thread(lambda: open_table(self.settings).snapshot())
        catalog = ListedSegments(store, self.clock)
        await catalog.within(0.0)
        waiting = [
            listed.modified_ms
            for node in catalog.nodes
            for _, listed in catalog.after(node, snapshot.mark(node))
        ]
        seconds = (self.clock.now_ms() - min(waiting, default=self.clock.now_ms())) / 1000
        if seconds > _LAG_SECONDS:
            self._warning(
                "table",
                f"segments that wait to be compacted: {len(waiting)}, the oldest for"
                f" {seconds / 3600:.0f} hours",
                "Start a compactor (`tailrace compact --every 5m`), or see the log of the one that"
                " runs: docs/operate/compaction.md.",
            )
        else:
            self._ok("table", f"its log reads; segments that wait for it: {len(waiting)}")

    async def _queue(self, store: ObjectStore) -> None:
        """Consumer groups: unreadable, evicted, behind, or with failed segments."""
        found = await read_groups(store)
        for key, why in found.unreadable.items():
            self._fault("queue", f"{key} cannot be read: {why}", _VERIFY)
        catalog = ListedSegments(store, self.clock)
        await catalog.within(0.0)
        half = self.settings.queue.evict_after_hours * 3600 / 2
        for group in found.groups:
            lag = lag_of(group, catalog, self.clock.now_ms())
            if group.state is State.EVICTED:
                self._warning(
                    "queue",
                    f"the group {group.name} was evicted and gets no segments",
                    "Reset the group to go on, or forget it (docs/use/segments.md).",
                )
            elif lag.failed:
                self._warning(
                    "queue",
                    f"the group {group.name} has {_counted(lag.failed, 'failed segment')}",
                    "Repair the consumer, and retry them (docs/use/segments.md).",
                )
            elif lag.seconds > half:
                self._warning(
                    "queue",
                    f"the group {group.name} is {lag.seconds / 3600:.0f} hours behind; it is"
                    f" evicted at {self.settings.queue.evict_after_hours:g}",
                    "Start its consumer, or forget the group (docs/use/segments.md).",
                )
        self._ok("queue", f"{_counted(len(found.groups), 'consumer group')} can be read")

    def _fresh(self) -> str:
        return ulids.fresh_text(self.clock, self.entropy)


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f", and {rest} more" if rest > 0 else "")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
