"""A state object of each kind in the store, as the code writes it today: its key and its bytes."""

from __future__ import annotations

from collections.abc import Mapping

from service.peers.register import ForgottenNode, NodeEntry, encode_entry, encode_forgotten
from service.peers.shedding import Slots, encode_slots
from tailrace.coordination.groups import (
    ConsumerGroup,
    FailedSegment,
    GroupCursor,
    GroupStart,
    PendingSegment,
    State,
    encode_group,
)
from tailrace.coordination.named_leases import LeaseRecord, encode_lease, text_lease
from tailrace.coordination.object_store.shard import Shard, encode_shard, fresh_row
from tailrace.coordination.object_store.store import PartitionSource, encode_source
from tailrace.coordination.partitions import NewPartition
from tailrace.coordination.pipelines import Disabled, PipelineControl, encode_control
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.runs.deletions import Deletion, encode_deletion
from tailrace.logstore.runs.manifest import Chunk, Manifest, encode_manifest
from tailrace.logstore.runs.report import Watermark, encode_report, make_report
from tailrace.logstore.segments.file_format import encode_give_up, encode_marker
from tailrace.logstore.state import encode_checked

T0 = ulids.lowest_at(1_700_000_000_000)
VERSION = ulids.encode(T0 | 12345)
NODE = f"node-01-{VERSION}"
RUN = RunKey("shop.etl", "run-1")
_CHUNK = Chunk(VERSION, "chunk", 4096, 40, 40, T0, T0 + 39, 2, 300, 120, {NODE: (7, 47)})
_MANIFEST = Manifest(
    RUN, "closing", 9, 3, NODE, (_CHUNK,), {NODE: 47}, {NODE: 47}, last_ms=1, version=VERSION
)
_GROUP = ConsumerGroup(
    "siem",
    State.ACTIVE,
    GroupStart.OLDEST,
    1_700_000_000_000,
    1_700_000_000_000,
    cursors={
        NODE: GroupCursor(
            9, {8: PendingSegment(1, 2, 1, VERSION)}, {3: FailedSegment(1, 2, 3, "why")}
        )
    },
    version=VERSION,
)
_REGISTRATION = {
    "node": NODE,
    "name": "node-01",
    "incarnation": VERSION,
    "parents": [],
    "parent_seq": 0,
    "base": 12,
    "files": [[VERSION, 0, 12]],
    "shared": [],
    "registered_ms": 1_700_000_000_000,
}
_SHARD = Shard(
    "feed",
    3,
    64,
    7,
    VERSION,
    (VERSION,),
    {"part-1": fresh_row(NewPartition("part-1", progress='{"at":1}'), VERSION, 5, 1)},
)
_RUN_DELETION = Deletion(*RUN, T0, VERSION)
_PIPELINE_DELETION = Deletion(RUN.fqn, None, T0, VERSION)


def _report(value: Mapping[str, object]) -> bytes:
    return encode_report(make_report(RUN, T0 | 5, 17, 18, value))


SAMPLES: Mapping[str, tuple[str, bytes]] = {
    "run manifest": (keys.run_manifest(RUN), encode_manifest(_MANIFEST)),
    "watermark": (
        keys.watermark(NODE),
        encode_checked(Watermark(seq=9, pos=12000, low=4, version=VERSION)),
    ),
    "deletion of a run": (_RUN_DELETION.key, encode_deletion(_RUN_DELETION)),
    "deletion of a pipeline": (_PIPELINE_DELETION.key, encode_deletion(_PIPELINE_DELETION)),
    "node registration": (keys.node_registration(NODE), encode_checked(_REGISTRATION)),
    "register entry": (
        keys.peer(NODE, VERSION),
        encode_entry(NodeEntry(NODE, VERSION, "http://10.0.0.1:8790", renewed_ms=17)),
    ),
    "forgotten node": (
        keys.forgotten(NODE),
        encode_forgotten(ForgottenNode(NODE, 17, 15, 9, 12000, (RUN,), version=VERSION)),
    ),
    "shedding slots": (keys.SHEDDING, encode_slots(Slots(VERSION, {VERSION: 17}))),
    "named lease": (
        text_lease(NODE).key,
        encode_lease(LeaseRecord(text_lease(NODE), f"{NODE}/{VERSION}", 7, 17, 5, VERSION)),
    ),
    "source of partitions": (
        keys.partition_source("feed"),
        encode_source(PartitionSource("feed", 64, 1_700_000_000_000)),
    ),
    "shard of partitions": (keys.partition_shard("feed", 3), encode_shard(_SHARD)),
    "consumer group": (_GROUP.key, encode_group(_GROUP)),
    "pipeline control": (
        keys.pipeline_control("errors"),
        encode_control(
            PipelineControl("errors", disabled={"mail": Disabled(17, "full")}, version=VERSION)
        ),
    ),
    "report of status": (keys.run_report(keys.STATUS, RUN), _report({"pipelineState": "success"})),
    "report of progress": (keys.run_report(keys.PROGRESS, RUN), _report({"done": 7, "of": 9})),
    "report of metrics": (
        f"{keys.run_report(keys.METRICS, RUN)}/{ulids.encode(T0 | 5)}",
        _report({"rows": 12000}),
    ),
    "give-up marker": (
        keys.give_up_marker(NODE, 7),
        encode_give_up("2026-11-29T20:00:00Z", VERSION),
    ),
    "quarantine marker": (keys.quarantine_marker(NODE, 7), encode_marker("a bad seal", VERSION)),
}
