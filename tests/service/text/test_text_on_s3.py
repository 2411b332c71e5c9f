"""Texts over a real S3 server and through the fault proxy: crashes, races, long lives.

The stories are told elsewhere over a simulated disk, for every step, every fault and more seeds.
Here a process dies at every thirteenth step, and what the store's calls do is up to the
server and the proxy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.faulty_store import Fault
from tests.service.text import test_crashes as crashes
from tests.service.text import test_interleavings as interleavings
from tests.service.text.restore import test_adopt as adopt
from tests.service.text.restore import test_adopt_crashes as adopt_crashes

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("every_server")]

Story = Callable[[], Awaitable[None]]
Killed = Callable[[Fault], Awaitable[None]]

KILLED: dict[str, Killed] = {
    "flush": lambda fault: crashes.test_flush(fault, 3),
    "close": lambda fault: crashes.test_close(fault, True),
    "delete": crashes.test_delete,
}
STORIES: dict[str, Story] = {
    "two flushers": crashes.test_two_flushers_race_on_one_manifest,
    "released segments": crashes.test_released_segments_are_flushed_from_the_store,
    "taken in": lambda: adopt_crashes.test_two_nodes_at_once(2, adopt_crashes.RUN),
    "taken in, hot": adopt.test_lines_that_are_hot_when_it_is_taken_in_follow_it,
    "taken in, closed": adopt.test_a_closed_text_at_our_own_key_is_not_copied,
    "taken in, paged": adopt.test_pages_go_on_with_tokens_from_before_a_close,
    "taken in, sharing": adopt.test_names_that_share_a_folder_have_copies_of_their_own,
    "taken in, listed": adopt.test_lists_of_a_plain_name_have_each_run_once,
}


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("act", KILLED)
async def test_killed(act: str, fault: Fault) -> None:
    await KILLED[act](fault)


@pytest.mark.parametrize("story", STORIES)
async def test_stories(story: str) -> None:
    await STORIES[story]()


def test_a_long_life() -> None:
    interleavings.test_long_lives(3)
