"""OpenMetadata's page before this service: its requests, in a real browser.

`openmetadata_viewers.js` makes the requests of that page and treats the answers as it does. The
lines are new, so that they are in the journal alone unless a test closes the run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.page.posting import Poster

VIEWERS = (Path(__file__).parent / "openmetadata_viewers.js").read_text()


@pytest.fixture
def viewer(page: Page) -> Page:
    page.goto("/health/live")  # any address of the service
    page.evaluate(VIEWERS + "\nnull;")
    return page


def numbered(first: int, end: int) -> str:
    return "".join([f"line {number}\n" for number in range(first, end)])


@pytest.mark.parametrize("closed", [False, True])
def test_the_live_view_has_the_run_from_its_beginning_over_lost_connections(
    viewer: Page, post: Poster, closed: bool
) -> None:
    run = f"run-{closed}"
    post.lines("om.streamed", run, 0, 5000)
    if closed:
        post.close("om.streamed", run)
        seen = viewer.evaluate(f"streamed('om.streamed', '{run}', 1)")
        assert seen["logs"] == numbered(0, 5000)
    else:
        viewer.evaluate(f"void (window.done = streamed('om.streamed', '{run}', 1))")
        viewer.wait_for_function("following.logs.endsWith('line 4999\\n')")
        post.lines("om.streamed", run, 5000, 5010)
        viewer.wait_for_function("following.logs.endsWith('line 5009\\n')")
        post.close("om.streamed", run)
        seen = viewer.evaluate("done")
        assert seen["logs"] == numbered(0, 5010)
    assert (seen["reason"], seen.get("error")) == ("runFinished", None)
    assert seen["connections"] == 2


def test_the_earlier_viewer_scrolls_through_a_running_run_and_a_closed_one(
    viewer: Page, post: Poster
) -> None:
    post.lines("om.scrolled", "run", 0, 2500)
    running = viewer.evaluate("scrolled('om.scrolled')")
    assert (running["logs"] + "\n", running["pages"]) == (numbered(0, 2500), 3)
    assert viewer.evaluate("total") == "2500"  # lines, while it runs
    post.close("om.scrolled", "run")
    closed = viewer.evaluate("scrolled('om.scrolled')")
    assert (closed["logs"] + "\n", closed["pages"]) == (numbered(0, 2500), 3)
    assert viewer.evaluate("total") == str(len(numbered(0, 2500)))  # bytes, once it is closed


def test_the_paginated_reader_follows_a_running_run_to_its_end(viewer: Page, post: Poster) -> None:
    post.lines("om.paged", "run", 0, 1500)
    viewer.evaluate("void (window.paged = new Paginated('om.paged'))")
    assert [viewer.evaluate("paged.load()") for _ in range(2)] == [True, False]
    for first, end in ((1500, 1600), (1600, 4200), (4200, 4201)):
        post.lines("om.paged", "run", first, end)
        assert viewer.evaluate("paged.poll()") + "\n" == numbered(0, end)
    post.lines("om.paged", "run", 4201, 7000)
    post.close("om.paged", "run")  # the last look comes behind it, with a place from before it
    assert viewer.evaluate("paged.poll()") + "\n" == numbered(0, 7000)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("query", "texts"), [("", 0), ("?events=unnamed", 2), ("?format=text", 2)])
def test_a_plain_event_source_is_given_events_without_a_name(
    viewer: Page, post: Poster, query: str, texts: int
) -> None:
    run = f"run{query.partition('=')[2]}"
    post.text("om.plain", run, b"a\nb\n")
    post.close("om.plain", run)
    # Its end is an error: the service closes the connection. What came before is all there is.
    found = viewer.evaluate(
        """address => new Promise(resolve => {
            const texts = [], source = new EventSource(address);
            source.onmessage = ({ data }) => {
                const text = data.startsWith("{") ? JSON.parse(data).logs ?? "" : data;
                texts.push(...text.split("\\n").filter(line => line));
            };
            source.onerror = () => { source.close(); resolve(texts); };
        })""",
        f"/api/v1/services/ingestionPipelines/logs/om.plain/stream/{run}{query}",
    )
    assert found == ["a", "b"][:texts]
