"""Which nodes forked from which, of those that have left the register as well.

A node that forks registers what it took over (`service/runtime/identity.py`), once and for ever. A
reader's cursor may name lines by the name that the copy had before; without this they would be
new to it once the copy has brought them into the store and is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from logstore import keys
from logstore.checked import decode_checked
from logstore.errors import Damaged, NotFound
from logstore.objects.store import ObjectStore
from logstore.state_kinds import advice
from service.runs.elsewhere import Fork
from service.runtime.identity import taken_over
from service.shipping.missing import decode_missing

_MOST: Final = 10_000


class Registrations:
    """Registrations of nodes, each read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._read: dict[str, Fork | None] = {}

    async def forks(self, nodes: Collection[str]) -> Sequence[Fork]:
        """Those of the nodes that are forks. Raises `StoreUnavailable`, `Damaged`."""
        for node in nodes:
            if node not in self._read:
                if len(self._read) >= _MOST:
                    self._read.clear()
                self._read[node] = await self._fork(node)
        return [fork for node in nodes if (fork := self._read[node]) is not None]

    async def _fork(self, node: str) -> Fork | None:
        key = keys.node_registration(node)
        try:
            found = decode_registration((await self._store.get(key))[1])
        except NotFound:
            return None  # it has no lines that were acknowledged, or is no node
        except Damaged as error:
            raise Damaged(f"{key}: {error}", hint=advice(key)) from error
        return found if found.files else None


def decode_registration(body: bytes) -> Fork:
    """The registration that the bytes hold. Raises `Damaged`."""
    try:
        value = decode_checked(body)
        return Fork(
            str(value["node"]),
            tuple([str(parent) for parent in value["parents"]]),
            int(value["base"]),
            taken_over(value.get("files", ())),
            tuple([str(file) for file in value.get("shared", ())]),
            decode_missing(value.get("missing", ())),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"not the registration of a node: {error}") from error
