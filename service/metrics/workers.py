"""The metrics of all workers of a service in one reply, whichever worker is asked.

Each sample gets the label `worker`, the worker's number. A worker without an answer is left out,
and `tailrace_worker_up` shows it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from service.peers import rpc
from service.peers.register import Peers
from service.peers.rpc import PeerRefused, PeerSilent

_ABOUT = re.compile(r"# (?:HELP|TYPE) (\S+) ")
_BEHIND_NAME = re.compile(r"[{ ]")
UP: Final = "tailrace_worker_up"
"""The gauge of whether a worker answered."""
_QUESTION = rpc.encode({})
_SECONDS = 2.0
Scrape: TypeAlias = Callable[[], Awaitable[bytes]]


class WorkerPlace(NamedTuple):
    """The number of a process among the workers of a service, and the URL of each by number."""

    number: int
    urls: tuple[str, ...]


def of_all(scrape: Scrape, place: WorkerPlace, peers: Peers) -> Scrape:
    """The metrics of all workers; `scrape` gives this one's, the others are asked."""

    async def every() -> bytes:
        entries = {entry.url: entry for entry in peers.entries(readers=True)}

        async def of(number: int, url: str) -> bytes | None:
            if number == place.number:
                return await scrape()
            if url not in entries:
                return None
            try:
                answer = await peers.one(entries[url], _QUESTION, "metrics", _SECONDS)
            except (PeerSilent, PeerRefused):
                return None
            return answer.parts[0]

        texts = await asyncio.gather(*[of(n, url) for n, url in enumerate(place.urls)])
        return await asyncio.to_thread(merged, dict(enumerate(texts)))

    return every


def merged(texts: Mapping[int, bytes | None]) -> bytes:
    """Texts of Prometheus, by worker, as one: families stay together."""
    about: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for number, text in sorted(texts.items()):
        if text is None:
            continue
        family = ""
        for line in text.decode().splitlines():
            said = _ABOUT.match(line)
            if said is not None:
                family = said[1]
                kept = about.setdefault(family, [])
                if line not in kept:
                    kept.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, number))
    lines = []
    for family, said_of_it in about.items():
        lines += [*said_of_it, *samples.get(family, [])]
    lines += [
        f"# HELP {UP} 1 for a worker of the service that gave its metrics.",
        f"# TYPE {UP} gauge",
    ]
    lines += [
        f'{UP}{{worker="{number}"}} {float(text is not None)}'
        for number, text in sorted(texts.items())
    ]
    return ("\n".join(lines) + "\n").encode()


def _labelled(sample: str, number: int) -> str:
    """A sample with one more label. A name ends before the first brace or blank."""
    end = _BEHIND_NAME.search(sample)
    assert end is not None, sample
    name, rest = sample[: end.start()], sample[end.start() :]
    if rest.startswith("{"):
        return f'{name}{{worker="{number}",{rest[1:]}'
    return f'{name}{{worker="{number}"}}{rest}'
