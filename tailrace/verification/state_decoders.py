"""Decodes a state object of any kind in the store, and checks that it is at its own key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from coordination.groups import decode_group
from coordination.named.record import LeaseName, decode_lease
from coordination.object_store.shard import decode_any_shard
from coordination.object_store.source import decode_source
from coordination.pipelines.control import decode_control
from logstore import keys
from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import Damaged
from logstore.runs.deletions import decode_deletion
from logstore.runs.manifest import decode_manifest
from logstore.runs.report import decode_report
from logstore.runs.watermark import decode_watermark
from logstore.segments.quarantine import decode_give_up, decode_marker
from logstore.state_kinds import STATE_KINDS, kind_of
from service.peers.forgotten import decode_forgotten
from service.peers.register import decode_entry
from service.peers.registrations import decode_registration
from service.peers.shedding import decode_slots

Decode = Callable[[str, bytes], object]
"""Takes a key and an object's bytes. Raises `Damaged`."""


def decode_state(key: str, body: bytes) -> object:
    """The state object at the key, which must be one of a known kind.

    Raises `Damaged`, also for an object that belongs at another key, and `UnsupportedVersion`.
    """
    kind = kind_of(key)
    if kind is None:
        raise Damaged(f"{key} is no state object")
    return DECODERS[kind.name](key, body)


def _at(key: str, own: str, value: object) -> object:
    if own != key:
        raise Damaged(f"it belongs at {own}")
    return value


def _manifest(key: str, body: bytes) -> object:
    found = decode_manifest(body)
    return _at(key, keys.run_manifest(found.key), found)


def _watermark(_key: str, body: bytes) -> object:
    return decode_watermark(body)


def _deletion(key: str, body: bytes) -> object:
    found = decode_deletion(body)
    if found.run is not None and f"{key}~" == keys.deletions_of(RunKey(found.fqn, found.run)):
        return found  # of a version whose keys lack `~{t}`
    return _at(key, found.key, found)


def _registration(key: str, body: bytes) -> object:
    found = decode_registration(body)
    return _at(key, keys.node_registration(found.node), found)


def _entry(key: str, body: bytes) -> object:
    found = decode_entry(body)
    return _at(key, keys.peer(found.node, found.instance), found)


def _forgotten(key: str, body: bytes) -> object:
    found = decode_forgotten(body)
    return _at(key, keys.forgotten(found.node), found)


def _slots(_key: str, body: bytes) -> object:
    return decode_slots(body)


def _lease(key: str, body: bytes) -> object:
    source, _, rest = key.removeprefix(keys.LEASES).partition("/")
    return decode_lease(LeaseName(source, tuple(rest.split("/"))), body)


def _source(key: str, body: bytes) -> object:
    found = decode_source(key, body)
    return _at(key, keys.partition_source(found.name), found)


def _shard(key: str, body: bytes) -> object:
    found = decode_any_shard(key, body)
    return _at(key, keys.partition_shard(found.source, found.number), found)


def _group(key: str, body: bytes) -> object:
    found = decode_group(key, body)
    return _at(key, found.key, found)


def _control(key: str, body: bytes) -> object:
    found = decode_control(key, body)
    return _at(key, keys.pipeline_control(found.pipeline), found)


def _report(key: str, body: bytes) -> object:
    found = decode_report(body)
    if key.startswith(keys.METRICS):
        own = keys.run_report(keys.METRICS, found.key)
        return _at(key, f"{own}/{ulids.encode(found.version)}", found)
    folder = keys.STATUS if key.startswith(keys.STATUS) else keys.PROGRESS
    return _at(key, keys.run_report(folder, found.key), found)


def _marker(_key: str, body: bytes) -> object:
    return decode_marker(body)


def _give_up(_key: str, body: bytes) -> object:
    return decode_give_up(body)


DECODERS: Final[Mapping[str, Decode]] = {
    "run manifest": _manifest,
    "watermark": _watermark,
    "deletion of a run": _deletion,
    "deletion of a pipeline": _deletion,
    "node registration": _registration,
    "register entry": _entry,
    "forgotten node": _forgotten,
    "shedding slots": _slots,
    "named lease": _lease,
    "source of partitions": _source,
    "shard of partitions": _shard,
    "consumer group": _group,
    "pipeline control": _control,
    "report of status": _report,
    "report of progress": _report,
    "report of metrics": _report,
    "give-up marker": _give_up,
    "quarantine marker": _marker,
}
assert DECODERS.keys() == {kind.name for kind in STATE_KINDS if kind.place == "store"}
