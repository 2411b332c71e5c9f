"""The columns of a segment (contracts, section 2) and how Parquet stores them.

The format is this schema, the footer of `logstore.segments.footer` and the seal of
`logstore.segments.seal`. Whatever changes one of them raises `VERSION`. Version 1 had no column
`carried`.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

VERSION: Final = 2
MAX_TEXT: Final = 8 << 20  # bytes of text in a row group, unless one line is longer
MAX_ROWS: Final = 1 << 17  # rows in a row group: short lines must not make it large

LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
NAME: Final = pa.dictionary(pa.int32(), pa.string())
ATTRIBUTES: Final = pa.map_(pa.string(), pa.string())

SCHEMA: Final = pa.schema(
    [
        pa.field("ulid", pa.string(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("fqn", NAME, nullable=False),
        pa.field("run_id", NAME, nullable=False),
        pa.field("pos", pa.int64(), nullable=False),
        pa.field("level", NAME),
        pa.field("connector_id", NAME),
        pa.field("message", pa.string(), nullable=False),
        pa.field("attributes", ATTRIBUTES),
        pa.field("carried", pa.bool_()),
    ]
)
CARRIED: Final = "carried"
"""True in a line that continues the record before it, and null in any other: never false."""
SCHEMAS: Final = {1: SCHEMA.remove(SCHEMA.get_field_index(CARRIED)), VERSION: SCHEMA}
"""The columns by version."""

# A ULID shares its first characters with the one before it, a message does not.
ENCODINGS: Final = {
    "ulid": "DELTA_BYTE_ARRAY",
    "ts": "DELTA_BINARY_PACKED",
    "pos": "DELTA_BINARY_PACKED",
    "message": "DELTA_LENGTH_BYTE_ARRAY",
}
DICTIONARIES: Final = [
    *("fqn", "run_id", "level", "connector_id"),
    *("attributes.key_value.key", "attributes.key_value.value"),
]
# Not of messages: their smallest and largest would be copied whole into the footer.
STATISTICS: Final = ["ulid", "ts", "fqn", "run_id", "pos", "level", "connector_id", CARRIED]
