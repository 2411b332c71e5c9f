"""CDAP's verbs, by what its own tests ask for (`LogHttpHandlerTest`), and what it does not do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.http.cdap import FIELDS, parse_filter
from tests.service.test_main import RUN, service, settings_for

NDJSON = {"content-type": "application/x-ndjson"}
COUNT = 120
LEVELS = ("INFO", "WARN", "ERROR")


def record(number: int) -> dict[str, Any]:
    return {
        "message": f'<{number}> & "on"',
        "level": LEVELS[number % 3],
        "ts": 1_770_000_000 + number,
        "attributes": {".origin": "plugin" if number % 2 else "system", "user": f"u{number % 5}"},
    }


async def filled(client: httpx.AsyncClient) -> None:
    for start in range(0, COUNT, 20):
        body = "\n".join(json.dumps(record(n)) for n in range(start, start + 20))
        assert (await client.post(RUN, content=body, headers=NDJSON)).status_code == 200


async def events(client: httpx.AsyncClient, verb: str, **parameters: Any) -> list[dict[str, Any]]:
    reply = await client.get(f"{RUN}/{verb}", params=parameters)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json"
    return list(reply.json())


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [int(event["log"].partition(">")[0].removeprefix("<")) for event in found]


async def test_paging_forward_and_back_meets_without_gap_or_overlap(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        await filled(client)
        for stage in ("open", "closed"):
            if stage == "closed":
                await client.post(f"{RUN}/close")
            latest = await events(client, "next", escape="false")
            assert numbers(latest) == [*range(COUNT - 50, COUNT)]  # max is 50
            assert await events(client, "prev", escape="false") == latest
            back = await events(
                client, "prev", escape="false", max=60, fromOffset=latest[0]["offset"]
            )
            assert numbers(back) == [*range(10, 70)]
            again = await events(
                client, "next", escape="false", max=7, fromOffset=back[-1]["offset"]
            )
            assert again == latest[:7]
            behind = {"fromOffset": latest[-1]["offset"]}
            assert await events(client, "next", **behind) == []
            first = await events(client, "prev", escape="false", fromOffset=back[0]["offset"])
            assert numbers(first) == [*range(10)]
            assert await events(client, "prev", fromOffset=first[0]["offset"]) == []


async def test_events_have_cdaps_shape(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        await filled(client)
        given = {
            "message": "failed",
            "attributes": {"threadName": "main", "lineNumber": "17", "loggerName": "a.B"},
        }
        await client.post(RUN, content=json.dumps(given), headers=NDJSON)
        found = await events(client, "prev", format="json", max=2)
        assert found[0]["log"] == {
            "timestamp": (1_770_000_000 + COUNT - 1) * 1000,
            "logLevel": "ERROR",
            "threadName": "",
            "className": "",
            "simpleClassName": "",
            "lineNumber": 0,
            "message": "&lt;119&gt; &amp; &quot;on&quot;",
            "stackTrace": "",
            "loggerName": "",
            "mdc": {".origin": "plugin", "user": "u4"},
            "isNativeMethod": False,
        }
        log = found[1]["log"]
        assert (log["threadName"], log["lineNumber"], log["mdc"]) == ("main", 17, {})
        plain = await events(client, "prev", format="json", max=1, escape="false")
        assert plain[0]["log"]["message"] == "failed"
        bare = await events(client, "next", format="json", suppress=list(FIELDS))
        assert [event["log"] for event in bare] == [{}] * 50
        some = await events(client, "next", format="json", suppress=["mdc", "message"])
        assert [*some[0]["log"]] == [name for name in FIELDS if name not in ("mdc", "message")]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", lambda n: True),
        ("loglevel=ERROR", lambda n: n % 3 == 2),
        ("loglevel=error AND .origin=plugin", lambda n: n % 3 == 2 and n % 2),
        ("MDC:user=u1 OR MDC:user=u2", lambda n: n % 5 in (1, 2)),
        # Right-associative: a AND (b OR c).
        (
            "loglevel=WARN AND .origin=plugin OR MDC:user=u0",
            lambda n: n % 3 == 1 and (n % 2 or n % 5 == 0),
        ),
        (".fqn=p AND .runId=r AND loglevel=INFO", lambda n: n % 3 == 0),
        ("loglevel=FATAL", lambda n: False),
    ],
)
async def test_filters(tmp_path: Path, text: str, wanted: Any) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        await filled(client)
        given = {"filter": text, "escape": "false", "max": 500}
        expected = [n for n in range(COUNT) if wanted(n)]
        assert numbers(await events(client, "prev", **given)) == expected
        assert numbers(await events(client, "next", **given)) == expected
        first = await events(client, "prev", **given)
        if first:
            rest = await events(client, "next", **given, fromOffset=first[0]["offset"])
            assert rest == first[1:]
        whole = {"filter": text, "escape": "false", "start": "0"}
        lines = (await client.get(f"{RUN}/logs", params=whole)).text.splitlines()
        assert lines == [record(n)["message"] for n in expected]


async def test_logs_streams_a_range_of_time(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        await filled(client)
        given = {"start": "1770000010", "stop": "1770000013", "escape": "false"}
        reply = await client.get(f"{RUN}/logs", params=given)
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"
        assert reply.text.splitlines() == [record(n)["message"] for n in (10, 11, 12)]
        found = await client.get(f"{RUN}/logs", params={**given, "format": "json"})
        assert [event["log"]["timestamp"] for event in found.json()] == [
            1_770_000_010_000 + n * 1000 for n in range(3)
        ]
        offset = found.json()[0]["offset"]
        after = await events(client, "next", escape="false", max=1, fromOffset=offset)
        assert numbers(after) == [11]
        # The last hour is the default: these events are older.
        assert (await client.get(f"{RUN}/logs")).text == ""
        assert (await client.get(f"{RUN}/logs", params={"format": "json"})).json() == []


async def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        await filled(client)
        for verb, parameters, field in (
            ("next", {"format": "xml"}, "format"),
            ("next", {"max": "0"}, "max"),
            ("next", {"fromOffset": "1.2"}, "fromOffset"),
            ("prev", {"filter": "level=ERROR"}, "filter"),
            ("prev", {"filter": "loglevel=ERROR AND"}, "filter"),
            ("prev", {"filter": "loglevel=ERROR NOT .a=b"}, "filter"),
            ("prev", {"filter": "loglevel"}, "filter"),
            ("prev", {"suppress": "level"}, "suppress"),
            ("logs", {"start": "2000", "stop": "1000"}, "stop"),
            ("logs", {"start": "2000", "stop": "2000"}, "stop"),
            ("logs", {"max": "7"}, "max"),
        ):
            reply = await client.get(f"{RUN}/{verb}", params=parameters)
            assert (reply.status_code, reply.json()["field"]) == (400, field), (verb, parameters)
        wrong = await client.get(f"{RUN}/next", params={"filter": "loglevel=INFO and .a=b"})
        assert "character 15" in wrong.json()["detail"]
        for verb in ("logs", "next", "prev"):
            nobody = RUN.removesuffix("/r") + f"/nobody/{verb}"
            assert (await client.get(nobody)).status_code == 404


async def test_one_run_gives_nothing_of_another(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        await filled(client)
        other = RUN.removesuffix("/r") + "/other"
        await client.post(other, content="alone\n", headers={"content-type": "text/plain"})
        assert [event["log"] for event in (await client.get(f"{other}/next")).json()] == ["alone"]
        assert (await client.get(f"{other}/next", params={"filter": ".runId=r"})).json() == []


async def test_a_run_called_logs_is_read_as_a_run(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        run = RUN.removesuffix("/r") + "/logs"
        await client.post(run, content="x\n", headers={"content-type": "text/plain"})
        assert (await client.get(run)).json()["logs"] == "x"
        assert (await client.get(f"{run}/logs")).text == "x\n"


def test_a_filter_reads_records_without_attributes() -> None:
    event = {"level": None, "fqn": "p", "run_id": "r", "connector_id": None, "attributes": None}
    assert not parse_filter("loglevel=INFO OR .a=b OR MDC:c=d")(event)
    assert parse_filter(".fqn=p")(event)
