"""`/segments/…` as a consumer meets it: statuses, problems, bodies, what operators see."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest

from coordination.groups import change_group, evict
from tests.service.http.queue_client import queue_door


async def test_a_segment_is_leased_renewed_and_committed() -> None:
    async with queue_door() as door:
        body = await door.put()
        await door.put("b")
        given = await door.next(lease_seconds=30)
        assert given["id"] == "a-1"
        assert given["url"] == "/segments/a-1"
        assert (given["node"], given["seq"], given["attempts"]) == ("a", 1, 1)
        assert (given["rows"], given["bytes"]) == (2, len(body))
        assert given["low"] < given["high"]
        until = datetime.fromisoformat(given["lease_until"])
        renewed = (await door.done(given, "renew", lease_seconds=60)).json()
        assert datetime.fromisoformat(renewed["lease_until"]) > until
        for _ in range(2):
            answer = await door.done(given)
            assert (answer.status_code, answer.json()["message"]) == (200, "Segment committed")
        assert (await door.next())["id"] == "b-1"


async def test_nothing_is_204_after_the_wait() -> None:
    async with queue_door(poll_seconds=0.05) as door:
        for params in ({}, {"wait": 0.2}):
            answer = await door.client.post("/segments/next", params={"group": "g", **params})
            assert (answer.status_code, answer.content) == (204, b"")
            assert answer.headers["cache-control"] == "no-store"
        waiting = asyncio.ensure_future(door.next(wait=60))
        await asyncio.sleep(0.1)
        await door.put()
        assert (await waiting)["id"] == "a-1"


async def test_a_lease_that_is_not_held_is_409_and_an_unknown_thing_404() -> None:
    async with queue_door() as door:
        await door.put()
        given = await door.next()
        for verb in ("commit", "failed", "renew"):
            wrong = await door.post(f"a-1/{verb}", group="g", epoch=given["epoch"] - 1)
            assert (wrong.status_code, wrong.json()["type"]) == (409, "lease-lost")
            assert wrong.json()["hint"]
            for path in (f"a-7/{verb}", f"z-1/{verb}", f"nothing/{verb}"):
                unknown = await door.post(path, group="g", epoch=given["epoch"])
                assert (unknown.status_code, unknown.json()["type"]) == (404, "not-found")
            nobody = await door.post(f"a-1/{verb}", group="nobody", epoch=given["epoch"])
            assert nobody.status_code == 404
        assert (await door.done(given)).status_code == 200


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
    async with queue_door() as door:
        answer = await door.client.get(f"/segments{'' if path[0] == '?' else '/'}{path}")
        assert (answer.status_code, answer.json()["field"]) == (400, field)


async def test_head_leases_nothing() -> None:
    async with queue_door() as door:
        await door.put()
        answer = await door.client.head("/segments/next", params={"group": "g"})
        assert answer.status_code == 405
        assert (await door.next())["attempts"] == 1


async def test_what_was_given_back_is_tried_again_and_then_shown_as_failed() -> None:
    async with queue_door(max_attempts=2, retry_seconds=0.0) as door:
        await door.put()
        for _ in range(2):
            given = await door.next()
            assert (await door.done(given, "failed", reason="no disk")).status_code == 200
        page = (await door.client.get("/segments")).json()
        state = page["segments"][0]["groups"]["g"]
        assert (state["state"], state["attempts"], state["reason"]) == ("failed", 2, "no disk")
        assert page["groups"][0]["failed"] == 1
        retried = await door.post("groups/g/retry", segment="a-1")
        assert retried.json() == {"group": "g", "retried": ["a-1"]}
        assert (await door.done(await door.next())).status_code == 200
        assert (await door.post("groups/g/retry")).json()["retried"] == []


async def test_every_segment_and_group_is_shown_page_by_page() -> None:
    async with queue_door(retry_seconds=60.0) as door:
        sizes = [len(await door.put(node)) for node in "aaabb"]
        committed, leased, back = [await door.next() for _ in range(3)]
        await door.done(committed)
        await door.done(back, "failed")
        seen, after = [], None
        while True:
            params = {"limit": 2} | ({"after": after} if after else {})
            page = (await door.client.get("/segments", params=params)).json()
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
        details = (await door.client.get("/segments/groups/g")).json()
        assert {one["id"] for one in details["open"]} == {leased["id"], back["id"]}
        (listed,) = (await door.client.get("/segments/groups")).json()["groups"]
        assert listed.keys() == group.keys() == details.keys() - {"open", "cursors"}
        assert listed["epoch"] == group["epoch"]
        assert (await door.client.get("/segments/groups/nobody")).status_code == 404


async def test_an_evicted_group_is_409_until_it_is_reset_and_a_forgotten_one_is_gone() -> None:
    async with queue_door() as door:
        await door.put()
        given = await door.next()
        group = (await door.queue.groups())[0]
        await change_group(
            door.store, group.name, lambda g: evict(g, 1, "it slept"), fresh_id=lambda: "X"
        )
        refused = await door.client.post("/segments/next", params={"group": "g"})
        assert (refused.status_code, refused.json()["type"]) == (409, "group-evicted")
        assert "reset" in refused.json()["hint"]
        assert (await door.done(given)).json()["type"] == "group-evicted"
        (shown,) = (await door.client.get("/segments")).json()["groups"]
        assert (shown["state"], shown["lag"]) == ("evicted", None)
        assert shown["evicted"]["reason"] == "it slept"
        assert (await door.post("groups/g/reset")).status_code == 400
        assert (await door.post("groups/g/reset", to="oldest")).json()["state"] == "active"
        assert (await door.next())["id"] == "a-1"
        assert (await door.client.delete("/segments/groups/g")).status_code == 200
        assert (await door.client.delete("/segments/groups/g")).status_code == 404
        assert (await door.client.get("/segments")).json()["groups"] == []
