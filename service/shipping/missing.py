"""Confirmed segments that the store lacks, because it is older than the node's journal.

The journal records which segments were confirmed. Each of them is in the store until table and run
logs have its lines and `low` in the watermark is above it. A confirmed segment that is neither
stored nor consumed is therefore lost: somebody restored the store to an older state, copied it
before the data folder, or replaced it by another store.

The node then continues under a new incarnation, because readers stop at a missing number. It stores
the lines that its journal still holds again. The registration of the new incarnation names the
missing rest until an operator puts the segments back or gives the lines up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeAlias

import orjson

from service.journal.state import Cut
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cas import Document, swap
from tailrace.logstore.errors import Damaged, InvalidInput, NotFound, UnsupportedVersion
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.report import Watermark
from tailrace.logstore.segments.reader import read_footer
from tailrace.logstore.state import decode_checked, encode_checked

MOST_RUNS: Final = 100

Marks: TypeAlias = Callable[[], Awaitable[tuple[Watermark, int]]]
"""Reads a node's watermark and the table's mark of it."""


@dataclass(frozen=True, slots=True)
class MissingSegments:
    """Segments `first` to `last` of `node`, with its lines from position `pos` up to `end`.

    `pos` is None if the store does not show where its own segments end. The journal holds the
    lines from `kept` on. `runs` are at most `MOST_RUNS` runs that may have had the other lines.
    """

    node: str
    first: int
    last: int
    pos: int | None
    end: int
    kept: int
    runs: tuple[RunKey, ...] = ()

    @property
    def lost(self) -> int | None:
        """The number of lost lines; None if only the beginning of the journal is known."""
        if self.pos is None:
            return None if self.kept else 0
        return self.kept - self.pos

    def holding(self, kept: int) -> MissingSegments:
        """The same segments for a journal that has the lines from position `kept` on."""
        return replace(self, kept=min(max(kept, self.pos or 0), self.end))

    def sentence(self) -> str:
        """A sentence for operators about the missing segments."""
        which = f"segment {self.last} is" if self.first == self.last else f"{self._range()} are"
        lost = "an unknown number of lines" if self.lost is None else f"{self.lost} lines"
        first = "their first position" if self.pos is None else f"position {self.pos}"
        runs = ", ".join(f"{key.fqn}/{key.run}" for key in self.runs)
        return (
            f"{which} missing in the store, which {self.node} had stored there: the store was"
            f" restored to an older state or replaced. {lost.capitalize()} from {first} to"
            f" {max(self.kept - 1, 0)} are gone"
            f"{f'; runs that were open then: {runs}' if runs else ''}"
            f". The journal has {self.end - self.kept} more, which are stored again"
        )

    def advice(self, node: str) -> str:
        """The advice for operators; the registration of `node` names the segments."""
        return (
            "Put the newer state of the store back, or send the lines again"
            " (docs/operate/backup.md). To give them up:"
            f" tailrace verify --give-up {keys.node_registration(node)}"
        )

    def _range(self) -> str:
        return f"segments {self.first} to {self.last}"

    def encoded(self) -> dict[str, Any]:
        """The JSON of the missing segments."""
        return {**asdict(self), "runs": [[key.fqn, key.run] for key in self.runs]}


def decode_missing(rows: Sequence[Mapping[str, Any]]) -> tuple[MissingSegments, ...]:
    """Decodes missing segments from JSON. Raises `ValueError`, `TypeError`, `KeyError`."""
    return tuple([_decode(row) for row in rows])


def _decode(row: Mapping[str, Any]) -> MissingSegments:
    return MissingSegments(
        str(row["node"]),
        int(row["first"]),
        int(row["last"]),
        None if row["pos"] is None else int(row["pos"]),
        int(row["end"]),
        int(row["kept"]),
        tuple([RunKey(str(fqn), str(run)) for fqn, run in row["runs"]]),
    )


async def find_missing(
    store: ObjectStore, node: str, confirmed: Cut, marks: Marks
) -> MissingSegments | None:
    """Finds the segments up to `confirmed` that the store lacks; one request if it lacks none.

    Raises `StoreUnavailable`, and the errors of `marks`.
    """
    if await _is_there(store, node, confirmed.seq, marks):
        return None
    # Checked again: it may have been consumed and removed since the marks were read.
    if await _is_there(store, node, confirmed.seq, marks):
        return None
    mark, table = await marks()
    first = consumed_seq(mark, table) + 1
    present = [seq async for seq in _stored(store, node, first - 1) if seq <= confirmed.seq]
    for seq in present:
        first += seq == first
    pos = await _end_of(store, node, first - 1, mark, is_stored=first - 1 in present)
    return MissingSegments(node, first, confirmed.seq, pos, confirmed.end, confirmed.end)


def consumed_seq(mark: Watermark, table: int) -> int:
    """Returns the last segment that may have been removed: run logs and table have its lines.

    If the watermark is gone, the table's mark alone says what was consumed.
    """
    return max(mark.low - 1, min(mark.seq, table) if mark.version else table)


async def _is_there(store: ObjectStore, node: str, seq: int, marks: Marks) -> bool:
    if seq == 0 or consumed_seq(*await marks()) >= seq:
        return True
    try:
        await store.head(keys.segment(node, seq))
    except NotFound:
        return False
    return True


async def _stored(store: ObjectStore, node: str, after: int) -> AsyncIterator[int]:
    async for info in store.list(keys.segments_of(node), after=keys.segment(node, after)):
        parsed = keys.parse_segment(info.key)
        if parsed is not None:
            yield parsed[1]


async def _end_of(
    store: ObjectStore, node: str, seq: int, mark: Watermark, *, is_stored: bool
) -> int | None:
    """Returns one past the last position of a segment, as far as the store shows it."""
    if is_stored:
        try:
            ranges = (await read_footer(store, keys.segment(node, seq))).ranges
        except (NotFound, Damaged, UnsupportedVersion):
            return None
        return ranges[-1][1] if ranges else None
    if seq == 0:
        return 0
    return mark.pos if mark.seq == seq else None


async def give_up_missing(store: ObjectStore, key: str) -> None:
    """Removes the missing segments from the registration at `key`.

    Raises `InvalidInput` if it names none, `Damaged`, `StoreUnavailable`, `OutcomeUnknown`.
    """

    async def change(found: dict[str, Any] | None) -> dict[str, Any] | None:
        if found is None or not found.get("missing"):
            raise InvalidInput(
                f"{key} names no missing segments", hint="`tailrace verify` lists them."
            )
        return {name: value for name, value in found.items() if name != "missing"}

    await swap(Document(store, key, _decode_registration, encode_checked), change)


def _decode_registration(body: bytes) -> dict[str, Any]:
    try:
        value = decode_checked(body)
    except orjson.JSONDecodeError as error:
        raise Damaged(f"not the registration of a node: {error}") from error
    return dict(value)
