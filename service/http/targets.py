"""Parses the names and ids of a request: pipelines and runs, parameters, ULIDs, cookies.

A path is parsed from the right, because real clients do not quote names. OpenMetadata's client puts
the pipeline's name into the URL as it is. A `/` in it arrives as more path segments, everything
else percent-encoded. The run id is therefore the last segment before the verb, and everything
before it is the name:

    /api/v1/services/ingestionPipelines/logs/<anything>/<run>[/close]

A component is decoded only after the split, so a quoted `/` never splits. A run may have the name
of a verb (`close`, `last`): then its name is quoted, `%63lose`. Unquoted it is refused on all
routes, because half of them would take it for the verb. Only `logs` is a verb for readers, after a
name and a run: to read the run `logs` of a pipeline with a `/` in its name, quote that `/`.

Unknown parameters are refused, since they may be typing errors.

The reply to an append sets two cookies, which OpenMetadata's client returns: `PIPELINE_SESSION`, as
upstream names it, and ours:

    tailrace={last ULID}.{16 hex digits: XXH3 of the run's name}

The second half names the run of the ULID, because one client may serve several runs.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

import xxhash
from fastapi import Request

from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import InvalidInput, InvalidName, NotFound
from tailrace.logstore.keys import check_name, check_new_name

ROOT = "/api/v1/services/ingestionPipelines"
BASE = ROOT + "/logs"
PREFIX = BASE.encode() + b"/"
_ROOT = ROOT.encode() + b"/"
_VERBS = (b"download", b"next", b"prev")
_READING = ("GET", "HEAD")
RESERVED = frozenset({"close", "download", "last", "next", "prev", "stream"})


class AppendTarget(NamedTuple):
    """The run that a POST names, and whether the POST closes it."""

    key: RunKey
    close: bool


def append_target(raw_path: bytes) -> AppendTarget:
    """Returns the run of an append or close. Raises `NotFound` (no run id) or `InvalidName`."""
    parts = raw_path[len(PREFIX) :].split(b"/")
    close = parts[-1] == b"close" and len(parts) > 2
    if close:
        parts.pop()
    if len(parts) < 2:
        raise NotFound(
            "the path names no run",
            hint="POST to …/logs/{fqn}/{runId}; a '#' in the name must be sent as %23.",
        )
    _refuse_verb(parts[-1].decode("latin-1"))
    _refuse_stream(parts)
    key = RunKey(name(b"/".join(parts[:-1]), "fqn"), name(parts[-1], "runId"))
    if not close:
        check_new_run(key)
    return AppendTarget(key, close)


def check_new_run(key: RunKey) -> None:
    """Raises `InvalidName` for names that no run or pipeline can begin with."""
    check_new_name(key.fqn, "fqn")
    check_new_name(key.run, "runId")


def run_key(fqn: str, run: str) -> RunKey:
    """Returns the run that two quoted segments of a canonical path name. Raises `InvalidName`."""
    _refuse_verb(run)
    return RunKey(name(fqn.encode(), "fqn"), name(run.encode(), "runId"))


def _refuse_verb(run: str) -> None:
    """Raises `InvalidName` for a run's name that is spelled as a verb."""
    if run in RESERVED:
        quoted = spelled(run)
        raise InvalidName(
            f"{run!r} is a verb of these paths",
            field="runId",
            hint=f"A run that is called so is named as {quoted}.",
        )


def _refuse_stream(parts: list[bytes]) -> None:
    """Raises `InvalidName` for a path that every other method takes for the run's live stream."""
    if len(parts) > 2 and parts[-2] == b"stream":
        raise InvalidName(
            "a path that ends in stream/{runId} is that of a live stream",
            field="fqn",
            hint="A pipeline whose name ends in /stream is named with that / as %2F.",
        )


def name(component: bytes, field: str) -> str:
    """Decodes a path component. Raises `InvalidName`."""
    try:
        text = unquote_to_bytes(component).decode()
    except UnicodeDecodeError as error:
        raise InvalidName(
            f"{field} is not UTF-8", field=field, hint="Percent-encode the name's UTF-8 bytes."
        ) from error
    check_name(text, field)
    return text


def canonical(raw_path: bytes, method: str) -> str:
    """Returns a path below `PREFIX` with each name as one quoted segment, for the router to match.

    Two segments or more that end in no verb name a run. So the runs of a pipeline whose name holds
    a `/` are listed (and deleted) under the name with that `/` quoted.
    """
    parts = raw_path[len(PREFIX) :].split(b"/")
    last = parts[-1]
    if method == "POST":
        names, verb = (parts[:-1], [last]) if last == b"close" and len(parts) > 2 else (parts, [])
        return _joined(names[:-1], [*names[-1:], *verb])
    if len(parts) > 2 and parts[-2] == b"stream":
        return _joined(parts[:-2], parts[-2:])
    if len(parts) > 1 and last == b"last":
        return _joined(parts[:-1], [last])
    if len(parts) > 2 and last == b"download" and parts[-2] == b"last":
        return _joined(parts[:-2], parts[-2:])
    if len(parts) > 2 and (last in _VERBS or (last == b"logs" and method in _READING)):
        return _joined(parts[:-2], parts[-2:])
    return _joined(parts[:-1], [last])


def run_of(method: str, raw_path: bytes) -> bytes | None:
    """Returns the part that all spellings of a run's name share, for paths that name one run."""
    if not raw_path.startswith(PREFIX):
        return None
    fqn, *rest = canonical(raw_path, method)[len(BASE) + 1 :].split("/")
    run = rest[1:2] if rest[:1] == ["stream"] else rest[:1]
    if not run or run[0] == "last":
        return None
    return unquote_to_bytes(fqn) + b"\0" + unquote_to_bytes(run[0])


def canonical_beside(raw_path: bytes) -> str | None:
    """Returns the canonical form of a path next to the logs' prefix; None for any other path.

    …/progress/<anything>/[stream/]<run>    …/metrics/<anything>/<run>
    …/<anything>/pipelineStatus[/<run>]
    """
    if not raw_path.startswith(_ROOT):
        return None
    parts = raw_path[len(_ROOT) :].split(b"/")
    if parts[0] in (b"progress", b"metrics") and len(parts) > 2:
        base = f"{ROOT}/{parts[0].decode()}"
        streams = parts[0] == b"progress" and len(parts) > 3 and parts[-2] == b"stream"
        verb = 2 if streams else 1
        return _joined(parts[1:-verb], parts[-verb:], base)
    for back in (1, 2):
        if len(parts) > back and parts[-back] == b"pipelineStatus":
            return _joined(parts[:-back], parts[-back:], ROOT)
    return None


def _joined(fqn: list[bytes], rest: list[bytes], base: str = BASE) -> str:
    segments = [b"/".join(fqn), *rest] if fqn else rest
    return base + "/" + "/".join(_quoted(segment) for segment in segments)


def _quoted(segment: bytes) -> str:
    quoted = quote(unquote_to_bytes(segment), safe="")
    # A name that came quoted must not become the verb.
    return spelled(quoted) if quoted in RESERVED and segment != quoted.encode() else quoted


def spelled(verb: str) -> str:
    """Quotes a name that is spelled like a verb, as in a path."""
    return f"%{ord(verb[0]):02X}{verb[1:]}"


def refuse_unknown(
    request: Request, known: Iterable[str], *, repeatable: Container[str] = ()
) -> None:
    """Raises `InvalidInput` for a parameter that is not `known`, or that is given twice."""
    names = frozenset(known)
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in names:
            raise InvalidInput(
                f"there is no parameter {name[:80]!r}",
                field=name[:80],
                hint=f"Parameters are {', '.join(sorted(names))}.",
            )
        if name in seen and name not in repeatable:
            raise InvalidInput(f"{name} is given twice", field=name, hint="Give it once.")
        seen.add(name)


def one_of_each(text: str | None, field: str, known: Container[str], hint: str) -> frozenset[str]:
    """Splits words at commas and checks that each is known; none if the text is empty."""
    words = frozenset(word.strip() for word in (text or "").split(",")) - {""}
    for word in sorted(words):
        if word not in known:
            raise InvalidInput(f"there is no {field} {word[:80]!r}", field=field, hint=hint)
    return words


# --- Ids on the wire ----------------------------------------------------------------------------


_COOKIE = b"tailrace="
_ULID_CHARACTERS = 26
# int() parses base 32 in C, but with other digits, and accepts spaces, signs and underscores.
_TO_BASE_32 = bytes(
    b"0123456789abcdefghijklmnopqrstuv"[ulids.ALPHABET.index(chr(c).upper())]
    if chr(c).upper() in ulids.ALPHABET
    else ord("!")
    for c in range(256)
)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


def parse_ulid(text: bytes) -> int:
    """Parses a ULID of 26 bytes. Raises `InvalidInput` with the reason from `ulid.parse`."""
    if len(text) == _ULID_CHARACTERS:
        try:
            value = int(text.translate(_TO_BASE_32), 32)
        except ValueError:
            value = 1 << 128
        if not value >> 128:
            return value
    return int(ulids.parse(text.decode("latin-1")))


def parse_batch_id(text: bytes) -> int:
    """Parses the batch id in `Tailrace-Batch`. Raises `InvalidInput`."""
    try:
        value = parse_ulid(text)
    except InvalidInput as error:
        raise InvalidInput(
            f"Tailrace-Batch: {error}", field="Tailrace-Batch", hint=_BATCH_HINT
        ) from error
    if value & ulids.LINE_MASK:
        raise InvalidInput(
            "Tailrace-Batch: the low 25 bits of a batch id are zero",
            field="Tailrace-Batch",
            hint=_BATCH_HINT,
        )
    return value


def run_tag(key: RunKey) -> bytes:
    """Returns the tag of a run in a cookie."""
    name = f"{len(key.fqn)}:{key.fqn}/{key.run}"
    return xxhash.xxh3_64_hexdigest(name.encode("utf-8", "surrogatepass")).encode()


def session_cookie(key: RunKey) -> bytes:
    """Returns the cookie that upstream sets on every append."""
    fqn = re.sub(r"[^a-zA-Z0-9]", "_", key.fqn)
    run = re.sub(r"[^a-zA-Z0-9-]", "_", key.run)
    return f"PIPELINE_SESSION={fqn}_{run}; Path=/; Max-Age=86400".encode()


def echoed(cookies: bytes, tag: bytes) -> int:
    """Returns the ULID that our cookie carries for the run of `tag`; 0 if it carries none."""
    start = cookies.find(_COOKIE)
    if start < 0:
        return 0
    start += len(_COOKIE)
    end = start + _ULID_CHARACTERS
    if cookies[end + 1 : end + 1 + len(tag)] != tag:
        return 0
    try:
        return parse_ulid(cookies[start:end])
    except InvalidInput:
        return 0  # a made-up cookie is no reason to refuse lines


def request_id(headers: list[tuple[bytes, bytes]], fresh: str) -> str:
    """Returns the client's `X-Request-Id` if it is a plain token, else `fresh`."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode()
    return fresh


_BATCH_HINT = (
    "A batch id is a ULID of 26 characters whose last five are 00000; "
    "leave the header out to let the service choose."
)
