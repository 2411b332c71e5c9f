"""What operators, and too many failures, say about a pipeline: paused, or without some appenders.

`coordination/pipelines/{name}`, a JSON object changed by compare-and-swap:

    format    1
    pipeline  its name
    paused    whether nothing is done
    disabled  {appender: {"at": ms, "reason": text}}: its events go to the dead-letter file, or wait
    failing   {appender/part-parts: {"at": ms, "reason": text}}: it fails, and is tried again
    redeliver {appender: ULID}: its dead letters are to be sent again, once for each ULID
    over_http whether those that run it read its segments over HTTP; else it is not there
    version   a fresh ULID in every write

Processes look at it every `pipelines.poll_seconds`. A pipeline without the object is not paused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

from coordination.groups import Group, State, change_group, pipeline_group
from coordination.pipelines.replay import Replay
from logstore import keys, ulid
from logstore.checked import decode_checked, encode_checked
from logstore.errors import Damaged, InvalidInput, NotFound, UnsupportedVersion
from logstore.objects.store import ObjectStore
from logstore.search.moments import parse_moment
from logstore.swap import Document, swap

_FORMAT: Final = 1


class Disabled(NamedTuple):
    """Since when an appender is disabled, or fails, and why."""

    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Control:
    """One version of the object."""

    pipeline: str
    paused: bool = False
    disabled: Mapping[str, Disabled] = field(default_factory=dict)
    version: str = ""
    failing: Mapping[str, Disabled] = field(default_factory=dict)
    over_http: bool = False
    redeliver: Mapping[str, str] = field(default_factory=dict)

    def fail(self, part: str, now_ms: int, reason: str | None) -> Control:
        """The same with a part that fails for a reason; None: it works."""
        known = self.failing.get(part)
        if reason == (None if known is None else known.reason):
            return self
        kept = {name: one for name, one in self.failing.items() if name != part}
        if reason is not None:
            kept[part] = Disabled(now_ms, reason)
        return replace(self, failing=kept)

    def disable(self, appender: str, now_ms: int, reason: str) -> Control:
        """The same with an appender disabled; one that is so already keeps its reason."""
        if appender in self.disabled:
            return self
        return replace(self, disabled={**self.disabled, appender: Disabled(now_ms, reason)})

    def enable(self, appender: str) -> Control:
        """The same with an appender enabled again."""
        kept = {name: one for name, one in self.disabled.items() if name != appender}
        return replace(self, disabled=kept)


def replayed(group: Group, asked: Replay) -> Group:
    """The pipeline's group with a replay: not evicted, and it holds back every segment.

    It does so until all appenders have begun where they are to. A later replay is kept.
    """
    if group.replay is not None and group.replay.id >= asked.id:
        return group
    return replace(
        group,
        state=State.ACTIVE,
        evicted=None,
        cursors={},
        since_ms=asked.asked_ms,
        replay=asked,
    )


def lowest_from(text: str, *, now_ms: int, field: str) -> str:
    """The lowest ULID of a time, in any form, or the ULID itself. Raises `InvalidInput`."""
    try:
        return ulid.encode(ulid.decode(text.strip().upper()))
    except InvalidInput:
        return ulid.encode(ulid.lowest_at(parse_moment(text, now_ms=now_ms, field=field)))


async def ask_for_replay(
    store: ObjectStore, pipeline: str, asked: Replay, *, fresh_id: Callable[[], str]
) -> Group:
    """Has the pipeline go on elsewhere; returns its group.

    Raises `NotFound` for a pipeline that never ran, `StoreUnavailable`, `OutcomeUnknown`,
    `Damaged`.
    """
    name = pipeline_group(pipeline)
    group = await change_group(store, name, lambda found: replayed(found, asked), fresh_id=fresh_id)
    if group is None:
        raise NotFound(
            f"no pipeline {pipeline!r} has run on this store",
            hint="A pipeline is known once a process has begun to run it.",
        )
    return group


async def read_control(store: ObjectStore, pipeline: str) -> Control:
    """What is said about a pipeline. Raises `StoreUnavailable`, `Damaged`."""
    found = await _document(store, pipeline).read()
    return Control(pipeline) if found is None else found.value


async def change_control(
    store: ObjectStore,
    pipeline: str,
    change: Callable[[Control], Control],
    *,
    fresh_id: Callable[[], str],
) -> Control:
    """What is said after `change`. Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`."""

    async def changed(found: Control | None) -> Control | None:
        before = found or Control(pipeline)
        wanted = change(before)
        return None if wanted == before else replace(wanted, version=fresh_id())

    stored = await swap(_document(store, pipeline), changed)
    return Control(pipeline) if stored is None else stored.value


def _document(store: ObjectStore, pipeline: str) -> Document[Control]:
    key = keys.pipeline_control(pipeline)
    return Document(store, key, partial(decode_control, key), encode_control)


def encode_control(control: Control) -> bytes:
    """The bytes of what is said about a pipeline."""
    disabled, failing = (
        {name: {"at": at, "reason": why} for name, (at, why) in some.items()}
        for some in (control.disabled, control.failing)
    )
    return encode_checked(
        {
            "format": _FORMAT,
            "pipeline": control.pipeline,
            "paused": control.paused,
            "disabled": disabled,
            "failing": failing,
            "version": control.version,
        }
        | ({"over_http": True} if control.over_http else {})
        | ({"redeliver": dict(control.redeliver)} if control.redeliver else {})
    )


def decode_control(where: str, body: bytes) -> Control:
    """What `body` says about a pipeline. Raises `Damaged`, `UnsupportedVersion`."""
    try:
        value = decode_checked(body)
        if int(value["format"]) > _FORMAT:
            raise UnsupportedVersion(f"{where} has format {value['format']}")
        disabled, failing = (
            {
                str(name): Disabled(int(one["at"]), str(one["reason"]))
                for name, one in value.get(key, {}).items()
            }
            for key in ("disabled", "failing")
        )
        return Control(
            str(value["pipeline"]),
            bool(value["paused"]),
            disabled,
            value["version"],
            failing,
            bool(value.get("over_http", False)),
            {str(name): str(one) for name, one in value.get("redeliver", {}).items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{where} does not say how a pipeline stands: {error}") from error
