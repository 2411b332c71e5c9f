"""Deletions in the store: up to which ULID lines of a run, or of a pipeline's runs, are deleted.

`coordination/deleted/{fqn}/{run}~{t}` and `coordination/deleted/{fqn}/.pipeline`, a JSON
object: `fqn`, `run` (null for the whole pipeline), `t` (ULID text: ULIDs at or below it
are deleted) and `version` (a fresh ULID in every write).

A run that is deleted again gets another record, and the highest counts. A program that removes a
record that is not needed any more can therefore never remove a later one. The record of a
pipeline is never removed; its `t` only ever rises.

The key of a run's record contains the whole record (`deletion_at`), so thousands of them are
listed and not read.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from logstore import keys
from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import Damaged, InvalidInput
from logstore.names import decode


@dataclass(frozen=True, slots=True)
class Deletion:
    """All ULIDs of the run (or, without `run`, of the pipeline) up to `t` are deleted."""

    fqn: str
    run: str | None
    t: int
    version: str = ""

    @property
    def key(self) -> str:
        """The key of the deletion in the store."""
        if self.run is None:
            return keys.deleted_pipeline(self.fqn)
        return keys.deleted_run(RunKey(self.fqn, self.run), ulids.encode(self.t))


def deletion_at(key: str) -> Deletion | None:
    """The deletion that a key contains; this is so for most deletions of runs.

    Returns None where the record must be read: for a pipeline, for names so long that they are
    cut, and for records of earlier versions, which lack `~{t}`.
    """
    names, _, t = key.removeprefix(keys.DELETED).rpartition("~")
    folder, _, name = names.partition("/")
    fqn, run = decode(folder), decode(name)
    if not fqn or not run:
        return None
    try:
        found = Deletion(fqn, run, ulids.decode(t))
    except InvalidInput:
        return None
    return found if found.key == key else None


def encode_deletion(deletion: Deletion) -> bytes:
    """The bytes of a deletion."""
    return orjson.dumps(
        {
            "fqn": deletion.fqn,
            "run": deletion.run,
            "t": ulids.encode(deletion.t),
            "version": deletion.version,
        }
    )


def decode_deletion(body: bytes) -> Deletion:
    """The deletion that `body` holds. Raises `Damaged`."""
    try:
        value = orjson.loads(body)
        return Deletion(value["fqn"], value["run"], ulids.decode(value["t"]), value["version"])
    except (ValueError, TypeError, KeyError, InvalidInput) as error:
        raise Damaged(f"not a deletion: {error}") from error
