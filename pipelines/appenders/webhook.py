"""`webhook`: posts events as they come, as lines of JSON or a JSON array.

    type: webhook
    url: https://hooks.example.org/logs
    headers: {Authorization: "Bearer ${TOKEN}"}

An answer of 200 to 299 is taken for received, and one of 400, 404, 413 or 422 for a refusal that
lasts: the events that are meant are found and refused one by one. It cannot go back: after a crash
or a lost answer the events behind the last checkpoint are posted again. Each has its `ulid`, which
with `fqn` and `run` says that it is the same.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import pyarrow as pa

from pipelines.appenders.contract import AppenderFailed, Context, State
from pipelines.appenders.http import HttpSettings, Poster, deliver
from pipelines.appenders.otlp import split
from pipelines.definition.section import Bytes, Section, key
from pipelines.layouts import Json


class WebhookSettings(HttpSettings):
    """Where events go, and how many at once."""

    format: Literal["ndjson", "json"] = key("ndjson", "an object a line, or an array of them")
    max_events: int = key(500, "events in a request", ge=1)
    max_request_size: Bytes = key(1 << 20, "bytes of messages in a request; one always may")


class Webhook:
    """Posts events."""

    settings: ClassVar[type[Section]] = WebhookSettings

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._poster = Poster(settings)
        self._context: Context | None = None

    def start(self, context: Context, state: State | None) -> None:  # noqa: ARG002 -- no state
        self._context = context

    def append(self, events: pa.Table) -> None:
        if self._context is None:
            raise AppenderFailed("the appender was not started")
        for some in split(events, self._settings.max_events, self._settings.max_request_size):
            deliver(some, self._post, self._context.refuse)

    def sync(self) -> State:
        return {}

    def saved(self) -> None:
        """Nothing is to be done."""

    def stop(self) -> None:
        """Nothing is to be done."""

    def _post(self, events: pa.Table) -> None:
        assert self._context is not None
        if not self._context.holds():
            raise AppenderFailed("the lease is over")
        texts = Json().lines(events).to_pylist()
        if self._settings.format == "ndjson":
            body, kind = "".join(texts), "application/x-ndjson"
        else:
            body, kind = f"[{','.join([text.rstrip() for text in texts])}]", "application/json"
        headers = {"Content-Type": kind, "Tailrace-Pipeline": self._context.pipeline}
        self._poster.post(body.encode(), headers)
