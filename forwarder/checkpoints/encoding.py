"""A file's state as a line of JSON.

    {"id": "…", "source": "…", "path": "…", "fingerprint": "<base64>",
     "window": [offset, length, xxh3], "device": 1, "inode": 2, "size": 3, "seen_ms": 4,
     "cursor": [offset, records, header or null, pieces of a long entry before it],
     "prepared": [{"batch": "<ULID>", "start": <cursor>, "end": <cursor>, "digest": <xxh3>,
                   "content": <xxh3 of the range's bytes>, "path": "…", "attributes": {…},
                   "fqn": "…", "run": "…"}, …],
     "fqn": "…", "run": "…", "stage": "open", "lost": 0,
     "written_ns": 5, "stored_size": 6, "archives": true, "named": "…",
     "copies": [[offset, xxh3], …], "recent": [offset, "<base64>"], "cut": [offset, length, xxh3]}
    {"forget": "<id>"}

The fields from `written_ns` on are left out where they have their default.

`fingerprint` is left out where an earlier line of the same log file has it for this id already.
Names of files that are no UTF-8 have surrogates, as `os.fsdecode` makes them, in ASCII escapes.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from forwarder.model import Cursor, FileFacts, FileState, Prepared, Stage

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_NUMBERS = ("device", "inode", "size", "seen_ms", "lost")
_TEXTS = ("id", "source", "path", "fqn", "run")
_STAGES = get_args(Stage)


@dataclass(frozen=True, slots=True)
class Forget:
    """The file of this id is known no longer."""

    id: str


def encode(state: FileState, *, with_fingerprint: bool) -> bytes:
    """The line of a state, with its end."""
    value: dict[str, Any] = {name: getattr(state, name) for name in (*_TEXTS, *_NUMBERS)}
    if with_fingerprint:
        value["fingerprint"] = _to_base64(state.fingerprint)
    value["window"] = state.window
    value["stage"] = state.stage
    value["cursor"] = _cursor(state.cursor)
    value["prepared"] = [_prepared(batch) for batch in state.prepared]
    if state.written_ns:
        value["written_ns"] = state.written_ns
    if state.stored_size:
        value["stored_size"] = state.stored_size
    if state.archives:
        value["archives"] = True
    if state.named:
        value["named"] = state.named
    if state.copies:
        value["copies"] = state.copies
    if state.recent[1]:
        value["recent"] = [state.recent[0], _to_base64(state.recent[1])]
    if state.cut[1]:
        value["cut"] = state.cut
    return _encode(value).encode("ascii") + b"\n"


def encode_forget(file_id: str) -> bytes:
    """The line that says that a file is forgotten."""
    return _encode({"forget": file_id}).encode("ascii") + b"\n"


def decode(line: bytes, known: Mapping[str, FileState]) -> FileState | Forget:
    """What a line says; `known` are the states before it.

    Raises `ValueError` for a line that this program does not write, and one whose state has its
    fingerprint in a line that is missing.
    """
    try:
        value = json.loads(line)
        if "forget" in value:
            return Forget(_text(value["forget"]))
        plain: dict[str, Any] = {name: _text(value.pop(name)) for name in _TEXTS}
        plain |= {name: _number(value.pop(name)) for name in _NUMBERS}
        recent_end, recent = value.pop("recent", (0, ""))
        state = FileState(
            **plain,
            fingerprint=_fingerprint(value.pop("fingerprint", None), known.get(plain["id"])),
            window=_window(value.pop("window")),
            cursor=_to_cursor(value.pop("cursor")),
            stage=_stage(value.pop("stage")),
            prepared=tuple([_to_prepared(batch) for batch in value.pop("prepared")]),
            written_ns=_number(value.pop("written_ns", 0)),
            stored_size=_number(value.pop("stored_size", 0)),
            archives=_flag(value.pop("archives", False)),
            named=_text(value.pop("named", "")),
            copies=tuple([(_number(end), _number(xxh3)) for end, xxh3 in value.pop("copies", ())]),
            recent=(_number(recent_end), _from_base64(recent)),
            cut=_window(value.pop("cut", (0, 0, 0))),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a state is not as this program writes it: {error!r}") from error
    if value:
        raise ValueError(f"a state has the unknown field {next(iter(value))!r}")
    return state


def _fingerprint(text: str | None, known: FileState | None) -> bytes:
    if text is not None:
        return _from_base64(text)
    if known is None:
        raise ValueError("the line with a file's fingerprint is missing")
    return known.fingerprint


def _to_base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _from_base64(text: str) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)


def _window(value: Any) -> tuple[int, int, int]:
    offset, length, digest = map(_number, value)
    return offset, length, digest


def _cursor(cursor: Cursor) -> list[Any]:
    header = None if cursor.header is None else dict(cursor.header)
    return [cursor.offset, cursor.records, header, cursor.inside]


def _to_cursor(value: Any) -> Cursor:
    offset, records, header, inside = value
    attributes = None if header is None else _mapping(header)
    return Cursor(_number(offset), _number(records), attributes, _number(inside))


def _prepared(batch: Prepared) -> dict[str, Any]:
    return {
        "batch": batch.batch,
        "start": _cursor(batch.start),
        "end": _cursor(batch.end),
        "digest": batch.digest,
        "content": batch.content,
        "path": batch.facts.path,
        "attributes": dict(batch.facts.attributes),
        "fqn": batch.fqn,
        "run": batch.run,
        "read_ms": batch.read_ms,
        "given": int(batch.given),
    }


def _to_prepared(value: Any) -> Prepared:
    return Prepared(
        batch=_text(value["batch"]),
        start=_to_cursor(value["start"]),
        end=_to_cursor(value["end"]),
        digest=_number(value["digest"]),
        content=_number(value["content"]),
        facts=FileFacts(_text(value["path"]), _mapping(value["attributes"])),
        fqn=_text(value["fqn"]),
        run=_text(value["run"]),
        # Both are absent in the log of an earlier version.
        read_ms=_number(value.get("read_ms", 0)),
        given=bool(_number(value.get("given", 0))),
    )


def _stage(value: Any) -> Stage:
    if value not in _STAGES:
        raise TypeError(f"{value!r} is no stage")
    return cast(Stage, value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no number")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _mapping(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no mapping")
    return {_text(name): _text(text) for name, text in value.items()}
