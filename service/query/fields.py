"""Which fields records have: names for the completion of a search.

A name is counted in each record of the sample of which a search for `name:*` would find it, but
for messages that only DuckDB takes for JSON (a comma too many, `NaN`). Objects within JSON are
fields like what is in them; elements of arrays are not named. Whoever writes a new name into each
record fills the list, and no more: names have a length, and there are only so many.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import orjson
import pyarrow as pa

from logstore.search.conditions import Attribute, Column, Field, Json, Logfmt
from service.query.sample import Looked, Sample
from service.query.search import Search
from service.query.spelling import NAMES, name_of

MAX_DEPTH: Final = 8
MAX_FIELDS: Final = 1_000
MAX_NAME_CHARS: Final = 200
_REMEMBERED: Final = 10_000

Kind: TypeAlias = Literal["text", "number"]
_Path: TypeAlias = tuple[str, ...]

_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][-+]?[0-9]{1,3})?")
# As `where` finds them, with keys that are names: blanks are those of RE2.
_PAIR: Final = re.compile(
    r'(?:^|[\t\n\f\r ])([A-Za-z_][A-Za-z0-9_.@/-]*)=(?:"((?:[^"\\]|\\.)*)"|([^\t\n\f\r "]*))'
)
_PAIR_BEGINS: Final = re.compile(r"(?:^|[\t\n\f\r ])(?=[A-Za-z_][A-Za-z0-9_.@/-]*=)")


@dataclass(frozen=True, slots=True)
class SeenField:
    """A field, spelled as in a search, and how many records of the sample have it.

    It is a number if the language compares each of its values as one.
    """

    name: str
    records: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class SeenFields:
    """The fields that most records have, first those; `complete` if there are no others."""

    looked: Looked
    fields: list[SeenField]
    complete: bool


def parse(parameters: Mapping[str, str], *, now_ms: int) -> Sample:
    """What the parameters ask for. Raises `InvalidInput` with the field."""
    return Sample.parse(parameters, now_ms=now_ms)


def fields(search: Search, sample: Sample) -> SeenFields:
    """The fields of the sample's records. Blocks; raises as `Search.batches`."""
    seen = _Seen()
    for batch in sample.batches(search):
        seen.look_at(batch)
    found = seen.found()
    complete = seen.complete and len(found) <= MAX_FIELDS
    return SeenFields(sample.looked_at(search), found[:MAX_FIELDS], complete)


class _Seen:
    """Counts fields; `complete` as long as none had to be left out."""

    def __init__(self) -> None:
        self._records: Counter[Field] = Counter()
        self._texts: set[Field] = set()
        self._too_long: set[Field] = set()
        self.complete = True

    def look_at(self, batch: pa.RecordBatch) -> None:
        """Counts the fields of each of the records."""
        for name in NAMES:
            column = batch.column(name)
            if held := batch.num_rows - column.null_count:
                self._count(Column(name), held, number=name == "pos")
        for pairs in batch.column("attributes").to_pylist():
            for key, value in dict(pairs or ()).items():
                if value is not None:
                    self._count(Attribute(key), 1, number=_is_number(value))
        for message in batch.column("message").to_pylist():
            for path, number in _in_json(message):
                self._count(Json(path), 1, number=number)
            for key, number in _in_logfmt(message).items():
                self._count(Logfmt(key), 1, number=number)

    def found(self) -> list[SeenField]:
        """All of them, those of most records first."""
        named = [
            SeenField(name_of(field), records, "text" if field in self._texts else "number")
            for field, records in self._records.items()
        ]
        return sorted(named, key=lambda field: (-field.records, field.name))

    def _count(self, field: Field, records: int, *, number: bool) -> None:
        if field not in self._records and not self._has_room_for(field):
            self.complete = False
            return
        self._records[field] += records
        if not number:
            self._texts.add(field)

    def _has_room_for(self, field: Field) -> bool:
        return len(self._records) < _REMEMBERED and len(name_of(field)) <= MAX_NAME_CHARS


def _in_json(message: str) -> Iterator[tuple[_Path, bool]]:
    """Each path of the message that has a value, and whether that is a number."""
    if not message.lstrip(" \t\r\n").startswith("{"):
        return
    try:
        orjson.loads(message)  # refuses what DuckDB refuses: halves of characters
        waiting: list[tuple[_Path, Any]] = [((), json.loads(message, object_pairs_hook=_first))]
    except (ValueError, RecursionError):
        return
    while waiting:
        path, value = waiting.pop()
        if path and value is not None:
            yield path, _is_number(value)
        if isinstance(value, dict) and len(path) < MAX_DEPTH:
            waiting += [((*path, key), inner) for key, inner in value.items()]


def _first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that is there twice a search looks at the first."""
    return dict(reversed(pairs))


def _in_logfmt(message: str) -> dict[str, bool]:
    """Each key of the message, and whether its first value is a number."""
    found: dict[str, bool] = {}
    if "=" not in message:
        return found
    for begin in _PAIR_BEGINS.finditer(message):
        pair = _PAIR.match(message, begin.start())
        if pair is not None and pair[1] not in found:
            found[pair[1]] = _is_number(pair[2] or pair[3] or "")
    return found


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)
