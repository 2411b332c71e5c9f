"""`serve --workers N`: N nodes under one data folder and one port, each a process.

One Python process uses one core. The parent binds the port, and every worker accepts from the same
socket: if a worker dies, a waiting connection goes to another one. Each worker is a node of its own
with a journal, and also listens at its own address, where the others ask it. The parent serves
nothing. It starts a worker again when it dies, after a pause that doubles, and stops all of them
when it gets a signal; they stop when it dies.

The first worker is the node of the data folder itself, so that a service may change between one
process and several. Worker k > 0 has the folder `workers/{k}` in it. If the number becomes smaller,
the surplus workers are started once more, bring their lines into the store, and end.

The settings are those of the whole service: limits of memory, disk or connections are divided.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from service.http.server import address, bound_socket, listen
from service.metrics.workers import WorkerPlace
from service.runtime.process import MARGIN_SECONDS, RestartPolicy, module_command, stop_session
from service.settings import Settings
from tailrace.logstore.clock import Clock

log = logging.getLogger(__name__)

DIVIDED: Final = {
    "ingest": ("in_flight_bytes",),
    "journal": ("max_bytes",),
    "openmetadata": ("report_cache_bytes",),
    "query": (
        *("file_cache_bytes", "index_bytes", "scan_copies_bytes"),
        *("max_concurrent", "max_streams", "max_waiting"),
    ),
    "server": ("reply_bytes",),
}
"""Settings that bound what all workers take together. Each has its part.

Connections and readers are not divided: nobody deals them out evenly.
"""
FOLDER: Final = "workers"
_DRAINED: Final = "drained"
_PATIENCE_SECONDS = MARGIN_SECONDS + 2.0  # a worker ends itself before
_LOOPBACK = "127.0.0.1"

LINES_LEFT: Final = 3
"""The exit status of a stop that could not bring all lines into the store."""


@dataclass(frozen=True, slots=True)
class WorkerAssignment:
    """The data for a worker at its start: its settings, its place, and numbers of descriptors.

    `shared` is the service's socket, None for a worker that only brings its lines into the store
    and ends; `own` is the worker's. `inboxes` are the sockets by number to which connections are
    passed on; the worker receives them at its own. `serving` is a file with a byte for each worker,
    1 as long as it serves. The worker writes a byte to `ready` once it serves.
    """

    settings: Settings
    place: WorkerPlace
    shared: int | None
    own: int
    inboxes: tuple[int, ...]
    serving: int
    ready: int


def settings_of(settings: Settings, number: int, count: int, url: str) -> Settings:
    """The settings of one of `count` workers, which the others ask at `url`."""
    changes: dict[str, object] = {}
    for section, names in DIVIDED.items():
        before = getattr(settings, section)
        parts = {name: -(-getattr(before, name) // count) for name in names}
        changes[section] = before.model_copy(update=parts)
    changes["nodes"] = settings.nodes.model_copy(update={"url": url})
    if number:
        changes |= {
            "data": folder_of(settings, number),
            "store": settings.store or os.path.join(os.path.abspath(settings.data), "store"),
            "node_id": f"{settings.node_name}.{number}",
            "compaction": settings.compaction.model_copy(update={"enabled": False}),
        }
    # The loader's class knows the sources of settings and cannot go to another process.
    values = {name: getattr(settings, name) for name in Settings.model_fields}
    return Settings.model_construct(**{**values, **changes})


def folder_of(settings: Settings, number: int) -> str:
    """The data folder of a worker."""
    data = os.path.abspath(settings.data)
    return os.path.join(data, FOLDER, str(number)) if number else data


def left_behind(settings: Settings, count: int) -> list[int]:
    """The numbers of surplus workers, beyond `count`, that may have lines to store."""
    folder = Path(os.path.abspath(settings.data), FOLDER)
    if not folder.is_dir():
        return []
    found = [int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()]
    return sorted(n for n in found if n >= count and not (folder / str(n) / _DRAINED).exists())


class WorkerProcess:
    """A worker, one process at a time. `ready` is set as long as it serves."""

    def __init__(
        self,
        number: int,
        assign: Callable[[int], WorkerAssignment],
        said: Callable[[bool], None],
        *,
        drains: bool,
    ) -> None:
        self.number = number
        self._said = said
        self.drains = drains
        self.ready = asyncio.Event()
        self.served = False
        self._stopped = False
        self._assign = assign
        self._process: asyncio.subprocess.Process | None = None

    async def live(self) -> int:
        """Runs one process from start to end. Returns its exit status, negative for a signal."""
        reading, writing = os.pipe()
        assignment = self._assign(writing)
        passed = [assignment.own, writing, assignment.serving, *assignment.inboxes]
        passed += [] if assignment.shared is None else [assignment.shared]
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *module_command("service.worker"),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=passed,
                start_new_session=True,  # the parent passes a terminal's Ctrl-C on
            )
        finally:
            os.close(writing)
        if self._stopped:  # while it was being started
            process.terminate()
        assert process.stdin is not None
        body = pickle.dumps(assignment)
        process.stdin.write(len(body).to_bytes(8, "big") + body)  # stays open until the parent dies
        asyncio.get_running_loop().add_reader(reading, self._on_message, reading)
        status = await process.wait()
        self.ready.clear()
        self._said(False)
        self._process = None
        return status

    def _on_message(self, reading: int) -> None:
        """Reads its one byte, or the end of its pipe if it died before."""
        said = os.read(reading, 1)
        asyncio.get_running_loop().remove_reader(reading)
        os.close(reading)
        if said:
            self.served = True
            self._said(True)
            self.ready.set()

    async def stop(self, patience_seconds: float) -> None:
        """Asks it to stop, and kills it after `patience_seconds`."""
        self._stopped = True
        if self._process and not await stop_session(self._process, patience_seconds):
            log.error(
                "worker %d did not stop in %g s and was killed", self.number, patience_seconds
            )


class WorkerProcesses:
    """The parent of `settings.server.workers` workers, as long as `run` runs."""

    def __init__(self, settings: Settings, clock: Clock, restart: RestartPolicy) -> None:
        self._settings = _for_all(settings)
        self._count = settings.server.workers
        self._clock = clock
        self._restart = restart
        self._stopping = asyncio.Event()
        self._inboxes: list[tuple[socket.socket, socket.socket]] = []
        self._serving: IO[bytes]
        self.workers: list[WorkerProcess] = []

    async def run(self, stop: asyncio.Event, *, on_listening: Callable[[str], None]) -> int:
        """Keeps the workers until `stop`, or until one cannot start. Returns the exit status.

        Raises `Unavailable` if the port is taken.
        """
        with ExitStack() as stack:
            shared = bound_socket(self._settings.server.host, self._settings.server.port)
            stack.callback(shared.close)
            numbers = [*range(self._count), *left_behind(self._settings, self._count)]
            owns = [listen(self._own_host(), 0) for _ in numbers]
            for own in owns:
                stack.callback(own.close)
            self._serving = stack.enter_context(TemporaryFile())
            self._serving.truncate(self._count)
            for _ in range(self._count):
                pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._inboxes.append(pair)
                for end in pair:
                    stack.callback(end.close)
            urls = tuple([self._url(own) for own in owns[: self._count]])
            for number, own in zip(numbers, owns, strict=True):
                self.workers.append(self._worker(WorkerPlace(number, urls), shared, own))
            lives = [asyncio.create_task(self._keep(worker)) for worker in self.workers]
            scheme = "https" if self._settings.server.tls_certificate else "http"
            serving = asyncio.create_task(self._announce(address(shared, scheme), on_listening))
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait(
                [stopped, *lives[: self._count]], return_when=asyncio.FIRST_COMPLETED
            )
            self._stopping.set()
            patience = self._settings.server.stop_seconds + _PATIENCE_SECONDS
            await asyncio.gather(*[worker.stop(patience) for worker in self.workers])
            statuses = await asyncio.gather(*lives)
            serving.cancel()
            stopped.cancel()
        return _worst(statuses)

    def _worker(
        self, place: WorkerPlace, shared: socket.socket, own: socket.socket
    ) -> WorkerProcess:
        number, drains = place.number, place.number >= self._count
        settings = settings_of(self._settings, number, self._count, self._url(own))

        def assign(ready: int) -> WorkerAssignment:
            accepts = None if drains else shared.fileno()
            ends = [pair[n != number] for n, pair in enumerate(self._inboxes)]
            inboxes = tuple([end.fileno() for end in ends])
            return WorkerAssignment(
                settings, place, accepts, own.fileno(), inboxes, self._serving.fileno(), ready
            )

        def said(serves: bool) -> None:
            if not drains:
                os.pwrite(self._serving.fileno(), bytes([serves]), number)

        return WorkerProcess(number, assign, said, drains=drains)

    def _own_host(self) -> str:
        """The host of the workers' own addresses; without TLS only this machine can reach it."""
        server = self._settings.server
        return _LOOPBACK if server.tls_certificate else server.host

    def _url(self, own: socket.socket) -> str:
        """The URL of the worker for other nodes, with the host from the settings."""
        url = urlsplit(self._settings.nodes.url)
        if not url.hostname:
            return address(own)
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        return f"http://{host}:{own.getsockname()[1]}"

    async def _announce(self, url: str, on_listening: Callable[[str], None]) -> None:
        for worker in self.workers[: self._count]:
            await worker.ready.wait()
        on_listening(url)

    async def _keep(self, worker: WorkerProcess) -> int:
        """Starts a worker again and again. Returns its last exit status.

        Ends with the stop, or if the first process never served: another would not either. A worker
        that drains ends when it is done, and not before.
        """
        folder = folder_of(self._settings, worker.number)
        _mark(folder, drained=False)
        pauses = self._restart.backoff()
        while True:
            began = self._clock.monotonic()
            status = await worker.live()
            done = worker.drains and status == 0
            if done:
                _mark(folder, drained=True)
            hopeless = not worker.served and not worker.drains
            if done or hopeless or self._stopping.is_set():
                return status
            if self._clock.monotonic() - began >= self._restart.healthy_seconds:
                pauses.reset()
            pause, why = pauses.next(), _end(status)
            log.error("worker %d ended: %s; starting it again in %g s", worker.number, why, pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                    return status


def _for_all(settings: Settings) -> Settings:
    """The settings that workers must share: a secret, and parts of the machine's memory."""
    secret = settings.nodes.secret.get_secret_value() or secrets.token_urlsafe(32)
    nodes = settings.nodes.model_copy(update={"secret": SecretStr(secret)})
    return settings.model_copy(update={"nodes": nodes, "query": settings.query.sized()})


def _end(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"


def _mark(folder: str, *, drained: bool) -> None:
    """Records in a worker's folder whether all its lines are in the store."""
    mark = Path(folder, _DRAINED)
    if drained:
        mark.touch()
    else:
        mark.unlink(missing_ok=True)


def _worst(statuses: Sequence[int]) -> int:
    """The exit status of all workers: a failure counts more than remaining lines."""
    failed = [status for status in statuses if status not in (0, LINES_LEFT)]
    return 1 if failed else max(statuses, default=0)
