"""A metrics server for Prometheus and probes, for a program without an HTTP API of its own.

    GET /metrics         the samples, also at every other path
    GET /health/live     200 as long as the program is not stuck, else 503
    GET /health/ready    200 if it does its work, else 503

Health answers are JSON: `{"status": "ok" | "failing", "problems": [...]}`. A thread of its own
answers; it reads plain integers on the objects of the parts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, make_server

import orjson
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app
from prometheus_client.registry import Collector

from tailrace.logstore.errors import InvalidInput

Reading: TypeAlias = float | Mapping[str, float] | Mapping[tuple[str, ...], float]
"""A value, or values by the value of the label, or by those of the labels."""
Kind: TypeAlias = Literal["counter", "gauge"]
Source = TypeVar("Source")
_LISTEN_HINT = "Use host:port, such as 127.0.0.1:8791, that no other program has."


class Declared(NamedTuple, Generic[Source]):
    """A metric: `read` gives a value, or values by those of its labels."""

    name: str
    kind: Kind
    help: str
    read: Callable[[Source], Reading]
    labels: tuple[str, ...] = ()

    def family(self, source: Source) -> Metric:
        """Its samples, as they are now."""
        return family(self.name, self.kind, self.help, self.labels, self.read(source))


class _Renamed(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def alias(self) -> str: ...

    def _replace(self, *, name: str, help: str, alias: str) -> Self: ...  # noqa: A002


Renamed = TypeVar("Renamed", bound=_Renamed)


def under_alias(metric: Renamed) -> Renamed:
    """The same metric under the name that it had in the version before."""
    text = f"Alias of `{metric.name}`, until the next version."
    return metric._replace(name=metric.alias, help=text, alias="")


@dataclass(frozen=True, slots=True)
class ProgramHealth:
    """Whether the program lives and does its work, and what is wrong with it."""

    live: bool = True
    ready: bool = True
    problems: Sequence[str] = ()


def family(name: str, kind: Kind, text: str, labels: Sequence[str], reading: Reading) -> Metric:
    """The samples of one metric, whose name comes without `_total`."""
    of_kind = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    made = of_kind(name, text, labels=list(labels))
    values: Mapping[Any, float] = reading if isinstance(reading, Mapping) else {(): reading}
    for label, value in values.items():
        made.add_metric([label] if isinstance(label, str) else list(label), float(value))
    return made


class _Collector(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        yield from self._collect()

    def describe(self) -> list[Metric]:
        return []


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base names it so
        """A probe a second is not worth a line."""


def serve(
    listen: str,
    collect: Callable[[], Iterable[Metric]],
    health: Callable[[], ProgramHealth] = ProgramHealth,
    *,
    key: str = "metrics.listen",
) -> Callable[[], None]:
    """Answers at `host:port` until the function that it gives is called.

    Raises `InvalidInput`, which names the setting `key`, for an address that it cannot listen on.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) >= 1 << 16:
        raise InvalidInput(f"{key}: {listen!r} is not an address", hint=_LISTEN_HINT)
    registry = CollectorRegistry()
    registry.register(_Collector(collect))
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            found: Iterable[bytes] = metrics(environ, start)
            return found
        if path not in ("/health/live", "/health/ready"):
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"There are /metrics, /health/live and /health/ready.\n"]
        state = health()
        good = state.live if path == "/health/live" else state.live and state.ready
        status = "200 OK" if good else "503 Service Unavailable"
        start(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        body = {"status": "ok" if good else "failing", "problems": list(state.problems)}
        return [orjson.dumps(body)]

    try:
        server = make_server(
            host.strip("[]"), int(port), answer, _server(host), handler_class=_Quiet
        )
    except OSError as error:
        raise InvalidInput(
            f"{key}: {listen} cannot be used: {error.strerror or error}", hint=_LISTEN_HINT
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _server(host: str) -> type[ThreadingWSGIServer]:
    import socket

    class Server(ThreadingWSGIServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    return Server
