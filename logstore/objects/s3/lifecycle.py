"""Our one rule in the lifecycle of a bucket that may be shared: old run logs expire.

S3 can only replace the whole configuration. It is therefore read, our earlier rule is replaced by
the new one, and the result is written if it differs. Two programs that do so at the same moment
may overwrite each other's change; it is made again at the next start.
"""

from __future__ import annotations

from typing import Any, Final

from logstore.objects.s3.place import Place
from logstore.objects.s3.requests import Failed, Requests

_ABSENT: Final = "NoSuchLifecycleConfiguration"
_SIZE: Final = "TransitionDefaultMinimumObjectSize"
_READ: Final = ("Rules", _SIZE)


class Lifecycle:
    """The rule for what is below a prefix of the store."""

    def __init__(self, requests: Requests, place: Place, prefix: str) -> None:
        self._requests = requests
        self._prefix = f"{place.prefix}{prefix}/"
        self._id = f"tailrace {self._prefix}"

    async def expire(self, days: int) -> bool:
        """Makes objects expire after `days`, or never for 0; returns whether the bucket changed.

        Raises `StoreUnavailable`, also without permission.
        """
        kept = await self._read()
        before = kept.get("Rules", [])
        rules = [rule for rule in before if rule.get("ID") != self._id]
        if days:
            rules.append(self._rule(days))
        if _comparable(rules) == _comparable(before):
            return False
        await self._write({**kept, "Rules": rules})
        return True

    def _rule(self, days: int) -> dict[str, Any]:
        return {
            "ID": self._id,
            "Status": "Enabled",
            "Filter": {"Prefix": self._prefix},
            "Expiration": {"Days": days},
        }

    async def _read(self) -> dict[str, Any]:
        async def send() -> dict[str, Any]:
            try:
                found = await self._requests.once("get_bucket_lifecycle_configuration", {})
            except Failed as failed:
                if failed.failure.code == _ABSENT:
                    return {}
                raise
            return {name: found[name] for name in _READ if name in found}

        return await self._requests.again("the bucket's lifecycle", send)

    async def _write(self, wanted: dict[str, Any]) -> None:
        what = "the bucket's lifecycle"
        if not wanted["Rules"]:
            await self._requests.ask("delete_bucket_lifecycle", what)
            return
        size = {_SIZE: wanted[_SIZE]} if _SIZE in wanted else {}
        rules = {"Rules": wanted["Rules"]}
        await self._requests.ask(
            "put_bucket_lifecycle_configuration", what, LifecycleConfiguration=rules, **size
        )


def _comparable(rules: list[dict[str, Any]]) -> list[str]:
    return sorted([repr(sorted(rule.items())) for rule in rules])
