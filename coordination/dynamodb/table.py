"""The table: created if it does not exist, and checked before it is used.

It has the same shape as Data Prepper's: the same keys, the same index, the same TTL attribute.
Either program can therefore use a table that was made with the other's settings. Several nodes
may create it at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from coordination.dynamodb import item as items
from coordination.dynamodb.errors import Failure
from coordination.dynamodb.requests import Failed, Requests
from coordination.settings import DynamoDbSettings
from logstore.clock import Clock
from logstore.errors import InvalidInput, StoreUnavailable
from logstore.objects.s3.errors import Meaning

_SECTION: Final = "source_coordination.store.dynamodb"
_LOOK_SECONDS: Final = 1.0
_LOOKS: Final = 120
_KEYS: Final = {items.HASH: "HASH", items.RANGE: "RANGE"}
_INDEX_KEYS: Final = {items.INDEX_HASH: "HASH", items.INDEX_RANGE: "RANGE"}


class Table:
    """The table that settings name."""

    def __init__(self, requests: Requests, settings: DynamoDbSettings, clock: Clock) -> None:
        self._requests = requests
        self._settings = settings
        self._clock = clock

    async def ready(self) -> None:
        """Returns once the table can be used.

        Raises `InvalidInput` for a table that does not exist and may not be created, or that has
        another shape; `StoreUnavailable`.
        """
        about = await self._about()
        if about is None:
            if self._settings.skip_table_creation:
                raise InvalidInput(
                    f"there is no table {self._requests.table}, and it may not be made",
                    field=f"{_SECTION}.skip_table_creation",
                    hint="Make the table, or leave skip_table_creation out.",
                )
            await self._make()
        await self._see_shape(await self._active())
        if self._settings.ttl:
            await self._see_ttl()

    async def _make(self) -> None:
        capacity = {
            "ReadCapacityUnits": self._settings.provisioned_read_capacity_units,
            "WriteCapacityUnits": self._settings.provisioned_write_capacity_units,
        }
        try:
            await self._requests.once(
                "create_table",
                {
                    "TableName": self._requests.table,
                    "AttributeDefinitions": [
                        {"AttributeName": name, "AttributeType": "S"}
                        for name in (*_KEYS, *_INDEX_KEYS)
                    ],
                    "KeySchema": _schema(_KEYS),
                    "GlobalSecondaryIndexes": [
                        {
                            "IndexName": items.INDEX,
                            "KeySchema": _schema(_INDEX_KEYS),
                            "Projection": {"ProjectionType": "ALL"},
                            "ProvisionedThroughput": capacity,
                        }
                    ],
                    "ProvisionedThroughput": capacity,
                },
            )
        except Failed as failed:
            # In use: another node makes it. Unclear: it may be there in a moment.
            if failed.failure.meaning not in (Meaning.DONE_NOTHING, Meaning.UNCLEAR):
                raise failed.failure.error(f"make the table {self._requests.table}") from None

    async def _active(self) -> Mapping[str, Any]:
        for _ in range(_LOOKS):
            about = await self._about()
            if about is None:
                await self._make()
            elif _active(about):
                return about
            await self._clock.sleep(_LOOK_SECONDS)
        raise StoreUnavailable(f"the table {self._requests.table} does not become active")

    async def _about(self) -> Mapping[str, Any] | None:
        what = f"look at the table {self._requests.table}"
        try:
            answer = await self._requests.again("describe_table")
        except Failed as failed:
            if failed.failure.meaning is Meaning.ABSENT:
                return None
            raise failed.failure.error(what) from None
        found: Mapping[str, Any] = answer["Table"]
        return found

    async def _see_shape(self, about: Mapping[str, Any]) -> None:
        wrong = list(_differences(about))
        if wrong:
            raise InvalidInput(
                f"the table {self._requests.table} cannot be used: {'; '.join(wrong)}",
                field=f"{_SECTION}.table_name",
                hint="Name another table, or let Tailrace make one.",
            )

    async def _see_ttl(self) -> None:
        answer = await self._requests.ask("describe_time_to_live", "look at the table's TTL")
        about = answer["TimeToLiveDescription"]
        if about["TimeToLiveStatus"] in ("ENABLED", "ENABLING"):
            if about["AttributeName"] == items.EXPIRES:
                return
            problem = f"its TTL goes by {about['AttributeName']}, not by {items.EXPIRES}"
        elif self._settings.skip_table_creation:
            problem = f"it has no TTL; ttl needs one by {items.EXPIRES}"
        else:
            problem = await self._turn_ttl_on()
        if problem:
            raise InvalidInput(
                f"the table {self._requests.table} cannot be used: {problem}",
                field=f"{_SECTION}.ttl",
                hint=f"Turn TTL on for the attribute {items.EXPIRES}, or leave ttl out.",
            )

    async def _turn_ttl_on(self) -> str:
        wanted = {"Enabled": True, "AttributeName": items.EXPIRES}
        try:
            await self._requests.once(
                "update_time_to_live",
                {"TableName": self._requests.table, "TimeToLiveSpecification": wanted},
            )
        except Failed as failed:
            return await self._turned_on_by_another(failed.failure)
        return ""

    async def _turned_on_by_another(self, failure: Failure) -> str:
        answer = await self._requests.ask("describe_time_to_live", "look at the table's TTL")
        about = answer["TimeToLiveDescription"]
        if about.get("AttributeName") == items.EXPIRES:
            return ""
        if failure.meaning is not Meaning.FINAL:
            raise failure.error("turn the table's TTL on")
        return f"its TTL cannot be turned on: {failure.message}"


def _active(about: Mapping[str, Any]) -> bool:
    """Whether table and index answer, and the index covers the whole table."""
    indexes = about.get("GlobalSecondaryIndexes", [])
    ours = [one for one in indexes if one["IndexName"] == items.INDEX]
    states = [about["TableStatus"], *[one["IndexStatus"] for one in ours]]
    filling = any(one.get("Backfilling", False) for one in ours)
    return not filling and all(state in ("ACTIVE", "UPDATING") for state in states)


def _schema(keys: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()]


def _differences(about: Mapping[str, Any]) -> Iterator[str]:
    types = {one["AttributeName"]: one["AttributeType"] for one in about["AttributeDefinitions"]}
    if _keys(about) != _KEYS:
        yield f"its key is {_text(_keys(about))}, not {_text(_KEYS)}"
    indexes = {one["IndexName"]: one for one in about.get("GlobalSecondaryIndexes", [])}
    index = indexes.get(items.INDEX)
    if index is None:
        yield f"it has no index {items.INDEX}"
    else:
        if _keys(index) != _INDEX_KEYS:
            yield f"the key of its index is {_text(_keys(index))}, not {_text(_INDEX_KEYS)}"
        if index["Projection"]["ProjectionType"] != "ALL":
            yield f"the index {items.INDEX} does not hold ALL attributes"
    for name in (*_KEYS, *_INDEX_KEYS):
        if types.get(name, "S") != "S":
            yield f"{name} is of type {types[name]}, not S"


def _keys(about: Mapping[str, Any]) -> dict[str, str]:
    return {one["AttributeName"]: one["KeyType"] for one in about["KeySchema"]}


def _text(keys: Mapping[str, str]) -> str:
    return " and ".join(f"{name} ({kind})" for name, kind in keys.items())
