"""What a newer program wrote is refused in a sentence that says what to do, whatever it is."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

import google_crc32c
import pytest

from service.journal import format as wal
from service.peers.register import decode_entry, decode_forgotten
from service.peers.shedding import decode_slots
from tailrace.coordination import pipelines
from tailrace.coordination.groups import decode_group
from tailrace.coordination.object_store.store import decode_source
from tailrace.coordination.pipelines import decode_control
from tailrace.logstore.errors import UnsupportedVersion
from tailrace.logstore.runs.deletions import decode_deletion
from tailrace.logstore.runs.manifest import decode_manifest
from tailrace.logstore.runs.report import decode_report
from tailrace.logstore.state import encode_checked

NEWER = encode_checked({"format": 99})


def journal(_: bytes) -> object:
    fields = wal.HEADER.pack(wal.MAGIC, wal.VERSION + 1, wal.HEADER.size + 4, b"", b"", 0, 0)
    return wal.decode_header(fields + struct.pack("<I", google_crc32c.value(fields)))


@pytest.mark.parametrize(
    "decode",
    [
        *(decode_manifest, decode_deletion, decode_report, decode_entry, decode_forgotten),
        *(decode_slots, partial(decode_group, "key"), partial(decode_control, "key")),
        *(partial(decode_source, "key"), lambda body: pipelines.decode(body.decode()), journal),
    ],
)
def test_a_newer_format_is_refused_with_what_to_do(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(UnsupportedVersion) as refused:
        decode(NEWER)
    assert "at least as new" in (refused.value.hint or "")
