"""Changes of the state: the body of the entry in the journal, and its effect on the state.

`replay` makes the same changes from the entries that it reads back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from logstore import ulid as ulids
from logstore.batch import RunKey
from service.journal import format as wal
from service.journal.state import Cut, JournalState, encode_cut_entry

Apply: TypeAlias = Callable[[JournalState], None]


class Change(NamedTuple):
    """The body of an entry, and the change of the state once the entry is synced."""

    body: bytes
    apply: Apply


def cut(node: str, made: Cut) -> Change:
    """A segment of `node` was cut."""
    body = wal.encode_json(wal.CUT, encode_cut_entry(node, made))
    return Change(body, lambda state: state.cuts.append(made))


def confirm(node: str, made: Cut) -> Change:
    """A segment is in the store; the state has this already."""
    return Change(wal.encode_json(wal.CONFIRM, encode_cut_entry(node, made)), nothing)


def close(key: RunKey, pos: int) -> Change:
    """A run was closed; all lines below `pos` came before."""
    value = {"fqn": key.fqn, "run": key.run, "pos": pos}
    return Change(wal.encode_json(wal.CLOSE, value), lambda state: state.close(key, pos))


def tombstone(fqn: str, run: str | None, t: int) -> Change:
    """All ULIDs up to `t` of a run, or of a pipeline's runs, are deleted."""
    value = {"fqn": fqn, "run": run, "t": ulids.encode(t)}
    body = wal.encode_json(wal.TOMBSTONE, value)
    return Change(body, lambda state: state.delete(fqn, run, t))


def opened(key: RunKey, connector: str) -> Change:
    """A gen-1 connector begins a run."""
    value = {"fqn": key.fqn, "run": key.run, "connector": connector}
    body = wal.encode_json(wal.OPEN, value)
    return Change(body, lambda state: state.connectors.open(key, connector))


def finished_close(key: RunKey, pos: int) -> Change:
    """The close at `pos` is done: the run's manifest says it."""
    value = {"fqn": key.fqn, "run": key.run, "pos": pos}
    body = wal.encode_json(wal.FINISH, value)
    return Change(body, lambda state: state.finish_close(key, pos))


def finished_deletion(fqn: str, run: str | None, t: int) -> Change:
    """The deletion up to `t` is done: the store knows it, and the objects are gone."""
    value = {"fqn": fqn, "run": run, "t": ulids.encode(t)}
    body = wal.encode_json(wal.FINISH, value)
    return Change(body, lambda state: state.finish_deletion(fqn, run, t))


def nothing(_: JournalState) -> None:
    """The effect of an entry whose change the state has already."""
