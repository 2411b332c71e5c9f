"""The state objects of a store: reads each, names what is damaged, and restores what it can.

A change of a single bit is undone, whatever the object. Otherwise a watermark is computed from
table and segments, a run's deletion is written again from its key, and so is the marker of a
quarantined segment, without its reason. Each write is conditional on the damaged version.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Final

from logstore import keys
from logstore import ulid as ulids
from logstore.checked import without_flip
from logstore.clock import Clock, Entropy
from logstore.errors import (
    Damaged,
    InvalidInput,
    NotFound,
    PreconditionFailed,
    UnsupportedVersion,
)
from logstore.names import decode
from logstore.objects.store import ObjectStore
from logstore.runs.deletions import deletion_at, encode_deletion
from logstore.segments.quarantine import encode_marker
from logstore.state_kinds import advice, kind_of
from service.peers.forgotten import Forgotten
from service.runs.elsewhere import Fork
from service.shipping.missing import MissingSegments
from service.shipping.watermarks import Watermarks
from tailrace.verification.fault import Findings, Kind
from tailrace.verification.state_decoders import decode_state

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
                    self.findings.note(f"{info.key} is of no kind that this version knows")
                else:
                    found = await self.read(info.key)
                    self.findings.count("state objects")
                    if isinstance(found, Forgotten) and found.returned_ms is None:
                        self.findings.note(found.sentence())
                    if isinstance(found, Fork):
                        self.lost += [(found.node, missing) for missing in found.missing]
        for folder in [folder for folder, count in shards.items() if count <= 0]:
            self.findings.note(
                f"{folder} has no shard: its maker was killed before its first partition, or it is"
                " gone"
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
        raise InvalidInput(f"{key} is no state object", hint="`tailrace verify` names them.")
    try:
        body = (await store.get(key))[1]
        decode_state(key, body)
    except NotFound as error:
        raise InvalidInput(f"there is no object {key}") from error
    except Damaged:
        return bytes(body)
    raise InvalidInput(f"{key} reads well, and stays", hint="Only what cannot be read is removed.")


def _other(key: str) -> bool:
    return not key.startswith(keys.RUNS)


def _fault(key: str) -> Kind:
    return "state-damaged" if _other(key) else "manifest-damaged"
