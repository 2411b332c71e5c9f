"""The cursor of a search: the last record that was returned, (ulid, fqn, run).

It is opaque to clients: `q1.` and base64url of a JSON list, so that it is never mistaken for
a cursor of positions or a line number.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple, Self

import orjson
import pyarrow as pa

from logstore import ulid
from logstore.errors import InvalidCursor, InvalidInput
from logstore.segments.record_keys import KEY_COLUMNS, keys_of

_PREFIX = "q1."


class RecordKey(NamedTuple):
    """The identity of a record; `ulid` is its text."""

    ulid: str
    fqn: str
    run: str

    @classmethod
    def of(cls, records: pa.Table | pa.RecordBatch) -> list[Self]:
        """The keys of records, which have `KEY_COLUMNS`."""
        return [cls(*key) for key in keys_of(records)]

    @classmethod
    def last_of(cls, batch: pa.RecordBatch) -> Self:
        """The key of the last record of a batch, which has one."""
        return cls(*(batch.column(name)[-1].as_py() for name in KEY_COLUMNS))

    def encode(self) -> str:
        """The cursor that points behind this record."""
        return _PREFIX + base64.urlsafe_b64encode(orjson.dumps(list(self))).decode().rstrip("=")


def decode(text: str, field: str = "after") -> RecordKey:
    """The record that the cursor points behind. Raises `InvalidCursor`."""
    body = text.removeprefix(_PREFIX)
    try:
        if body == text:
            raise ValueError("another kind of cursor")
        value = orjson.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return _record_key(value)
    except (ValueError, TypeError, binascii.Error, InvalidInput) as error:
        raise InvalidCursor(f"not a cursor of a query: {text[:80]!r}", field=field) from error


def _record_key(value: object) -> RecordKey:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("a cursor has three parts")
    text, fqn, run = value
    if not (isinstance(text, str) and isinstance(fqn, str) and isinstance(run, str)):
        raise TypeError("the parts are strings")
    return RecordKey(str(ulid.parse(text)), fqn, run)
