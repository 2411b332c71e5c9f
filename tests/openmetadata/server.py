"""A whole service in leaping time, spoken to as OpenMetadata's clients and page speak to it.

    def test_it() -> None:
        async def scenario(server: Server) -> None:
            await server.append("a\\n")
            await server.passes(minutes=3)
            assert await server.text() == "a\\n"

        play(scenario)

The limits are those of the settings' defaults. Nothing of the service is replaced: requests
go through the api, lines through journal, segments and chunks to a store on the same
simulated disk. `restart` stops the process and starts the next, `kill` lets it stop dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from urllib.parse import urlencode

import httpx
import orjson

from service.http.app import Application, HttpApi, build_app
from service.metrics.declared import MetricSources
from service.metrics.scrape import METRICS
from service.node import Node
from service.query.engine import QueryEngine
from service.settings import Settings, Tuning
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.manifest import INLINE_BYTES
from tests.service.simulated_node import START_MS, Life
from tests.settings import SETTINGS, settings_with
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

T = TypeVar("T")
ROOT = "/api/v1/services/ingestionPipelines"
FQN = "service.pipeline"
RUN = "11111111-2222-3333-4444-555555555555"
OTHER = "66666666-7777-8888-9999-000000000000"
KEY = RunKey(FQN, RUN)
LONG_LINE = "." * INLINE_BYTES + "\n"
"""A line that is too long for the manifest of its run: it comes into a chunk."""
NODE = settings_with(
    SETTINGS, journal={"file_bytes": 1 << 20, "max_bytes": 64 << 20, "min_free_bytes": 0}
)


class Outage(Schedule):
    """Calls with one of `words` in their name fail, as long as they are there."""

    def __init__(self) -> None:
        super().__init__({})
        self.words: set[str] = set()

    def next(self, call: str) -> Fault | None:
        return Fault.UNAVAILABLE if any(word in call for word in self.words) else None


class WatchedStore(FaultyStore):
    """Calls with one of the words of `delays` in their name take so many seconds first."""

    delays: dict[str, float]

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        for word, seconds in self.delays.items():
            if word in f"{name} {key}":
                await asyncio.sleep(seconds)
        return await super()._step(name, key, work)


@dataclass
class Viewer:
    """Somebody who watches a run over server-sent events."""

    task: asyncio.Task[None]
    body: bytearray = field(default_factory=bytearray)
    status: int = 0
    _gone: asyncio.Event = field(default_factory=asyncio.Event)

    def ended(self) -> bool:
        """Whether the stream is over."""
        return self.task.done()

    @property
    def events(self) -> list[dict[str, Any]]:
        """The data of all events so far; each must have its id as `after` and its name."""
        found = []
        for frame in bytes(self.body).decode().split("\n\n")[:-1]:
            lines = dict(line.split(": ", 1) for line in frame.split("\n"))
            if "data" in lines:
                data = orjson.loads(lines["data"])
                assert lines["event"] == data["eventType"]
                assert lines.get("id") == data.get("after")
                found.append(data)
        return found

    @property
    def text(self) -> str:
        """All lines so far."""
        return "".join([event.get("logs", "") for event in self.events])

    @property
    def last(self) -> dict[str, Any]:
        """The data of the last event."""
        return self.events[-1]

    def leave(self) -> None:
        """Closes the connection."""
        self._gone.set()


class Server:
    """The service. `store` counts and fails calls; `disk_store` is behind it."""

    def __init__(self, clock: VirtualClock, settings: Settings, fs: PowerCutFileSystem) -> None:
        self.clock = clock
        self.settings = settings
        self.fs = fs
        self.outage = Outage()
        self.delays: dict[str, float] = {}
        self.store: WatchedStore
        self.lives = 0
        self.node: Node
        self.app: Application
        self.client: httpx.AsyncClient

    @property
    def disk_store(self) -> ObjectStore:
        """The store behind the service's back."""
        return self.store.inner

    def _life(self, store: ObjectStore | None = None) -> Life:
        return Life(
            self.fs,
            self.clock,
            seed=self.lives,
            settings=self.settings,
            tuning=Tuning(),
            store=store,
        )

    async def start(self) -> None:
        """The next process over the same disk."""
        self.lives += 1
        life = self._life()
        self.store = WatchedStore(life.node.store, self.outage)
        self.store.delays = self.delays
        life = self._life(self.store)
        self.node = life.node
        await self.node.start()
        api = HttpApi(clock=self.clock, entropy=self.node.environment.entropy)
        self.app = build_app(self.node, api)
        transport = httpx.ASGITransport(cast("Any", self.app))
        self.client = httpx.AsyncClient(base_url="http://localhost", transport=transport)

    async def stop(self) -> None:
        """A stop as by SIGTERM."""
        self.app.append.shut()
        await self.node.stop()

    async def restart(self) -> None:
        """A stop and a start."""
        await self.stop()
        await self.start()

    async def kill(self) -> None:
        """The process dies at once, and the next starts. What was synced is there."""
        self.app.append.shut()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        self.fs = self.fs.reboot(seed=self.lives)
        await self.start()

    async def passes(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0) -> None:
        """Time goes by."""
        await self.clock.sleep(seconds + 60 * minutes + 3600 * hours)

    # --- what clients do -----------------------------------------------------------

    async def append(self, logs: str, run: str = RUN, fqn: str = FQN) -> dict[str, Any]:
        """A batch, as the client sends it."""
        body = {"logs": logs, "connectorId": "host-1", "timestamp": self.clock.now_ms()}
        reply = await self.client.post(f"{ROOT}/logs/{fqn}/{run}", json=body)
        assert reply.status_code == 200, reply.text
        return cast("dict[str, Any]", reply.json())

    async def close(self, run: str = RUN, fqn: str = FQN) -> str:
        """A close; gives the state."""
        reply = await self.client.post(f"{ROOT}/logs/{fqn}/{run}/close", json={"connectorId": "x"})
        assert reply.status_code == 200, reply.text
        assert reply.json()["message"] == "Log stream closed successfully"
        return str(reply.json()["state"])

    async def page(self, run: str = RUN, fqn: str = FQN, **query: Any) -> dict[str, Any]:
        """A page, as the page reads it."""
        reply = await self.client.get(f"{ROOT}/logs/{fqn}/{run}", params=query)
        assert reply.status_code == 200, reply.text
        return cast("dict[str, Any]", reply.json())

    async def text(self, run: str = RUN, fqn: str = FQN) -> str:
        """The download."""
        reply = await self.client.get(f"{ROOT}/logs/{fqn}/{run}/download")
        assert reply.status_code == 200, reply.text
        return reply.text

    async def runs(self, fqn: str = FQN, **query: Any) -> list[str]:
        """The list of a pipeline's runs."""
        reply = await self.client.get(f"{ROOT}/logs/{fqn}", params=query)
        return list(reply.json()["runs"]) if reply.status_code == 200 else []

    async def delete(self, run: str | None = RUN, fqn: str = FQN) -> None:
        """Deletes a run, or all runs."""
        path = f"{ROOT}/logs/{fqn}" + ("" if run is None else f"/{run}")
        assert (await self.client.delete(path)).status_code == 200

    async def says(self, state: str, run: str = RUN, fqn: str = FQN) -> None:
        """The client's pipelineStatus."""
        value = {"runId": run, "pipelineState": state, "timestamp": self.clock.now_ms()}
        reply = await self.client.put(f"{ROOT}/{fqn}/pipelineStatus", json=value)
        assert reply.status_code == 200, reply.text

    async def watch(
        self, after: str | None = None, run: str = RUN, fqn: str = FQN, *, tail: int | None = None
    ) -> Viewer:
        """Opens a live view, and lets what is there arrive."""
        given = {"after": after, "tail": tail}
        query = urlencode({k: v for k, v in given.items() if v is not None}).encode()
        path = f"{ROOT}/logs/{fqn}/stream/{run}"
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "headers": [],
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "server": ("server", 80),
        }
        viewer = Viewer(cast("asyncio.Task[None]", None))

        async def receive() -> dict[str, Any]:
            await viewer._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            viewer.status = message.get("status", viewer.status)
            viewer.body += message.get("body", b"")

        async def serve() -> None:
            await self.app(scope, cast("Any", receive), cast("Any", send))

        viewer.task = asyncio.create_task(serve())
        await self.passes(seconds=0.1)
        return viewer

    def metric(self, name: str) -> float:
        """A metric as it is now, all labels together."""
        (declared,) = [metric for metric in METRICS if metric.name == name]
        found = declared.read(MetricSources(self.node, cast("QueryEngine", None)))
        values = list(found.values()) if isinstance(found, Mapping) else [found]
        return sum([value for value in values if isinstance(value, int | float)])

    def calls(self, *words: str) -> list[str]:
        """The calls of the store so far that have all of `words` in their name."""
        return [call for call in self.store.calls if all(word in call for word in words)]

    # --- what is in the store ------------------------------------------------------

    async def stored(self, name: str, run: str = RUN, fqn: str = FQN) -> str | None:
        """`partial.txt` or `logs.txt` as it stands in the store; None if there is none."""
        prefix = keys.run_texts(keys.PREFIX, RunKey(fqn, run))
        found = [info.key async for info in self.disk_store.list(prefix + name)]
        return (await self.disk_store.get(found[0]))[1].decode() if found else None

    async def metadata(self, name: str, run: str = RUN) -> Mapping[str, str]:
        """The user metadata of such an object."""
        prefix = keys.run_texts(keys.PREFIX, RunKey(FQN, run))
        return (await self.disk_store.head(prefix + name)).metadata


def play(
    scenario: Callable[[Server], Coroutine[Any, Any, None]],
    *,
    settings: Settings = NODE,
    fs: PowerCutFileSystem | None = None,
    hours: int = 0,
) -> None:
    """Tells it to a server that is started, and stopped behind it; so many hours later."""
    disk = fs or PowerCutFileSystem()

    async def go(clock: VirtualClock) -> None:
        server = Server(clock, settings, disk)
        await server.start()
        await scenario(server)
        assert not server.node.failed.done()
        await server.stop()

    simulate(go, start_ms=START_MS + hours * 3_600_000)


def numbered(first: int, end: int, word: str = "line") -> str:
    """Lines with their numbers."""
    return "".join([f"{word} {i}\n" for i in range(first, end)])
