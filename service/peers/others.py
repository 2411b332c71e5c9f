"""What run logs ask and tell the other nodes, as questions.

| question | asks | answer |
| --- | --- | --- |
| `runs` | `{"fqn"}`, null for all | `{"runs"}`: `[fqn, run, highest ULID]` with lines in no chunk |
| `highest` | `{"fqn", "run"}`, `run` null for all runs of the pipeline | `{"highest"}`: a ULID |
| `deleted` | `{"fqn", "run", "t", "age_ms"}` | nothing, once the deletion is in its journal |
| `close` | `{"fqn", "run", "asker"}` | `{"state", "asking"}`: `closed`, `closing`, or `none` without lines of it; whether the node closes the run itself and asks others |
| `ended` | `{"fqn", "run"}` | nothing |

A node that was not heard of for a while, because it stood still or had no way to the store, reads
the deletions and the register again before it shows a line.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import InvalidInput
from logstore.objects.store import ObjectStore
from service.peers import messages
from service.peers.forgotten import LetGo
from service.peers.hot import ask_for_lines
from service.peers.peers import Peers
from service.peers.registrations import Registrations
from service.runs.deletions import Deletions
from service.runs.elsewhere import NOWHERE, Elsewhere, RunsElsewhere, Told

_TOLD_SECONDS = 5.0


class Others:
    """The other nodes, as the run logs of the node `own` see them."""

    def __init__(
        self,
        own: str,
        peers: Peers,
        deletions: Deletions,
        current: Callable[[Deletions], Awaitable[None]],
        store: ObjectStore,
        clock: Clock,
        *,
        close_seconds: float,
    ) -> None:
        """`current` returns when this node knows all deletions of which others told the store."""
        self._own = own
        self._peers = peers
        self._deletions = deletions
        self._current = current
        self._clock = clock
        self._let_go = LetGo(store, clock)
        self._registrations = Registrations(store)
        self._close_seconds = close_seconds + _TOLD_SECONDS

    def __bool__(self) -> bool:
        return True  # some may have come that this node has not seen yet

    async def lines(self, key: RunKey, *, held: bool = False) -> Elsewhere:
        """Lines of the run beyond the chunks. Raises `Unavailable`, unless they are `held`.

        Each answer brings the deletion of the run that its node knows.
        """
        if held:
            if not self._peers:
                return replace(NOWHERE, alone=False)
            note = self._deletions.note
            return await ask_for_lines(key, self._own, self._peers, note, held=True)
        await self._current(self._deletions)
        found = NOWHERE
        if self._peers:
            found = await ask_for_lines(key, self._own, self._peers, self._deletions.note)
        return replace(found, left=self._registrations.forks, alone=False)

    async def runs(self, fqn: str | None, *, held: bool = False) -> RunsElsewhere:
        """Runs with lines beyond the chunks, of a pipeline or of all.

        Raises `Unavailable`, unless they are `held`.
        """
        if not held:
            await self._current(self._deletions)
        if not self._peers:
            return RunsElsewhere()
        gathered = await self._peers.ask(messages.encode({"fqn": fqn}), "runs")
        found: dict[RunKey, int] = {}
        for answer in gathered.answers.values():
            for name, run, ulid in answer.head.get("runs", ()):
                key = RunKey(str(name), str(run))
                found[key] = max(found.get(key, 0), ulids.decode(ulid))
        return RunsElsewhere(list(found.items()), tuple(sorted(gathered.silent)))

    async def highest(self, fqn: str, run: str | None) -> tuple[int, tuple[str, ...]]:
        """The highest ULID that they know; who did not say. Raises `Unavailable`.

        A node that was just let go does not say either, and may hold ids of the near future.
        """
        body = messages.encode({"fqn": fqn, "run": run})
        gathered = await self._peers.everyone(body, "highest")
        highest, silent = 0, set(gathered.silent)
        for entry in self._peers.entries():
            answer = gathered.answers.get(entry.instance)
            try:
                if answer is not None:
                    highest = max(highest, int(ulids.parse(answer.head["highest"])))
            except (InvalidInput, KeyError):
                silent.add(entry.node)
        silent.update(await self._let_go.lately())
        return highest, tuple(sorted(silent))

    async def deleted(self, fqn: str, run: str | None, t: int) -> Told:
        """Tells them of a deletion. Raises `Unavailable`."""
        age_ms = self._deletions.age_of(fqn, run, t, self._clock.now_ms())
        body = messages.encode({"fqn": fqn, "run": run, "t": ulids.encode(t), "age_ms": age_ms})
        gathered = await self._peers.everyone(body, "deleted", _TOLD_SECONDS, readers=True)
        return Told(tuple(sorted(gathered.silent)))

    async def close(self, key: RunKey) -> Told:
        """Asks them to close the run. Raises `Unavailable`."""
        body = messages.encode({"fqn": key.fqn, "run": key.run, "asker": self._own})
        gathered = await self._peers.everyone(body, "close", self._close_seconds)
        states = {answer.head.get("state") for answer in gathered.answers.values()}
        working = bool(states - {"closed", "none"})
        idle = [
            entry.node
            for entry in self._peers.entries()
            if (answer := gathered.answers.get(entry.instance)) and not answer.head.get("asking")
        ]
        let_go = await self._let_go.nodes()
        return Told(tuple(sorted(gathered.silent)), working, let_go, tuple(idle))

    async def ended(self, key: RunKey) -> None:
        """Tells those that answer that the run is closed."""
        await self._peers.ask(_run(key), "ended", readers=True)


def _run(key: RunKey) -> bytes:
    return messages.encode({"fqn": key.fqn, "run": key.run})
