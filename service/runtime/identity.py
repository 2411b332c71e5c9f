"""The identity of a node: its data folder, its name, its incarnation.

A node's id is `{name}-{incarnation}`. The incarnation is a ULID made with the data folder and kept
in `node.json`; the folder is locked while the node runs. A node acknowledges nothing before its
incarnation is registered in the store.

A folder that was copied, or restored from an older copy, holds an incarnation that another node has
continued. The node that finds that out **forks**: it takes a new incarnation that names its parent
and the position from which its lines are its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import orjson

from service.journal.format import translated
from service.journal.state import Cut, JournalState
from service.shipping.missing import MissingSegments, decode_missing
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import Conflict, Damaged, FolderLocked, NotFound, PreconditionFailed
from tailrace.logstore.filesystem import FileSystem, Lock
from tailrace.logstore.keys import check_name
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.state import (
    decode_checked,
    encode_checked,
    with_blank_check,
    without_blank_check,
)

_FILE = "node.json"
_LOCK = "lock"
UNFINISHED = "restore.unfinished"
"""A restore into the folder goes on, or was broken off."""


TakenOver: TypeAlias = tuple[tuple[str, int, int], ...]
"""Journal files that a fork took over: (file, first position, end)."""


def taken_over(value: Iterable[Any]) -> TakenOver:
    """Decodes files that a fork took over from JSON. Raises `ValueError`, `TypeError`."""
    return tuple([(str(file), int(first), int(end)) for file, first, end in value])


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """An incarnation of a node. `parents` are the continued incarnations, the last one first.

    `base` is its first position; lines below it belong to the parent, and its segments up to
    `parent_seq` were agreed with the store.

    `files` are the journal files that held lines from `base` on when it began. The parent is known
    to have those in `shared` as well.

    `missing` are segments of its parents that the store lacked when it began. Earlier versions do
    not start on a folder that names some.
    """

    name: str
    incarnation: str
    registered: bool = False
    parents: tuple[str, ...] = ()
    parent_seq: int = 0
    base: int = 0
    files: TakenOver = ()
    shared: tuple[str, ...] = ()
    missing: tuple[MissingSegments, ...] = ()

    @property
    def node(self) -> str:
        """The node's id."""
        return f"{self.name}-{self.incarnation}"


class DataFolder:
    """The node's own folder: locked, with the identity in it.

    Raises `FolderLocked`; every call raises `JournalFull` on a full disk, `JournalFailed`
    on one that fails, and `NodeNotReady`, having changed nothing, without descriptors.
    """

    def __init__(self, fs: FileSystem, path: str, clock: Clock, entropy: Entropy) -> None:
        self._fs = fs
        self.path = path
        self._clock = clock
        self._entropy = entropy
        with _translated(path):
            fs.make_folders(path)
            lock = fs.lock(f"{path}/{_LOCK}", wait=False)
        if lock is None:
            raise FolderLocked(f"another process holds the data folder {path}")
        self._lock: Lock = lock

    def identity(self, name: str) -> NodeIdentity:
        """The identity that the folder holds, whatever its name, or a new one.

        Raises `Conflict` for a folder whose restore did not end.
        """
        check_name(name, "node.id")
        with _translated(self.path):
            unfinished = self._fs.stat(f"{self.path}/{UNFINISHED}") is not None
        if unfinished:
            raise Conflict(
                f"a restore into {self.path} did not end: folder and store are not whole",
                hint="Run `tailrace restore` again, with --replace.",
            )
        known = self._load()
        if known is None:
            made = NodeIdentity(name, self._incarnation())
            self.save(made)
            return made
        return known

    def identify(self, name: str, default_name: str, state: JournalState | None) -> NodeIdentity:
        """The identity of this folder; under another name it continues as a fork.

        An empty `name` keeps its name, or gives a new folder `default_name`. `state` is the state
        of its journal.
        """
        known = self.identity(name or default_name)
        if not name or known.name == name:
            return known
        confirmed = Cut(0, 0, 0) if state is None else state.confirmed
        return self.forked(known, name=name, base=confirmed.end, seq=confirmed.seq)

    def forked(
        self,
        parent: NodeIdentity,
        *,
        name: str,
        base: int,
        seq: int,
        shared: Sequence[str] = (),
        missing: Sequence[MissingSegments] = (),
    ) -> NodeIdentity:
        """Saves and returns a new incarnation that continues from `parent`'s position `base`.

        `shared` are journal files that the parent has as well; `missing` its segments that the
        store lacks.
        """
        fork = NodeIdentity(
            name,
            self._incarnation(),
            parents=(parent.node, *parent.parents),
            parent_seq=seq,
            base=base,
            shared=(*shared, *parent.shared),
            missing=(*missing, *parent.missing),
        )
        self.save(fork)
        return fork

    def save(self, identity: NodeIdentity) -> None:
        """Makes the identity durable."""
        with _translated(self.path):
            self._write(f"{self.path}/{_FILE}", identity)

    def _write(self, path: str, identity: NodeIdentity) -> None:
        temporary = f"{path}.new"
        if self._fs.stat(temporary) is not None:
            self._fs.unlink(temporary)
        file = self._fs.open(temporary, "create")
        try:
            file.write([with_blank_check(orjson.dumps(_encoded(identity)))])
            file.sync()
        finally:
            file.close()
        self._fs.rename(temporary, path)
        self._fs.sync_folder(self.path)

    def release(self) -> None:
        """Unlocks the folder, so that another process can use it."""
        self._lock.release()

    def _incarnation(self) -> str:
        return ulids.fresh_text(self._clock, self._entropy)

    def _load(self) -> NodeIdentity | None:
        with _translated(self.path):
            return read_identity(self._fs, self.path)


def read_identity(fs: FileSystem, folder: str) -> NodeIdentity | None:
    """The identity in a data folder, None without one. Raises `Damaged`, `OSError`."""
    path = f"{folder}/{_FILE}"
    stat = fs.stat(path)
    if stat is None:
        return None
    file = fs.open(path, "read")
    try:
        body = file.pread(stat.size, 0)
    finally:
        file.close()
    try:
        value: dict[str, Any] = orjson.loads(without_blank_check(body))
        known = NodeIdentity(**{**value, "parents": tuple(value["parents"])})
        return replace(
            known,
            files=taken_over(known.files),
            shared=tuple(known.shared),
            missing=decode_missing(value.get("missing", ())),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(
            f"{path} does not hold a node's identity: {error}",
            hint="Restore the file from a copy. If you delete it, the folder becomes a new node"
            " that takes over the journal's lines.",
        ) from error


def _encoded(identity: NodeIdentity) -> dict[str, Any]:
    value = asdict(identity)
    del value["missing"]
    return {**value, **_encoded_missing(identity)}


def _encoded_missing(identity: NodeIdentity) -> dict[str, Any]:
    """Encodes missing segments; empty if none: earlier versions refuse the member."""
    missing = [segments.encoded() for segments in identity.missing]
    return {"missing": missing} if missing else {}


def _translated(path: str) -> AbstractContextManager[None]:
    return translated(f"the data folder {path} could not be read or written")


async def register(store: ObjectStore, identity: NodeIdentity, clock: Clock) -> NodeIdentity:
    """Writes the incarnation's entry in the store, once. Raises as `ObjectStore.put`."""
    # it is ours: nobody else has this incarnation's ULID.
    with suppress(PreconditionFailed):
        key = keys.node_registration(identity.node)
        await store.put(key, _registration(identity, clock), if_absent=True)
    return replace(identity, registered=True)


async def register_again(
    store: ObjectStore, identity: NodeIdentity, clock: Clock
) -> tuple[MissingSegments, ...]:
    """Writes the entry again if it is damaged or gone. Returns the missing segments in it.

    Raises as `ObjectStore.put`.
    """
    key, etag = keys.node_registration(identity.node), None
    try:
        info, body = await store.get(key)
        etag = info.etag
        found = decode_checked(body)
        if found.get("node") == identity.node:
            return decode_missing(found.get("missing", ()))
    except (NotFound, ValueError, TypeError, KeyError):
        pass
    with suppress(PreconditionFailed):
        written = _registration(identity, clock)
        await store.put(key, written, if_absent=etag is None, if_match=etag)
    return identity.missing


def _registration(identity: NodeIdentity, clock: Clock) -> bytes:
    return encode_checked(
        {
            "node": identity.node,
            "name": identity.name,
            "incarnation": identity.incarnation,
            "parents": identity.parents,
            "parent_seq": identity.parent_seq,
            "base": identity.base,
            "files": identity.files,
            "shared": identity.shared,
            "registered_ms": clock.now_ms(),
            **_encoded_missing(identity),
        }
    )
