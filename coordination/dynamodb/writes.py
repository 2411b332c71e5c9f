"""Conditional writes of partitions, and of the counters of their epochs.

Each version is a fresh ULID, so a write whose answer was lost can be recognised: the second try
is refused, and the item that it meets has the version that was to be written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from coordination.dynamodb import item as items
from coordination.dynamodb.requests import Refused, Requests
from coordination.partitions.partition import Partition
from coordination.storetime import StoreTime
from logstore import ulid as ulids
from logstore.clock import Clock, Entropy
from logstore.errors import NotFound, OutcomeUnknown, PreconditionFailed, StoreUnavailable


@dataclass(frozen=True, slots=True)
class Keeping:
    """How partitions are stored: the weight of a priority step, and the TTL of COMPLETED ones."""

    ageing_ms: int
    ttl_ms: int | None = None


class Writes:
    """Writes to one table.

    Writes of partitions raise `OutcomeUnknown` if the outcome stays unclear.
    """

    def __init__(
        self, requests: Requests, time: StoreTime, clock: Clock, entropy: Entropy, keeping: Keeping
    ) -> None:
        self._requests = requests
        self._time = time
        self._clock = clock
        self._entropy = entropy
        self.keeping = keeping

    async def make(self, new: Partition) -> bool:
        """Makes a partition; returns False if it existed already."""
        stored = self._fresh(new)
        try:
            await self._requests.write(
                "put_item",
                _name("create", new),
                Item=self._encode(stored),
                ConditionExpression="attribute_not_exists(#h)",
                ExpressionAttributeNames={"#h": items.HASH},
            )
        except Refused as refused:
            return _is_in(refused, stored.version)
        return True

    async def replace(self, old: Partition, wanted: Partition) -> Partition:
        """Replaces `old` by `wanted`. Raises `NotFound`, `PreconditionFailed`."""
        assert (old.source, old.key) == (wanted.source, wanted.key)
        stored = self._fresh(wanted)
        try:
            await self._requests.write(
                "put_item",
                _name("change", old),
                Item=self._encode(stored) | {items.PREVIOUS: {"S": old.version}},
                **_unchanged(old),
            )
        except Refused as refused:
            if not _is_in(refused, stored.version):
                raise _lost(old, refused) from None
        return stored

    async def remove(self, old: Partition) -> None:
        """Removes `old`. Raises `NotFound`, `PreconditionFailed`."""
        try:
            await self._requests.write(
                "delete_item",
                _name("delete", old),
                Key=items.key_of(old.source, old.key),
                **_unchanged(old),
            )
        except Refused as refused:
            if not refused.unclear or not _is_gone(old, refused):
                raise _lost(old, refused) from None

    async def register(self, source: str) -> None:
        """Records the name of the source; its counter stays as it is."""
        await self._count(source, 0)

    async def epochs(self, source: str, count: int, above: int) -> range:
        """Returns `count` epochs that were never given out, all higher than `above`.

        The source has its own counter, which outlives its partitions. Gaps do no harm, so a lost
        answer does none. If somebody removed the counter, it is restored.
        """
        last = await self._count(source, count)
        if last - count < above:
            last = await self._count(source, above - last + count)
        return range(last - count + 1, last + 1)

    async def _count(self, source: str, count: int) -> int:
        answer = await self._requests.ask(
            "update_item",
            f"count the epochs of {source!r}",
            Key=items.counter_key(source),
            UpdateExpression="ADD #e :n",
            ExpressionAttributeNames={"#e": items.EPOCH},
            ExpressionAttributeValues={":n": {"N": str(count)}},
            ReturnValues="UPDATED_NEW",
        )
        return int(answer["Attributes"][items.EPOCH]["N"])

    def _fresh(self, partition: Partition) -> Partition:
        version = ulids.fresh_text(self._clock, self._entropy)
        return replace(partition, version=version)

    def _encode(self, partition: Partition) -> items.Item:
        if not self._time.known:
            raise StoreUnavailable("the server's time is not known: its answers are too slow")
        now_ms = self._time.at_most_ms()
        return items.encode(partition, now_ms, self.keeping.ageing_ms, self.keeping.ttl_ms)


def _unchanged(old: Partition) -> dict[str, Any]:
    """The condition that the item has the version of `old`, and thereby its owner and epoch."""
    condition = "#v = :v AND #e = :e AND "
    values = {":v": {"S": old.version}, ":e": {"N": str(old.epoch)}}
    if old.owner is None:
        condition += "attribute_not_exists(#o)"
    else:
        condition += "#o = :o"
        values[":o"] = {"S": old.owner}
    return {
        "ConditionExpression": condition,
        "ExpressionAttributeNames": {"#v": items.VERSION, "#e": items.EPOCH, "#o": items.OWNER},
        "ExpressionAttributeValues": values,
    }


def _lost(old: Partition, refused: Refused) -> Exception:
    """Why a write on `old` that is not there was refused."""
    what = f"{old.key!r} of {old.source!r}"
    if refused.item is None:
        return NotFound(f"there is no partition {what}")
    instead = _text(refused, items.PREVIOUS) == old.version
    if refused.unclear and not instead and not _is_gone(old, refused):
        return OutcomeUnknown(f"{what} was changed several times, perhaps by this write first")
    return PreconditionFailed(f"{what} was changed meanwhile")


def _is_gone(old: Partition, refused: Refused) -> bool:
    """Whether the partition was deleted, by anybody, and perhaps made again.

    Epochs only rise; a new partition has none.
    """
    if refused.item is None:
        return True
    return int(refused.item.get(items.EPOCH, {}).get("N", "0")) < old.epoch


def _is_in(refused: Refused, version: str) -> bool:
    """Whether an earlier try wrote this version: the item has it, or replaced it."""
    return version in (_text(refused, items.VERSION), _text(refused, items.PREVIOUS))


def _text(refused: Refused, name: str) -> str | None:
    found: str | None = (refused.item or {}).get(name, {}).get("S")
    return found


def _name(verb: str, partition: Partition) -> str:
    return f"{verb} {partition.key!r} of {partition.source!r}"
