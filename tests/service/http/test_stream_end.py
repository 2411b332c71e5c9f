"""A stream's end: the last lines come before `complete`, whenever the end is heard of."""

from __future__ import annotations

import pytest

from tests.openmetadata.server import Server, play
from tests.service.runs.interrupted import Interrupted


@pytest.mark.parametrize("skip", range(2))
@pytest.mark.parametrize("flushed", [False, True])
def test_what_comes_with_the_end_is_sent_before_it(flushed: bool, skip: int) -> None:
    """The last batch and the close come just after the stream has looked at the run."""

    async def scenario(server: Server) -> None:
        store = Interrupted(server.store.inner)
        server.store.inner = store
        await server.append("one\n")
        if flushed:
            await server.passes(minutes=3)

        async def end() -> None:
            await server.append("last\n")
            await server.close()

        store.after("get runs/", end, skip=skip)
        viewer = await server.watch(tail=100)  # which looks where these lines begin, and reads then
        await server.passes(minutes=2)
        assert store.done
        assert viewer.ended()
        assert viewer.text == "one\nlast\n"
        assert viewer.last["eventType"] == "complete"

    play(scenario)
