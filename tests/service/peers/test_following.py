"""Live streams over two real processes, one of which is killed and returns."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx
import pytest

from tailrace.logstore import ulid as ulids
from tests.e2e.service_process import BASE, ServiceProcess
from tests.service.peers.processes import Nodes
from tests.service.peers.test_over_http import (  # noqa: F401  fixtures
    cluster,
    cluster_store,
    fqn,
    path,
    post,
    two,
)


class Following:
    """One connection of a live search, or of a run: records and names of silent nodes."""

    def __init__(
        self, service: ServiceProcess, pipeline: str, cursor: str | None, url: str | None = None
    ) -> None:
        self.cursor = cursor
        self.silent: list[str] = []
        headers = {} if cursor is None else {"last-event-id": cursor}
        self._open = httpx.stream(
            "GET",
            service.url + (url or f"/query/stream?window=0.2&fqn={pipeline}"),
            headers=headers,
            timeout=60,
        )
        self._lines: Iterator[str] = self._open.__enter__().iter_lines()

    def next(self) -> str:
        """The next record's message, or the event `silent`."""
        name = at = ""
        for line in self._lines:
            kind, _, value = line.partition(": ")
            if kind == "event":
                name = value
            elif kind == "id":
                at = value
            elif kind == "data":
                self.cursor = at
                if name == "silent":
                    self.silent = json.loads(value)["nodes"]
                    return "silent"
                assert name == "", f"{name}: {value}"
                return str(json.loads(value)["message"])
        raise AssertionError("the stream has ended")

    def close(self) -> str | None:
        self._open.__exit__(None, None, None)
        return self.cursor


@pytest.mark.in_turn(3)
def test_a_live_search_goes_from_node_to_node(
    two: Nodes,  # noqa: F811
    fqn: str,  # noqa: F811
    path: str,  # noqa: F811
) -> None:
    a, b = two
    following = Following(a, fqn, None)
    wanted, found = [], []
    batch = ulids.encode(ulids.lowest_at(time.time_ns() // 1_000_000) | 1 << ulids.LINE_BITS)
    for turn in range(3):
        for number, service in enumerate((a, b)):
            text = f"{turn}.{number}"
            post(service, path, f"{text}\n")
            wanted.append(text)
            found.append(following.next())
        cursor = following.close()
        following = Following((b, a, b)[turn], fqn, cursor)
    post(b, path, "twice\n", batch)
    assert following.next() == "twice"
    post(a, path, "twice\n", batch)
    post(a, path, "last\n")
    assert following.next() == "last"
    assert found == wanted
    following.close()


@pytest.mark.in_turn(3)
def test_a_node_that_is_killed_is_named_and_its_lines_come_when_it_returns(
    two: Nodes,  # noqa: F811
    fqn: str,  # noqa: F811
    path: str,  # noqa: F811
) -> None:
    a, b = two
    post(b, path, "zero\n")
    of_run = f"{BASE}/{fqn}/stream/run?format=ndjson"
    streams = [Following(a, fqn, None), Following(a, fqn, None, of_run)]
    post(b, path, "one\n")
    for stream in streams:
        _until(stream, "one")
    post(b, path, "two\n")
    b.kill()
    said = [_until(stream, "silent") for stream in streams]
    assert [[name.partition("-")[0] for name in stream.silent] for stream in streams] == [["b"]] * 2
    post(a, path, "three\n")
    said = [seen + _until(one, "three") for one, seen in zip(streams, said, strict=True)]
    b.start()
    for stream, before in zip(streams, said, strict=True):
        seen = before + _until(stream, "silent")
        assert stream.silent == []
        if "two" not in seen:
            seen += _until(stream, "two")
        assert sorted(seen) == ["silent", "silent", "three", "two"]
        stream.close()


def _until(following: Following, wanted: str) -> list[str]:
    found = [following.next()]
    while found[-1] != wanted:
        found.append(following.next())
    return found
