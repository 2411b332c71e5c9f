"""What a newer program wrote is refused in a sentence that says what to do, whatever it is."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

import google_crc32c
import pytest

from coordination.groups import decode_group
from coordination.object_store.source import decode_source
from coordination.pipelines import checkpoint
from coordination.pipelines.control import decode_control
from logstore.checked import encode_checked
from logstore.errors import UnsupportedVersion
from logstore.runs.deletions import decode_deletion
from logstore.runs.manifest import decode_manifest
from logstore.runs.report import decode_report
from service.journal import format as wal
from service.peers.forgotten import decode_forgotten
from service.peers.register import decode_entry
from service.peers.shedding import decode_slots

NEWER = encode_checked({"format": 99})


def journal(_: bytes) -> object:
    fields = wal.HEADER.pack(wal.MAGIC, wal.VERSION + 1, wal.HEADER.size + 4, b"", b"", 0, 0)
    return wal.decode_header(fields + struct.pack("<I", google_crc32c.value(fields)))


@pytest.mark.parametrize(
    "decode",
    [
        *(decode_manifest, decode_deletion, decode_report, decode_entry, decode_forgotten),
        *(decode_slots, partial(decode_group, "key"), partial(decode_control, "key")),
        *(partial(decode_source, "key"), lambda body: checkpoint.decode(body.decode()), journal),
    ],
)
def test_a_newer_format_is_refused_with_what_to_do(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(UnsupportedVersion) as refused:
        decode(NEWER)
    assert "at least as new" in (refused.value.hint or "")
