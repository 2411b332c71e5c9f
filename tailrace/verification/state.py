"""The state objects of a store: reads each, names damaged ones, and restores them if possible.

A change of a single bit is undone, whatever the object. Otherwise a watermark is computed from
table and segments, a run's deletion is written again from its key, and so is the marker of a
quarantined segment, without its reason. Each write is conditional on the damaged version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from service.peers.register import (
    ForgottenNode,
    decode_entry,
    decode_forgotten,
    decode_registration,
)
from service.peers.shedding import decode_slots
from service.run_log.backlog import Fork
from service.shipping.missing import MissingSegments
from service.shipping.watermarks import Watermarks
from tailrace.coordination.groups import decode_group
from tailrace.coordination.named_leases import LeaseName, decode_lease
from tailrace.coordination.object_store.shard import decode_any_shard
from tailrace.coordination.object_store.store import decode_source
from tailrace.coordination.pipelines import decode_control
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    Damaged,
    InvalidInput,
    NotFound,
    PreconditionFailed,
    UnsupportedVersion,
)
from tailrace.logstore.keys import decode
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.deletions import decode_deletion, deletion_at, encode_deletion
from tailrace.logstore.runs.manifest import decode_manifest
from tailrace.logstore.runs.report import decode_report, decode_watermark
from tailrace.logstore.segments.file_format import decode_give_up, decode_marker, encode_marker
from tailrace.logstore.state import STATE_KINDS, advice, kind_of, without_flip
from tailrace.verification.findings import Findings, Kind

# Decodes a state object of any kind in the store, and checks that it is at its own key.


Decode = Callable[[str, bytes], object]
"""Takes a key and an object's bytes. Raises `Damaged`."""
T = TypeVar("T")


def decode_state(key: str, body: bytes) -> object:
    """The state object at the key, which must be one of a known kind.

    Raises `Damaged`, also for an object that belongs at another key, and `UnsupportedVersion`.
    """
    kind = kind_of(key)
    if kind is None:
        raise Damaged(f"{key} is not a state object")
    return DECODERS[kind.name](key, body)


def _at(key: str, own: str, value: object) -> object:
    if own != key:
        raise Damaged(f"it belongs at {own}")
    return value


def _body(decode: Callable[[bytes], object]) -> Decode:
    """Decodes an object whose bytes do not name it."""
    return lambda _, body: decode(body)


def _placed(decode: Callable[[str, bytes], T], key_of: Callable[[T], str]) -> Decode:
    """Decodes an object that belongs at the key that `key_of` makes of its bytes."""

    def check(key: str, body: bytes) -> object:
        found = decode(key, body)
        return _at(key, key_of(found), found)

    return check


def _deletion(key: str, body: bytes) -> object:
    found = decode_deletion(body)
    if found.run is not None and f"{key}~" == keys.deletions_of(RunKey(found.fqn, found.run)):
        return found  # of a version whose keys lack `~{t}`
    return _at(key, found.key, found)


def _lease(key: str, body: bytes) -> object:
    source, _, rest = key.removeprefix(keys.LEASES).partition("/")
    return decode_lease(LeaseName(source, tuple(rest.split("/"))), body)


def _report(key: str, body: bytes) -> object:
    found = decode_report(body)
    if key.startswith(keys.METRICS):
        own = keys.run_report(keys.METRICS, found.key)
        return _at(key, f"{own}/{ulids.encode(found.version)}", found)
    folder = keys.STATUS if key.startswith(keys.STATUS) else keys.PROGRESS
    return _at(key, keys.run_report(folder, found.key), found)


DECODERS: Final[Mapping[str, Decode]] = {
    "run manifest": _placed(
        lambda _, body: decode_manifest(body), lambda found: keys.run_manifest(found.key)
    ),
    "watermark": _body(decode_watermark),
    "deletion of a run": _deletion,
    "deletion of a pipeline": _deletion,
    "node registration": _placed(
        lambda _, body: decode_registration(body), lambda found: keys.node_registration(found.node)
    ),
    "register entry": _placed(
        lambda _, body: decode_entry(body), lambda found: keys.peer(found.node, found.instance)
    ),
    "forgotten node": _placed(
        lambda _, body: decode_forgotten(body), lambda found: keys.forgotten(found.node)
    ),
    "shedding slots": _body(decode_slots),
    "named lease": _lease,
    "source of partitions": _placed(decode_source, lambda found: keys.partition_source(found.name)),
    "shard of partitions": _placed(
        decode_any_shard, lambda found: keys.partition_shard(found.source, found.number)
    ),
    "consumer group": _placed(decode_group, lambda found: found.key),
    "pipeline control": _placed(
        decode_control, lambda found: keys.pipeline_control(found.pipeline)
    ),
    "report of status": _report,
    "report of progress": _report,
    "report of metrics": _report,
    "give-up marker": _body(decode_give_up),
    "quarantine marker": _body(decode_marker),
}
assert DECODERS.keys() == {kind.name for kind in STATE_KINDS if kind.place == "store"}


_PREFIXES: Final = (keys.COORDINATION, keys.QUARANTINE)
_LOST_REASON: Final = "the marker was damaged, so the reason is lost"


@dataclass(frozen=True, slots=True)
class StateRepair:
    """Restores damaged state objects of one store."""

    store: ObjectStore
    watermarks: Watermarks
    clock: Clock
    entropy: Entropy

    async def restore(self, key: str, etag: str, body: bytes) -> str:
        """What was done, or nothing. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        try:
            return await self._restored(key, etag, body)
        except PreconditionFailed:
            return ""  # somebody has written it meanwhile

    async def _restored(self, key: str, etag: str, body: bytes) -> str:
        before = await asyncio.to_thread(
            without_flip, body, lambda candidate: decode_state(key, candidate)
        )
        if before is not None:
            await self.store.put(key, before, if_match=etag)
            return "the bit that had changed was turned back"
        if key.startswith(keys.WATERMARKS):
            node = decode(key.removeprefix(keys.WATERMARKS))
            if node is None:
                return ""
            mark = await self.watermarks.watermark(node)
            return f"computed again as segment {mark.seq} from table and segments"
        deletion = deletion_at(key)
        if key.startswith(keys.DELETED) and deletion is not None:
            again = encode_deletion(replace(deletion, version=self._fresh()))
            await self.store.put(key, again, if_match=etag)
            return "written again from its key"
        if key.startswith(keys.QUARANTINE) and not key.endswith(keys.GIVEN_UP_SUFFIX):
            marker = encode_marker(_LOST_REASON, self._fresh())
            await self.store.put(key, marker, if_match=etag)
            return "written again, without its reason"
        return ""

    def _fresh(self) -> str:
        return ulids.fresh_text(self.clock, self.entropy)


@dataclass(slots=True)
class StateCheck:
    """Checks the state objects of one store; without `repair` it only names what is damaged."""

    store: ObjectStore
    findings: Findings
    repair: StateRepair | None = None
    lost: list[tuple[str, MissingSegments]] = field(default_factory=list)
    """Segments that nodes found missing, with the nodes that say so."""

    async def check(self) -> None:
        """Reads every state object but the manifests of runs. Raises `StoreUnavailable`."""
        shards: dict[str, int] = {}
        for prefix in _PREFIXES:
            async for info in self.store.list(prefix):
                if info.key.startswith(keys.PARTITIONS):
                    folder = info.key.rpartition("/")[0]
                    shards[folder] = shards.get(folder, -1) + 1
                if kind_of(info.key) is None:
                    self.findings.note(f"{info.key} has a kind that this version does not know")
                else:
                    found = await self.read(info.key)
                    self.findings.count("state objects")
                    if isinstance(found, ForgottenNode) and found.returned_ms is None:
                        self.findings.note(found.sentence())
                    if isinstance(found, Fork):
                        self.lost += [(found.node, missing) for missing in found.missing]
        for folder in [folder for folder, count in shards.items() if count <= 0]:
            self.findings.note(
                f"{folder} has no shard: the shard is gone, or the process that made the source was"
                " killed before its first partition"
            )

    async def read(self, key: str) -> object | None:
        """The state object; None if it is gone, or damaged and not restored. Reports damage."""
        try:
            info, body = await self.store.get(key)
        except NotFound:
            return None
        try:
            return decode_state(key, body)
        except UnsupportedVersion as error:
            self.findings.add("state-newer" if _other(key) else "manifest-damaged", key, str(error))
            return None
        except Damaged as error:
            done = "" if self.repair is None else await self.repair.restore(key, info.etag, body)
            detail = str(error) if done else f"{error}. {advice(key)}"
            self.findings.add(_fault(key), key, detail, repaired=done)
        return await self._again(key) if done else None

    async def _again(self, key: str) -> object | None:
        try:
            return decode_state(key, (await self.store.get(key))[1])
        except (NotFound, Damaged):
            return None


async def unreadable_state(store: ObjectStore, key: str) -> bytes:
    """The bytes of a state object that cannot be read.

    Raises `InvalidInput` for one that reads well, or is no state object, `StoreUnavailable`.
    """
    if kind_of(key) is None:
        raise InvalidInput(f"{key} is not a state object", hint="`tailrace verify` names them.")
    try:
        body = (await store.get(key))[1]
        decode_state(key, body)
    except NotFound as error:
        raise InvalidInput(f"there is no object {key}") from error
    except Damaged:
        return bytes(body)
    raise InvalidInput(f"{key} can be read, and stays", hint="Name one that cannot be read.")


def _other(key: str) -> bool:
    return not key.startswith(keys.RUNS)


def _fault(key: str) -> Kind:
    return "state-damaged" if _other(key) else "manifest-damaged"
