"""`/segments/…` as a consumer meets it: statuses, problems, bodies, what operators see."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest

from tailrace.coordination.groups import change_group, evict
from tests.service.http.queue_client import queue_client


async def test_a_segment_is_leased_renewed_and_committed() -> None:
    async with queue_client() as queue:
        body = await queue.put()
        await queue.put("b")
        given = await queue.next(lease_seconds=30)
        assert given["id"] == "a-1"
        assert given["url"] == "/segments/a-1"
        assert (given["node"], given["seq"], given["attempts"]) == ("a", 1, 1)
        assert (given["rows"], given["bytes"]) == (2, len(body))
        assert given["low"] < given["high"]
        until = datetime.fromisoformat(given["lease_until"])
        renewed = (await queue.done(given, "renew", lease_seconds=60)).json()
        assert datetime.fromisoformat(renewed["lease_until"]) > until
        for _ in range(2):
            answer = await queue.done(given)
            assert (answer.status_code, answer.json()["message"]) == (200, "Segment committed")
        assert (await queue.next())["id"] == "b-1"


async def test_nothing_is_204_after_the_wait() -> None:
    async with queue_client(poll_seconds=0.05) as queue:
        for params in ({}, {"wait": 0.2}):
            answer = await queue.client.post("/segments/next", params={"group": "g", **params})
            assert (answer.status_code, answer.content) == (204, b"")
            assert answer.headers["cache-control"] == "no-store"
        waiting = asyncio.ensure_future(queue.next(wait=60))
        await asyncio.sleep(0.1)
        await queue.put()
        assert (await waiting)["id"] == "a-1"


async def test_a_lease_that_is_not_held_is_409_and_an_unknown_thing_404() -> None:
    async with queue_client() as queue:
        await queue.put()
        given = await queue.next()
        for verb in ("commit", "failed", "renew"):
            wrong = await queue.post(f"a-1/{verb}", group="g", epoch=given["epoch"] - 1)
            assert (wrong.status_code, wrong.json()["type"]) == (409, "lease-lost")
            assert wrong.json()["hint"]
            for path in (f"a-7/{verb}", f"z-1/{verb}", f"nothing/{verb}"):
                unknown = await queue.post(path, group="g", epoch=given["epoch"])
                assert (unknown.status_code, unknown.json()["type"]) == (404, "not-found")
            nobody = await queue.post(f"a-1/{verb}", group="nobody", epoch=given["epoch"])
            assert nobody.status_code == 404
        assert (await queue.done(given)).status_code == 200


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("next", "group"),
        ("next?group=", "group"),
        ("next?group=g&wait=-1", "wait"),
        ("next?group=g&wait=x", "wait"),
        ("next?group=g&lease_seconds=0", "lease_seconds"),
        ("next?group=g&lease_seconds=99999", "lease_seconds"),
        ("next?group=g&start=soon", "start"),
        ("a-1?format=xml", "format"),
        ("?limit=0", "limit"),
    ],
)
async def test_bad_input_names_its_field(path: str, field: str) -> None:
    async with queue_client() as queue:
        answer = await queue.client.get(f"/segments{'' if path[0] == '?' else '/'}{path}")
        assert (answer.status_code, answer.json()["field"]) == (400, field)


async def test_head_leases_nothing() -> None:
    async with queue_client() as queue:
        await queue.put()
        answer = await queue.client.head("/segments/next", params={"group": "g"})
        assert answer.status_code == 405
        assert (await queue.next())["attempts"] == 1


async def test_what_was_given_back_is_tried_again_and_then_shown_as_failed() -> None:
    async with queue_client(max_attempts=2, retry_seconds=0.0) as queue:
        await queue.put()
        for _ in range(2):
            given = await queue.next()
            assert (await queue.done(given, "failed", reason="no disk")).status_code == 200
        page = (await queue.client.get("/segments")).json()
        state = page["segments"][0]["groups"]["g"]
        assert (state["state"], state["attempts"], state["reason"]) == ("failed", 2, "no disk")
        assert page["groups"][0]["failed"] == 1
        retried = await queue.post("groups/g/retry", segment="a-1")
        assert retried.json() == {"group": "g", "retried": ["a-1"]}
        assert (await queue.done(await queue.next())).status_code == 200
        assert (await queue.post("groups/g/retry")).json()["retried"] == []


async def test_every_segment_and_group_is_shown_page_by_page() -> None:
    async with queue_client(retry_seconds=60.0) as queue:
        sizes = [len(await queue.put(node)) for node in "aaabb"]
        committed, leased, back = [await queue.next() for _ in range(3)]
        await queue.done(committed)
        await queue.done(back, "failed")
        seen, after = [], None
        while True:
            params = {"limit": 2} | ({"after": after} if after else {})
            page = (await queue.client.get("/segments", params=params)).json()
            seen += page["segments"]
            after = page["next"]
            if after is None:
                break
        assert [row["id"] for row in seen] == ["a-1", "a-2", "a-3", "b-1", "b-2"]
        states = {row["id"]: row["groups"]["g"] for row in seen}
        assert states[committed["id"]]["state"] == "committed"
        assert states[leased["id"]]["state"] == "leased"
        assert states[leased["id"]]["epoch"] == leased["epoch"]
        assert states[back["id"]]["state"] == "waiting"
        assert sum(state["state"] == "new" for state in states.values()) == 2
        (group,) = page["groups"]
        assert group["lag"]["segments"] == 4
        assert group["lag"]["bytes"] == sum(sizes) - committed["bytes"]
        assert group["lag"]["seconds"] > 0
        assert (group["leased"], group["committed_segments"]) == (1, 1)
        details = (await queue.client.get("/segments/groups/g")).json()
        assert {one["id"] for one in details["open"]} == {leased["id"], back["id"]}
        (listed,) = (await queue.client.get("/segments/groups")).json()["groups"]
        assert listed.keys() == group.keys() == details.keys() - {"open", "cursors"}
        assert listed["epoch"] == group["epoch"]
        assert (await queue.client.get("/segments/groups/nobody")).status_code == 404


async def test_an_evicted_group_is_409_until_it_is_reset_and_a_forgotten_one_is_gone() -> None:
    async with queue_client() as queue:
        await queue.put()
        given = await queue.next()
        group = (await queue.queue.groups())[0]
        await change_group(
            queue.store, group.name, lambda g: evict(g, 1, "it slept"), fresh_id=lambda: "X"
        )
        refused = await queue.client.post("/segments/next", params={"group": "g"})
        assert (refused.status_code, refused.json()["type"]) == (409, "group-evicted")
        assert "reset" in refused.json()["hint"]
        assert (await queue.done(given)).json()["type"] == "group-evicted"
        (shown,) = (await queue.client.get("/segments")).json()["groups"]
        assert (shown["state"], shown["lag"]) == ("evicted", None)
        assert shown["evicted"]["reason"] == "it slept"
        assert (await queue.post("groups/g/reset")).status_code == 400
        assert (await queue.post("groups/g/reset", to="oldest")).json()["state"] == "active"
        assert (await queue.next())["id"] == "a-1"
        assert (await queue.client.delete("/segments/groups/g")).status_code == 200
        assert (await queue.client.delete("/segments/groups/g")).status_code == 404
        assert (await queue.client.get("/segments")).json()["groups"] == []
