"""Real clients, also behind a proxy that loses replies, and the examples of the documentation."""

from __future__ import annotations

import asyncio
import json
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
from service.http.loki import MOST_LINES
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


def test_the_collectors_examples_for_syslog_are_whole() -> None:
    """Every part that a pipeline names is there, and so is the queue's storage."""
    [example] = examples("syslog.md", "yaml")
    settings = yaml.safe_load(example)
    pipeline = settings["service"]["pipelines"]["logs"]
    for kind in ("receivers", "processors", "exporters"):
        assert set(pipeline[kind]) == settings[kind].keys()
    storage = settings["exporters"]["otlphttp"]["sending_queue"]["storage"]
    assert storage in settings["extensions"]
    assert settings["service"]["extensions"] == [storage]


RSYSLOG = (
    '{"index":{"_index": "syslog", "_id":"AEBA9D258D364F8C892766BDCA174176"}}\n'
    '{"@timestamp":"2026-11-30T18:09:45.375554+00:00","host.name":"vm","level":"err",'
    '"service.name":"cart","message":"line 199"}\n'
)
"""What rsyslog 8.2302 sends with the page's configuration."""


async def test_what_rsyslog_sends_is_stored_once(serve: Serve) -> None:
    served = await serve()
    [example] = examples("syslog.md", "rsyslog")
    for name in json.loads(RSYSLOG.splitlines()[1]):
        assert f'\\"{name}\\":' in example, "the document is the one of the page"
    headers = {"content-type": "application/json; charset=utf-8"}
    for status, result in ((201, "created"), (200, "noop")):
        reply = await served.client.post("/_bulk", content=RSYSLOG, headers=headers)
        [item] = reply.json()["items"]
        assert (item["index"]["status"], item["index"]["result"]) == (status, result)
    [(key, [record])] = stored(served).items()
    assert key == RunKey("cart", "2026-11-30")
    assert (record["text"], record["level"]) == ("line 199\n", "ERROR")
    assert record["ts"] == 1_796_062_185_375_554
    assert record["attributes"]["host.name"] == "vm"


async def test_grafanas_data_source_names_a_node() -> None:
    [example] = examples("grafana.md", "yaml")
    [source] = yaml.safe_load(example)["datasources"]
    assert (source["type"], source["access"]) == ("loki", "proxy")
    header, value = source["jsonData"], source["secureJsonData"]
    assert header["httpHeaderName1"] == "Authorization"
    assert value["httpHeaderValue1"].startswith("Bearer trl_")
    assert header["maxLines"] <= MOST_LINES
