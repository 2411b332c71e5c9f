"""Receives documents by Elasticsearch's `_bulk`, and answers what its clients ask at their start.

    POST /_bulk, /{index}/_bulk       and the same below /elasticsearch
    GET  /, /_license, /_xpack, /_cluster/health, /_nodes, …   constant answers
    HEAD, GET, PUT  /_index_template/{name}, /_ilm/policy/{name}, …   accepted, and not used

`/` is the page for people; it is Elasticsearch's answer for a client that accepts JSON and no HTML,
and below `/elasticsearch` for everybody.

A document is a record: `message` (or `log`, `msg`) is its text, `@timestamp` its time, and a key of
`tailrace.logstore.segments.levels` its level. Inner objects become attributes with dotted names,
arrays are JSON. A document without a message is its own text. The pipeline is the index, without a
date at its end, unless the document has attributes of `doors.pipeline`. `_index` and `_id` are
attributes.

`_id` makes a document idempotent for `doors.repeat_seconds` at one node:

| the action | the same document | another one with this id |
| --- | --- | --- |
| `index` | 200, `noop` | 409: a record is never changed |
| `create` | 409, as Elasticsearch answers | 409 |

Each item has its own status. One that cannot be stored now is 429, which clients send again.
`update` and `delete` are refused, item by item. A body that does not end with a newline was cut,
and is refused whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import orjson
import xxhash

from service.doors.door import (
    RETRYABLE,
    Door,
    DoorRequest,
    Headers,
    Outcome,
    Reply,
    message_of,
    status_of,
)
from service.doors.records import (
    MOST_DEPTH,
    Attributes,
    DoorRecords,
    Place,
    RecordSorter,
    RunRecords,
    RunRule,
    level_of,
    time_of,
    value_text,
)
from service.doors.repeats import Known, Recent, Storing, error_of, failed
from service.doors.wire import MOST_FIELD
from service.http.body import Bounds
from service.http.errors import HttpError
from service.http.json_body import SMALL, NotJson, line_windows, parse, structure
from tailrace.logstore import ulid as ulids
from tailrace.logstore.errors import InvalidInput, TooLarge
from tailrace.logstore.segments.levels import LEVEL_KEYS

PREFIX: Final = "/elasticsearch"
VERSION: Final = "8.19.0"
_PRODUCT: Final = (b"x-elastic-product", b"Elasticsearch")
_JSON: Final = b"application/json"
_COMPATIBLE: Final = re.compile(rb"application/vnd\.elasticsearch\+json;\s*compatible-with=\d+")
_BULK: Final = re.compile(r"/(?:([^/_][^/]*)/)?_bulk")
_TEMPLATES: Final = re.compile(
    r"/_(?:index_template|component_template|template|ilm/policy|ingest/pipeline|data_stream)"
    r"(?:/[^/]+)?"
)
_DATE: Final = re.compile(r"[-_.]\d{4}[-_.]\d{2}(?:[-_.]\d{2})?(?:-\d{6})?\Z")
_MESSAGES: Final = ("message", "log", "msg")
_TIME: Final = "@timestamp"
_LEVELS: Final = frozenset(LEVEL_KEYS)
_FINE: Final = re.compile(r"\.\d{6}\d*[1-9]")
_ACTIONS: Final = ("create", "index", "update", "delete")
_MOST_ITEMS: Final = 100_000
_MOST_NAMED: Final = 20_000
"""Items with an id: the event loop looks at each of them."""
_RESULT_BYTES: Final = 200
_MOST_HELD: Final = 256
"""Records that are held as objects before the sorter gets them."""
_RESULTS: Final = 1024
"""Results that are objects at the same time."""
_MOST_IN_DOCUMENT: Final = 20_000
_LONGEST_ID: Final = 512
_CLUSTER: Final = "tailrace"
_UUID: Final = "tailrace-0000000000000"
_CONFLICT: Final = "version_conflict_engine_exception"

_CONSTANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "/": {
        "name": _CLUSTER,
        "cluster_name": _CLUSTER,
        "cluster_uuid": _UUID,
        "version": {
            "number": VERSION,
            "build_flavor": "default",
            "build_type": "tar",
            "build_hash": "0" * 40,
            "build_date": "2025-01-01T00:00:00.000000000Z",
            "build_snapshot": False,
            "lucene_version": "9.12.2",
            "minimum_wire_compatibility_version": "7.17.0",
            "minimum_index_compatibility_version": "7.0.0",
        },
        "tagline": "You Know, for Search",
    },
    "/_license": {
        "license": {
            "status": "active",
            "uid": _UUID,
            "type": "basic",
            "issued_to": _CLUSTER,
            "issuer": _CLUSTER,
        }
    },
    "/_xpack": {
        "build": {"hash": "0" * 40, "date": "2025-01-01T00:00:00.000Z"},
        "license": {"uid": _UUID, "type": "basic", "mode": "basic", "status": "active"},
        "features": {"ilm": {"available": True, "enabled": True}},
    },
    "/_cluster/health": {
        "cluster_name": _CLUSTER,
        "status": "green",
        "timed_out": False,
        "number_of_nodes": 1,
        "number_of_data_nodes": 1,
    },
    "/_nodes": {"cluster_name": _CLUSTER, "nodes": {}},
    "/_nodes/http": {"cluster_name": _CLUSTER, "nodes": {}},
    "/_nodes/_all/http": {"cluster_name": _CLUSTER, "nodes": {}},
}


@dataclass(slots=True)
class _Item:
    """One action of a bulk request; `record` is its number among the records, if it has one."""

    action: str
    index: str
    id: str = ""
    record: int = -1
    error: Exception | None = None
    name: bytes = b""
    digest: int = 0
    known: Known | None = None
    first: int = -1
    """The item of the same request that has its id."""


@dataclass(slots=True)
class _Bulk:
    """The items of a request, and the appends that store them."""

    items: list[_Item] = field(default_factory=list)
    named: dict[bytes, int] = field(default_factory=dict)
    """The item of each id, by the digest of pipeline, index and id."""
    reply_bytes: int = 0


class ElasticsearchDoor(Door):
    """The door of Elasticsearch's clients; `ids` are the documents that have one."""

    name = "elasticsearch"

    def __init__(self, rule: RunRule, ids: Recent[Known]) -> None:
        self._rule = rule
        self._ids = ids

    def path_of(self, method: str, path: str) -> str | None:
        below = _without_prefix(path)
        if method in ("POST", "PUT"):
            found = _BULK.fullmatch(below)
            if found is not None:
                return "/{index}/_bulk" if found[1] else "/_bulk"
        if method in ("GET", "HEAD") and below in _CONSTANTS:
            return below if below == path or below != "/" else PREFIX
        asks = method in ("GET", "HEAD", "POST", "PUT") and _TEMPLATES.fullmatch(below)
        return "/_index_template/{name}" if asks else None

    def probe(self, request: DoorRequest) -> Reply | None:
        below = _without_prefix(request.path)
        if below == "/" and request.path == "/" and not _wants_json(request):
            return None
        if request.method in ("GET", "HEAD") and below in _CONSTANTS:
            return _answer(request, 200, _CONSTANTS[below])
        if _TEMPLATES.fullmatch(below):
            return _answer(request, 200, {"acknowledged": True})
        return None

    def decode(self, request: DoorRequest, bounds: Bounds, now: int) -> DoorRecords:
        found = _BULK.fullmatch(_without_prefix(request.path))
        index = "" if found is None else found[1] or ""
        _check_type(request)
        body = request.body
        if not body.endswith(b"\n"):
            raise InvalidInput(
                "The bulk request must be terminated by a newline [\\n]",
                field="body",
                hint="Check that it arrived whole.",
            )
        reader = _BulkReader(RecordSorter(bounds, now), self._rule, self._ids, index)
        reader.read(body, bounds)
        records = reader.sorter.records(reader.bulk)
        records.reply_bytes = reader.bulk.reply_bytes
        return records

    def stale(self, records: DoorRecords) -> bool:
        bulk: _Bulk = records.items
        return any(self._ids.get(name) is not None for name in bulk.named)

    def begun(
        self, records: DoorRecords, storing: Sequence[tuple[RunRecords, Storing]]
    ) -> Collection[Storing]:
        bulk: _Bulk = records.items
        if bulk.named:
            item_of = {bulk.items[number].record: number for number in bulk.named.values()}
            for run, task in storing:
                documents = []
                for place in run.places:
                    if place in item_of:
                        item = bulk.items[item_of[place]]
                        documents.append((item.name, Known(task, item.digest)))
                        self._ids.put(*documents[-1])
                task.add_done_callback(partial(self._forget, documents))
        return {item.known.storing for item in bulk.items if item.known is not None}

    def _forget(self, documents: Sequence[tuple[bytes, Known]], task: Storing) -> None:
        """Forgets documents that were refused."""
        if failed(task):
            for name, known in documents:
                self._ids.drop(name, known)

    def reply(self, request: DoorRequest, records: DoorRecords, outcome: Outcome) -> Reply:
        bulk: _Bulk = records.items
        ids: dict[int, str] = {}
        for run, receipt in outcome.receipts:
            texts = ulids.encode_many(receipt.ulid, len(run.places))
            ids.update(zip(run.places, texts, strict=True))
        errors = {place: error for places, error in outcome.refused for place in places}
        wrong = False
        pieces: list[bytes] = []
        for first in range(0, len(bulk.items), _RESULTS):
            some = bulk.items[first : first + _RESULTS]
            usual = None if errors else _usual_results(some, ids)
            if usual is None:
                answers = [_result(bulk, item, ids, errors) for item in some]
                wrong = wrong or any("error" in said for each in answers for said in each.values())
                usual = orjson.dumps(answers)[1:-1]
            pieces.append(usual)
        reply = _answer(request, 200, {"took": 0, "errors": wrong, "items": []})
        return reply._replace(body=b"%b[%b]}" % (reply.body[: -len("[]}")], b",".join(pieces)))

    def refusal(self, request: DoorRequest, status: int, error: BaseException) -> Reply:
        said = {"type": _type_of(status), "reason": message_of(error)}
        value = {"error": {"root_cause": [said], **said}, "status": status}
        return _answer(request, status, value)


def _without_prefix(path: str) -> str:
    if path == PREFIX or path.startswith(PREFIX + "/"):
        return path[len(PREFIX) :] or "/"
    return path


def _wants_json(request: DoorRequest) -> bool:
    accept = request.header(b"accept") or b""
    return b"json" in accept and b"html" not in accept


def _check_type(request: DoorRequest) -> None:
    kind = (request.header(b"content-type") or b"json").lower()
    if b"json" not in kind:
        raise HttpError(
            415,
            f"Content-Type {kind.decode('latin-1')[:100]!r} is not taken",
            hint="Send application/x-ndjson.",
        )


def _answer(request: DoorRequest, status: int, value: Mapping[str, Any]) -> Reply:
    found = _COMPATIBLE.search(request.header(b"accept") or b"")
    headers: Headers = [(b"content-type", found[0] if found else _JSON), _PRODUCT]
    return Reply(status, headers, orjson.dumps(value))


def _type_of(status: int) -> str:
    if status in RETRYABLE:
        return "es_rejected_execution_exception"
    if status in (401, 403):
        return "security_exception"
    return "illegal_argument_exception" if status < 500 else "exception"


def _usual_results(items: Sequence[_Item], ids: Mapping[int, str]) -> bytes | None:
    """Returns the results of documents without an id that were stored; None if one is another."""
    shared: dict[tuple[str, str], tuple[str, str]] = {}
    pieces: list[str] = []
    for item in items:
        if item.error is not None or item.id or item.record < 0:
            return None
        kind = item.action, item.index
        if kind not in shared:
            before, _, after = orjson.dumps(_created(*kind, "\0")).decode().rpartition("\\u0000")
            shared[kind] = before, after
        before, after = shared[kind]
        pieces += (before, ids[item.record], after)
        pieces.append(",")
    return "".join(pieces[:-1]).encode("utf-8", "replace")


def _created(action: str, index: str, name: str) -> dict[str, Any]:
    return {action: {"_index": index, "_id": name, **_DONE, "result": "created", "status": 201}}


def _result(
    bulk: _Bulk, item: _Item, ids: Mapping[int, str], errors: Mapping[int, Exception]
) -> dict[str, Any]:
    """Returns the result of one item."""
    error = item.error or errors.get(item.record)
    first = bulk.items[item.first] if item.first >= 0 else None
    digest = item.known.digest if item.known else first.digest if first else item.digest
    if first is not None:
        error = error or errors.get(first.record)
    if item.known is not None:
        error = error or error_of(item.known.storing)
    said: dict[str, Any] = {"_index": item.index, "_id": item.id or None}
    if error is not None:
        status = status_of(error)
        status = 429 if status in RETRYABLE else status
        reason = {"type": _type_of(status), "reason": message_of(error)}
        return {item.action: {**said, "status": status, "error": reason}}
    if item.record >= 0:
        return _created(item.action, item.index, item.id or ids[item.record])
    if item.action == "index" and digest == item.digest:
        return {item.action: {**said, **_DONE, "result": "noop", "status": 200}}
    reason = {
        "type": _CONFLICT,
        "reason": f"[{item.id}]: version conflict, document already exists; a record never changes",
    }
    return {item.action: {**said, "status": 409, "error": reason}}


_SHARDS: Final = {"total": 1, "successful": 1, "failed": 0}
_DONE: Final = {"_version": 1, "_seq_no": 0, "_primary_term": 1, "_shards": _SHARDS}


@dataclass(slots=True)
class _HeldRecords:
    """Records of one place that follow one another; all of them have a time, or none has."""

    place: Place
    timed: bool
    texts: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    levels: list[str | None] = field(default_factory=list)
    attributes: list[Attributes] = field(default_factory=list)


class _BulkReader:
    """Reads the lines of a bulk request."""

    def __init__(self, sorter: RecordSorter, rule: RunRule, ids: Recent[Known], index: str) -> None:
        self.sorter = sorter
        self.bulk = _Bulk()
        self._rule = rule
        self._ids = ids
        self._index = index
        self._places: dict[str, Place] = {}
        self._held: _HeldRecords | None = None
        self._last_line = b""
        self._last: _Item | None = None

    def read(self, body: bytes, bounds: Bounds) -> None:
        """Reads all items. Raises `InvalidInput` for a line that is no action, `TooLarge`."""
        lines = (line for window in line_windows(body) for line in window[:-1].split(b"\n"))
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            if len(self.bulk.items) >= _MOST_ITEMS:
                raise TooLarge(f"a request has more than {_MOST_ITEMS} items", field="body")
            if number % 1024 == 0:
                bounds.go_on()
            item = self._same_action(line) or self._action(line, number + 1)
            self.bulk.items.append(item)
            self.bulk.reply_bytes += _RESULT_BYTES + 2 * (len(item.index) + len(item.id))
            if item.action == "delete":
                item.error = _refused_action(item.action)
                continue
            document = next(lines, b"")
            if item.action == "update":
                item.error = _refused_action(item.action)
            elif item.error is None:
                self._document(item, document)
        self._give()

    def _same_action(self, line: bytes) -> _Item | None:
        """Returns an item for an action without an id that stood before the last document, too."""
        last = self._last
        if line != self._last_line or last is None or last.id or last.error is not None:
            return None
        return _Item(last.action, last.index)

    def _action(self, line: bytes, number: int) -> _Item:
        try:
            value = orjson.loads(line) if len(line) <= SMALL else None
        except orjson.JSONDecodeError:
            value = None
        if isinstance(value, dict) and len(value) == 1:
            [(action, said)] = value.items()
            if action in _ACTIONS and isinstance(said, dict):
                item = self._item(action, said)
                self._last_line, self._last = (
                    line,
                    _Item(action, item.index, item.id, -1, item.error),
                )
                return item
        raise InvalidInput(
            f"Malformed action/metadata line [{number}]",
            field="body",
            hint='Each document follows a line such as {"create": {"_index": "name"}}.',
        )

    def _item(self, action: str, said: Mapping[str, Any]) -> _Item:
        index, given = said.get("_index", self._index), said.get("_id")
        if isinstance(given, int) and not isinstance(given, bool):
            given = str(given)
        item = _Item(action, index if isinstance(index, str) else "")
        if not item.index:
            item.error = InvalidInput("index is missing", field="_index")
        elif given is not None and not (isinstance(given, str) and 0 < len(given) <= _LONGEST_ID):
            item.error = InvalidInput(
                f"_id is not a string of 1 to {_LONGEST_ID} characters", field="_id"
            )
        else:
            item.id = given or ""
        return item

    def _document(self, item: _Item, line: bytes) -> None:
        try:
            document = _parsed(line)
            self._add(item, document, line)
        except TooLarge:
            raise
        except InvalidInput as error:
            # Without its traceback, which would hold the document and its parts.
            item.error = InvalidInput(str(error), field=error.field, hint=error.hint)

    def _add(self, item: _Item, document: dict[str, Any], line: bytes) -> None:
        name = next((n for n in _MESSAGES if isinstance(document.get(n), str)), "")
        stamp = document.get(_TIME)
        time = time_of(stamp)
        attributes: Attributes = {}
        _flatten(document, "", attributes, 0)
        level = None
        if not _LEVELS.isdisjoint(attributes):
            level = next((f for k in LEVEL_KEYS if (f := level_of(attributes.get(k)))), None)
        place = self._place_of(item.index, attributes)
        if item.id and not self._claim(item, place.fqn, line):
            return
        if not name:
            text, attributes = line.decode("utf-8", "replace").strip(), {}
        else:
            text = document[name]
            attributes.pop(name, None)
            if isinstance(stamp, int) or not _FINE.search(attributes.get(_TIME, "")):
                attributes.pop(_TIME, None)
        attributes["_index"] = item.index
        if item.id:
            attributes["_id"] = item.id
        self._take(item, place, text, time, level, attributes)

    def _place_of(self, index: str, attributes: Attributes) -> Place:
        if not self._rule.names.isdisjoint(attributes):
            return self._rule.place(attributes, _pipeline_of(index))
        found = self._places.get(index)
        if found is None:
            found = self._places[index] = self._rule.place({}, _pipeline_of(index))
        return found

    def _take(
        self,
        item: _Item,
        place: Place,
        text: str,
        time: int | None,
        level: str | None,
        attributes: Attributes,
    ) -> None:
        """Holds a record until the next one is of another place, or there are enough of them."""
        held = self._held
        if held is None or held.place != place or held.timed != (time is not None):
            self._give()
            held = self._held = _HeldRecords(place, time is not None)
        try:
            held.texts.append(text.encode())
        except UnicodeEncodeError:
            self._give()
            item.record = self.sorter.count
            self.sorter.add(place, text, time, level, attributes)
            return
        held.times.append(time or 0)
        held.levels.append(level)
        held.attributes.append(attributes)
        item.record = self.sorter.count + len(held.texts) - 1
        if len(held.texts) >= _MOST_HELD:
            self._give()

    def _give(self) -> None:
        """Gives the sorter the records that are held."""
        held, self._held = self._held, None
        if held is not None and held.texts:
            times = held.times if held.timed else None
            self.sorter.add_all(held.place, held.texts, times, held.levels, held.attributes)

    def _claim(self, item: _Item, fqn: str, line: bytes) -> bool:
        """Returns true if no document with this id is known."""
        # No cheaper hash: a client must not be able to make a document look like another's.
        parts = (fqn, item.index, item.id)
        named = b"\0".join(part.encode("utf-8", "surrogatepass") for part in parts)
        item.name = hashlib.blake2b(named, digest_size=16).digest()
        item.digest = xxhash.xxh3_64_intdigest(line.strip())
        item.known = self._ids.peek(item.name)
        if item.known is not None:
            return False
        first = self.bulk.named.setdefault(item.name, len(self.bulk.items) - 1)
        if len(self.bulk.named) > _MOST_NAMED:
            raise TooLarge(f"a request has more than {_MOST_NAMED} items with an id", field="body")
        if self.bulk.items[first] is not item:
            item.first = first
            return False
        return True


def _pipeline_of(index: str) -> str:
    return _DATE.sub("", index) or index


def _refused_action(action: str) -> InvalidInput:
    return InvalidInput(f"{action} is not taken: a record never changes", field="body")


def _parsed(line: bytes) -> dict[str, Any]:
    if len(line) > MOST_FIELD:
        raise InvalidInput(f"a document has more than {MOST_FIELD} bytes", field="body")
    if len(line) > SMALL and structure(line) > _MOST_IN_DOCUMENT:
        raise InvalidInput(f"a document has more than {_MOST_IN_DOCUMENT} values", field="body")
    try:
        value, _ = parse(line)
    except NotJson as error:
        raise InvalidInput(f"failed to parse: {error}", field="body") from error
    if not isinstance(value, dict):
        raise InvalidInput("failed to parse: a document is an object", field="body")
    return value


def _flatten(value: Mapping[str, Any], prefix: str, found: Attributes, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise InvalidInput(f"a document is nested more than {MOST_DEPTH} deep", field="body")
    for name, item in value.items():
        if type(item) is str:
            found[prefix + name] = item
        elif isinstance(item, dict):
            _flatten(item, f"{prefix}{name}.", found, depth + 1)
        elif item is not None:
            found[prefix + name] = value_text(item)
