"""Real clients, also behind a proxy that loses replies, and the examples of the documentation."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from elasticsearch import Elasticsearch, helpers
from logging_loki import LokiHandler  # type: ignore[import-untyped]
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

from service.doors.otlp import PATH
from tailrace.logstore.batch import RunKey
from tests.service.doors.decoding import stored
from tests.service.doors.dropping_proxy import dropping
from tests.service.http.conftest import Serve, Served

PAGES = Path(__file__).parents[3] / "docs" / "use"
LINES = [f"line {number}" for number in range(200)]
KEY = RunKey("shop/cart", "42")
RESOURCE = {"service.namespace": "shop", "service.name": "cart", "tailrace.run.id": "42"}


def by_otlp(url: str) -> None:
    provider = LoggerProvider(Resource(RESOURCE))
    exporter = OTLPLogExporter(url + PATH, compression=Compression.Gzip)
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    log = provider.get_logger("cart")
    for line in LINES:
        log.emit(body=line, severity_number=SeverityNumber.WARN)
    provider.shutdown()


def by_loki(url: str) -> None:
    tags = {name.replace(".", "_"): value for name, value in RESOURCE.items()}
    handler = LokiHandler(url=f"{url}/loki/api/v1/push", tags=tags, version="1")
    log = logging.getLogger("tests.doors")
    log.addHandler(handler)
    for line in LINES:
        log.warning(line)
    log.removeHandler(handler)


def by_bulk(url: str, *, ids: bool = True) -> None:
    client = Elasticsearch(url, retry_on_timeout=True, max_retries=5, basic_auth=("any", "token"))
    documents = [
        {
            "_index": "cart",
            "@timestamp": 1_700_000_000_000 + number,
            "message": line,
            "log.level": "warn",
            **RESOURCE,
            **({"_id": str(number)} if ids else {}),
        }
        for number, line in enumerate(LINES)
    ]
    done, _ = helpers.bulk(client, documents, chunk_size=50)
    assert done == len(LINES)
    client.close()


def by_bulk_without_ids(url: str) -> None:
    by_bulk(url, ids=False)


def lines_of(served: Served) -> list[str]:
    records = stored(served)
    assert list(records) == [KEY]
    assert {record["level"] for record in records[KEY]} == {"WARN"}
    return [record["text"].rstrip("\n") for record in records[KEY]]


@pytest.mark.parametrize("send", [by_otlp, by_loki, by_bulk, by_bulk_without_ids])
async def test_what_a_client_sends_is_stored(serve: Serve, send: Callable[[str], None]) -> None:
    served = await serve()
    await asyncio.to_thread(send, served.url)
    assert lines_of(served) == LINES


@pytest.mark.parametrize("send", [by_otlp, by_bulk, by_bulk_without_ids])
async def test_lost_replies_make_no_repeats(serve: Serve, send: Callable[[str], None]) -> None:
    served = await serve()
    async with dropping(served.url, drops=1) as proxy:
        await asyncio.to_thread(send, proxy.url)
        assert proxy.dropped == 1
    assert lines_of(served) == LINES


def examples(page: str, language: str) -> list[str]:
    text = (PAGES / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", ["otlp.md", "loki-push.md", "elasticsearch.md"])
async def test_the_examples_of_the_documentation_run(serve: Serve, page: str) -> None:
    served = await serve()
    [example] = examples(page, "python")
    code = example.replace("http://localhost:8790", served.url).replace("…", "x")

    def run() -> None:
        exec(compile(code, page, "exec"), {})
        logging.getLogger("cart").handlers.clear()

    await asyncio.to_thread(run)
    [(key, [record])] = stored(served).items()
    assert key.run == "42"
    assert key.fqn.endswith("cart")
    assert (record["text"], record["level"]) == ("sold 5\n", "WARN")


def test_the_collectors_example_sends_to_our_path() -> None:
    [example] = examples("otlp.md", "yaml")
    settings = yaml.safe_load(example)
    exporter = settings["exporters"]["otlphttp"]
    assert exporter["endpoint"] == "http://localhost:8790", "to which the collector adds /v1/logs"
    assert PATH == "/v1/logs"
    pipeline = settings["service"]["pipelines"]["logs"]
    assert pipeline["exporters"] == ["otlphttp"]
    for kind in ("receivers", "processors", "exporters"):
        assert set(pipeline[kind]) <= settings[kind].keys()
