"""Batches that OpenMetadata's clients of the first generation send again without an id.

Such a client waits for the reply to a batch before it sends the next one. If the reply
is lost it sends the same lines again: at once, then after 1, 2 and 4 s. Its cookie jar
still holds what the reply before said, so the retry echoes an older ULID than that of
the batch. When the reply arrived, the next batch echoes that batch, whatever it holds.

The rule applies to a connector that opened the run with the empty call of its
generation, and to lines equal to those it sent last:

| the cookie echoes | the batch is |
| --- | --- |
| a ULID below the last batch's | its retry |
| the last batch, or above | a new one |
| nothing | its retry for `RETRY_MS`, then a new one |
"""

from __future__ import annotations

from service.incoming import IncomingBatch
from service.journal.connectors import LastBatch

RETRY_MS = 30_000


def is_retry(last: LastBatch, batch: IncomingBatch, checksum: int, now_ms: int) -> bool:
    """Whether `batch`, which has no id, is `last` once more; `checksum` is of its text."""
    sent = last.known.digest, last.size, last.known.records
    if sent != (checksum, len(batch.text), batch.records):
        return False
    if batch.above:
        return batch.above < last.ulid
    # A time ahead of the clock is none: a new batch taken for a retry would be lost.
    return 0 <= now_ms - last.at_ms <= RETRY_MS
