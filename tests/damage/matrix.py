"""Damages one object of a copy of the store, and asks everybody: a cell of the matrix.

`verify` looks at the copy first. Then a service starts on it and is asked as clients do, and its
answers are compared with those of an intact copy. At last a compactor runs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import orjson

from service.workers import LINES_LEFT
from tests.compactor.lake import Lake
from tests.compactor.plain_engine import PlainEngine
from tests.damage.objects import NotApplicable, ObjectKind
from tests.damage.store import SERVICE, copy, settings_for
from tests.service.test_main import service
from tests.tailrace.verification.world import BASE, look

COLUMNS: Final = ("removed", "emptied", "cut", "one bit flipped", "newer format")
RUNS: Final = ("p/closed", "p/open", "p/gone", "q/fresh", "q/late", "q/held", "r/whole")
_SAME, _ERROR, _NOTHING, _PARTIAL = "all", "error", "nothing", "partial"
_LESS, _OTHER = "less", "other"
_SIGNS: Final = ('"complete":false', '"missing":["', '"unreadable":["')
_WORDS: Final = {
    _ERROR: "an error",
    _NOTHING: "not found",
    _PARTIAL: "a part, and the reply says so",
    _LESS: "less data",
    _OTHER: "other data",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reader got: its status, the data, and whether the reply says that data is missing."""

    status: int
    data: Any
    partial: bool = False


@dataclass(slots=True)
class Cell:
    """What became of one damaged object."""

    kind: str
    damage: str
    verified: list[str] = field(default_factory=list)
    noted: bool = False
    reads: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    program: str = ""
    """The only one that reads the object, if that is no part of a store."""
    excuse: str = ""

    @property
    def is_wrong_and_silent(self) -> bool:
        """Whether a reader got other data, and neither reply, readiness nor `verify` said so."""
        reported = self.verified or self.noted or self.problems or self.excuse
        return bool({_LESS, _OTHER} & {*self.reads.values()}) and not reported

    def text(self) -> str:
        """The cell as the page has it."""
        parts = [self._reads()]
        if self.program:
            parts += ["the program says so"] * bool(self.problems)
        else:
            parts += self._reported()
        if self.stops:
            parts.append(f"stops: {', '.join(self.stops)}")
        if self.excuse:
            parts.append(self.excuse)
        if self.is_wrong_and_silent:
            parts.append("**wrong and silent**")
        return "; ".join(parts)

    def _reported(self) -> list[str]:
        kinds = [kind if " " in kind else f"`{kind}`" for kind in sorted(set(self.verified))]
        names = ", ".join(kinds)
        found = [names or f"`verify`: {'a note' if self.noted else 'no fault'}"]
        return found + ["readiness names it"] * bool(self.problems)

    def _reads(self) -> str:
        if not self.reads:
            return "no reader"
        if all(found == _SAME for found in self.reads.values()):
            return "all data"
        found = []
        for outcome, what in _WORDS.items():
            names = _doors(name for name, one in self.reads.items() if one == outcome)
            if names:
                found.append(f"{what} ({', '.join(names)})")
        return ", ".join(found)


def damaged_file(kind: ObjectKind, damage: str, root: Path) -> bool:
    """Damages the kind's object below a folder; False if the damage is none of this kind's."""
    path = kind.path(root)
    try:
        body = kind.damages()[damage](path.read_bytes())
    except NotApplicable:
        return False
    was = path.stat()
    path.unlink()  # it may be a link to the template's
    if body is not None:
        path.write_bytes(body)
    if damage == COLUMNS[3]:  # nobody writes where a disk rots
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    return True


def _doors(names: Iterable[str]) -> list[str]:
    """Each kind of request once, without its runs."""
    return sorted({name.split(" ")[0] for name in names})


async def _settled(client: httpx.AsyncClient) -> None:
    """Until the node has started, or has not for as long as a test waits."""
    with suppress(TimeoutError):
        async with asyncio.timeout(20):
            while not _has_started(await client.get("/health/ready")):
                await asyncio.sleep(0.05)


def _has_started(ready: httpx.Response) -> bool:
    problems = ready.json().get("problems", ())
    return not any("starting" in problem or "waiting for" in problem for problem in problems)


async def _get(client: httpx.AsyncClient, path: str, **options: Any) -> httpx.Response:
    """The reply, once the node has gone on as a fork, if it found that it must."""
    while True:
        reply = await client.get(path, **options)
        if reply.status_code != 503 or "goes on under another name" not in reply.text:
            return reply


async def ask(client: httpx.AsyncClient) -> dict[str, Answer]:
    """The answers at every door; each is the same for the same data."""
    found: dict[str, Answer] = {}
    for run in RUNS:
        page = await _get(client, f"{BASE}/{run}", params={"limit": 10_000})
        found[f"page {run}"] = _answer(page, lambda r: r.json().get("logs"))
        download = await _get(client, f"{BASE}/{run}/download")
        found[f"download {run}"] = _answer(download, lambda r: r.text)
    for name, text in (("query", ""), ("search", "line 57")):
        params = {"limit": "10000"} | ({"q": text} if text else {})
        found[name] = _answer(await _get(client, "/query", params=params), _hits)
    for fqn in ("p", "q", "r"):
        found[f"list {fqn}"] = _answer(await _get(client, f"{BASE}/{fqn}"), _runs)
    status = await _get(client, f"{SERVICE}/p/pipelineStatus/closed")
    found["status"] = _answer(status, lambda r: r.json().get("pipelineState"))
    for name in ("progress", "metrics"):
        report = await _get(client, f"{SERVICE}/{name}/p/closed")
        found[name] = _answer(report, lambda r: r.json())
    groups = await _get(client, "/segments/groups/siem")
    found["group"] = _answer(groups, lambda r: [r.json()[name] for name in ("start", "leased")])
    leases = await _get(client, "/leases")
    found["leases"] = _answer(leases, _leases)
    return found


def _answer(reply: httpx.Response, data: Any) -> Answer:
    if reply.status_code >= 400 or not reply.content:
        return Answer(reply.status_code, None)
    said = reply.status_code == 206 or "tailrace-silent" in reply.headers
    said = said or any(sign in reply.text for sign in _SIGNS)
    return Answer(reply.status_code, data(reply), partial=said)


def _hits(reply: httpx.Response) -> list[tuple[str, str]]:
    rows = [orjson.loads(line) for line in reply.text.splitlines()]
    return sorted((row["run_id"], row["message"]) for row in rows if "message" in row)


def _leases(reply: httpx.Response) -> Any:
    # Those of nodes have another key for each incarnation.
    rows = reply.json()["leases"]
    return sorted((row["source"], row["key"]) for row in rows if row["source"] != "text")


def _runs(reply: httpx.Response) -> Any:
    return sorted(run if isinstance(run, str) else str(run) for run in reply.json()["runs"])


def compare(found: Answer, expected: Answer) -> str:
    """An outcome."""
    if found.status in (204, 404) and found.status != expected.status:
        return _NOTHING
    if found.status >= 500 or (found.status >= 400 and expected.status < 400):
        return _ERROR
    if (found.status, found.data) == (expected.status, expected.data):
        return _SAME
    return _PARTIAL if found.partial else _OTHER


@dataclass(slots=True)
class Matrix:
    """Cells of one template; `folder` is where copies of it are damaged, one after another."""

    template: Path
    folder: Path
    baseline: dict[str, Answer] = field(default_factory=dict)
    notes: int = 0

    def begin(self) -> Cell:
        """Asks an intact copy first; its cell must say nothing."""
        cell = Cell("nothing", "intact")
        data = self._copied()
        self._verify(data, cell)
        self.baseline = asyncio.run(self._served(data, cell))
        self._compact(data, cell)
        return cell

    def cell(self, kind: ObjectKind, damage: str) -> Cell | None:
        """One cell; None if the damage is none of this kind's."""
        data = self._copied()
        if not damaged_file(kind, damage, data):
            return None
        cell = Cell(kind.name, damage, excuse=kind.excused.get(damage, ""))
        self._verify(data, cell)
        try:
            answers = asyncio.run(self._served(data, cell))
        except Exception:  # noqa: BLE001 -- whatever stops a start is what the cell says
            cell.stops.append("the start")
        else:
            cell.reads = {name: compare(answers[name], self.baseline[name]) for name in answers}
        self._compact(data, cell)
        return cell

    def _copied(self) -> Path:
        data = self.folder / "data"
        copy(self.template, data)
        return data

    def _verify(self, data: Path, cell: Cell) -> None:
        try:
            found = look(settings_for(data), self.folder / "spill")
        except Exception as error:  # noqa: BLE001 -- as above
            cell.verified.append(f"`verify` ends with {type(error).__name__}")
        else:
            cell.verified += [fault.kind for fault in found.faults]
            cell.noted = len(found.findings.notes) > self.notes
            if cell.damage == "intact":
                self.notes = len(found.findings.notes)

    async def _served(self, data: Path, cell: Cell) -> dict[str, Answer]:
        async with service(settings_for(data, stop_seconds=0.001), statuses=(0, LINES_LEFT)) as (
            client,
            _,
        ):
            await _settled(client)
            answers = await ask(client)
            ready = (await client.get("/health/ready")).json()
            cell.problems += ready.get("problems", ())
            close = await client.post(f"{BASE}/p/open/close")
            if close.status_code >= 400:
                cell.stops.append("the close")
            return answers

    def _compact(self, data: Path, cell: Cell) -> None:
        try:
            report = Lake(data, session=PlainEngine()).compact()
        except Exception:  # noqa: BLE001 -- as above
            cell.stops.append("the compactor")
        else:
            if report.alarms:
                cell.stops.append("the compactor, with an alarm")


def table(names: Sequence[str], cells: dict[tuple[str, str], Cell | None]) -> str:
    """The matrix in Markdown."""
    rows = ["| object | " + " | ".join(COLUMNS) + " |", "| --- " * (len(COLUMNS) + 1) + "|"]
    for name in names:
        found = [cells.get((name, column)) for column in COLUMNS]
        texts = ["–" if cell is None else cell.text() for cell in found]
        rows.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(rows) + "\n"
