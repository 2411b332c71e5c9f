"""A node's folder is copied while it runs, and both go on on one store and know each other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tailrace.logstore.position import MOST_NEWEST
from tests.e2e.service_process import BASE, ServiceProcess
from tests.service.peers.processes import Nodes
from tests.service.peers.test_over_http import events, found, lines, node, post

FQN = "svc.forks"
PATH = f"{BASE}/{FQN}/run"


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Nodes]:
    """The original, which runs, and one on a place where its copy may be put."""
    original, copy = node(tmp_path, "a"), node(tmp_path, "copy")
    copy.settings["TAILRACE_NODE_ID"] = "a"
    original.start()
    try:
        yield original, copy
    finally:
        for one in (original, copy):
            with suppress(AssertionError):
                one.kill()


def begin_copy(original: ServiceProcess, copy: ServiceProcess) -> None:
    shutil.copytree(original.data, copy.data)
    copy.start()
    metrics = httpx.get(f"{copy.url}/metrics", timeout=60).raise_for_status().text
    assert "tailrace_forks_total 1" in metrics


@pytest.mark.in_turn(3)
def test_readers_go_between_a_node_and_its_copy_and_get_each_line_once(copied: Nodes) -> None:
    original, copy = copied
    post(original, PATH, "before one\nbefore two\n")
    stream = events(original, FQN, None)
    cursor, line = next(stream)
    assert line == "before one"
    stream.close()
    page = httpx.get(f"{original.url}{PATH}", params={"limit": 1}, timeout=60).json()
    assert page["logs"] == "before one"
    begin_copy(original, copy)

    wanted = ["before one", "before two"]
    for turn in range(3):
        for service in copied:
            wanted.append(f"{turn} {service is copy}")
            post(service, PATH, f"{wanted[-1]}\n")
    for service in copied:
        assert sorted(lines(service, PATH).splitlines()) == sorted(wanted)
        after = lines(service, PATH, after=page["after"]).splitlines()
        assert sorted(after) == sorted(wanted[1:])
        status, messages, stats = found(service, fqn=FQN)
        assert (status, sorted(messages), stats["complete"]) == (200, sorted(wanted), True)
    # From a cursor of before the copy, now here and now there.
    seen = [line]
    for turn in range(3):
        stream = events(copied[turn % 2], FQN, cursor)
        for _ in range(3 if turn == 2 else 2):
            cursor, line = next(stream)
            seen.append(line)
        stream.close()
    assert sorted(seen) == sorted(wanted)

    assert httpx.post(f"{copy.url}{PATH}/close", timeout=60).json()["state"] == "closed"
    for service in copied:
        text = httpx.get(f"{service.url}{PATH}/download", timeout=60).raise_for_status().text
        assert sorted(text.splitlines()) == sorted(wanted)
    assert [original.stop(), copy.stop()] == [0, 0]


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("gone", ["the copy", "the copy, drained, and the original"])
def test_what_was_read_of_the_original_is_not_given_again_though_one_is_gone(
    copied: Nodes, tmp_path: Path, gone: str
) -> None:
    original, copy = copied
    reading = node(tmp_path, "c")
    reading.start()
    try:
        wanted = [f"line {n}" for n in range(3 * MOST_NEWEST)]
        for line in wanted:
            post(original, PATH, f"{line}\n")
        stream = events(reading, FQN, None)
        seen = [next(stream) for _ in wanted]
        assert [line for _, line in seen] == wanted
        stream.close()
        begin_copy(original, copy)
        if gone == "the copy":
            copy.kill()
        else:
            assert copy.stop() == 0
            original.kill()
        for service in (reading, original) if original.running else (reading,):
            post(service, PATH, f"{service is original}\n")
            stream = events(service, FQN, seen[-1][0])
            # The stream names the node that is gone first.
            seen.append(next(event for event in stream if not event[1].startswith('{"nodes"')))
            assert seen[-1][1] == f"{service is original}"
            stream.close()
    finally:
        reading.kill()
