"""OpenMetadata's first clients send again without an id: what is known again, and what is not."""

from __future__ import annotations

import asyncio
import errno
from random import Random

import pytest

from service.ingest.appender import RETRY_MS
from service.ingest.batch import AppendReceipt
from service.journal.state import MOST, NAME_BYTES
from service.settings import JournalSettings
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import JournalFailed, JournalFull
from tests.seeds import seeds
from tests.service.ingest.gated_appender import GatedAppender, at, batch
from tests.service.journal.rig import RUN, journal_settings
from tests.simulation.powercut import PowerCut, PowerCutFileSystem
from tests.simulation.turns import turns

NAME = "host-17"
SMALL = journal_settings(file_bytes=600, max_bytes=1 << 20, fast_sync_seconds=3600)


async def send(
    gated: GatedAppender,
    text: bytes = b"a\n",
    *,
    above: int = 0,
    name: str = NAME,
    key: RunKey = RUN,
) -> AppendReceipt:
    return await gated.appender.append(batch(text, above=above, connector=name, key=key))


async def opened(*, settings: JournalSettings | None = None) -> tuple[GatedAppender, int]:
    """An appender, and what its client echoes after the opening call."""
    gated = GatedAppender() if settings is None else GatedAppender(settings=settings)
    return gated, await gated.appender.open_run(RUN, NAME)


async def test_the_same_lines_with_an_older_echo_are_the_retry_and_get_its_receipt() -> None:
    gated, echo = await opened()
    before = await send(gated, b"before\n", above=echo)
    first = await send(gated, above=before.last)
    again = await send(gated, above=before.last)
    assert (again.ulid, again.records, again.last) == (first.ulid, first.records, first.last)
    assert again.duplicate
    assert not first.duplicate
    assert gated.appender.duplicates == 1
    assert gated.texts() == [b"before\n", b"a\n"]
    await gated.journal.close()


async def test_the_same_lines_that_echo_the_batch_are_new() -> None:
    gated, echo = await opened()
    first = await send(gated, above=echo)
    second = await send(gated, above=first.last)
    assert not second.duplicate
    assert second.ulid > first.last
    # The retry of the second echoes the first, and is told from a third.
    assert (await send(gated, above=first.last)).ulid == second.ulid
    assert not (await send(gated, above=second.last)).duplicate
    assert gated.texts() == [b"a\n"] * 3
    await gated.journal.close()


async def test_the_retry_of_a_first_batch_echoes_the_opening_however_late_it_comes() -> None:
    gated, echo = await opened()
    first = await send(gated, above=echo)
    assert first.ulid > echo
    gated.rig.clock.ms += 3_600_000
    assert (await send(gated, above=echo)).duplicate
    await gated.journal.close()


@pytest.mark.parametrize(
    ("elapsed", "duplicate"), [(0, True), (RETRY_MS, True), (RETRY_MS + 1, False), (-1, False)]
)
@pytest.mark.parametrize("restarted", [False, True])
async def test_without_an_echo_a_retry_comes_within_30_seconds(
    elapsed: int, duplicate: bool, restarted: bool
) -> None:
    gated, _ = await opened()
    await send(gated)
    if restarted:
        await gated.restart()
    gated.rig.clock.ms += elapsed
    assert (await send(gated)).duplicate is duplicate
    assert len(gated.texts()) == (1 if duplicate else 2)
    await gated.journal.close()


async def test_only_the_batch_just_before_is_looked_at() -> None:
    gated, echo = await opened()
    first = await send(gated, above=echo)
    await send(gated, b"b\n", above=first.last)
    assert not (await send(gated, above=echo)).duplicate
    assert gated.texts() == [b"a\n", b"b\n", b"a\n"]
    await gated.journal.close()


@pytest.mark.parametrize("text", [b"b\n", b"a\na\n", b"\na\n"])
async def test_other_lines_are_never_a_retry(text: bytes) -> None:
    gated, echo = await opened()
    await send(gated, above=echo)
    assert not (await send(gated, text, above=echo)).duplicate
    await gated.journal.close()


async def test_it_is_the_rule_of_that_connector_in_that_run_only() -> None:
    gated, echo = await opened()
    other = RunKey(RUN.fqn, "other")
    await send(gated, above=echo)
    for name, key in (("host-18", RUN), (NAME, other)):
        for _ in range(2):
            assert not (await send(gated, above=echo, name=name, key=key)).duplicate
    for _ in range(2):
        assert not (await gated.appender.append(batch(b"a\n", above=echo))).duplicate
    # What others sent meanwhile does not come between.
    assert (await send(gated, above=echo)).duplicate
    await gated.journal.close()


async def test_who_did_not_open_has_no_retries() -> None:
    gated = GatedAppender()
    for _ in range(2):
        assert not (await send(gated)).duplicate
    await gated.journal.close()


async def test_a_second_opening_call_begins_again() -> None:
    gated, _ = await opened()
    await send(gated)
    await gated.appender.open_run(RUN, NAME)
    assert not (await send(gated)).duplicate
    await gated.restart()
    await gated.appender.open_run(RUN, NAME)
    await gated.restart()
    assert not (await send(gated)).duplicate
    await gated.journal.close()


async def test_a_batch_under_an_id_is_the_last_one_too() -> None:
    gated, echo = await opened()
    first = await send(gated, above=echo)
    named = batch(b"b\n", ulid=at(60_000), above=first.last, connector=NAME)
    await gated.appender.append(named)
    assert not (await send(gated, above=echo)).duplicate
    await gated.journal.close()


async def test_after_a_deletion_it_is_a_new_batch() -> None:
    gated, echo = await opened()
    first = await send(gated, above=echo)
    gated.deletions.note(*RUN, first.last)
    again = await send(gated, above=echo)
    assert not again.duplicate
    assert again.ulid > first.last
    await gated.journal.close()


@pytest.mark.parametrize("settings", [None, SMALL])
async def test_it_holds_after_a_restart_also_of_the_opening_alone(
    settings: JournalSettings | None,
) -> None:
    gated, echo = await opened(settings=settings)
    await gated.restart()
    first = await send(gated, above=echo)
    await gated.restart()
    assert (await send(gated, above=echo)).ulid == first.ulid
    await gated.restart()
    second = await send(gated, above=first.last)
    assert not second.duplicate
    await gated.restart()
    await gated.restart()
    assert (await send(gated, above=first.last)).ulid == second.ulid
    assert gated.texts() == [b"a\n"] * 2
    await gated.journal.close()


async def test_a_retry_waits_for_the_sync_of_a_batch_whose_client_went_away() -> None:
    gated, echo = await opened()
    gated.syncer.gate.clear()
    gone = asyncio.create_task(send(gated, above=echo))
    await turns()
    gone.cancel()
    await asyncio.sleep(0)
    retry = asyncio.create_task(send(gated, above=echo))
    await turns()
    assert not retry.done()
    gated.syncer.gate.set()
    assert (await retry).duplicate
    assert gated.texts() == [b"a\n"]
    await gated.journal.close()


@pytest.mark.parametrize("settings", [None, SMALL])
async def test_a_bulk_retry_waits_for_the_segment_also_after_a_restart(
    settings: JournalSettings | None,
) -> None:
    gated, echo = await opened(settings=settings)
    await send(gated, b"a\nb\n", above=echo)
    for _ in range(2):
        await gated.restart()
        again = batch(b"a\nb\n", above=echo, durability="bulk", connector=NAME)
        assert (await gated.appender.append(again)).duplicate
    assert gated.confirmed == [2, 2]
    await gated.journal.close()


async def test_a_batch_that_a_full_disk_refused_is_stored_by_its_retry() -> None:
    gated, echo = await opened(settings=SMALL)
    gated.fs.fail_with(errno.ENOSPC, at=len(gated.fs.calls) + 1, once=True)
    with pytest.raises(JournalFull):
        await send(gated, above=echo)
    # Its positions are given out again, and a file begins: the state must not claim it.
    for number in range(30):
        await gated.appender.append(batch(b"filling %d\n" % number))
    await gated.restart()
    assert not (await send(gated, above=echo)).duplicate
    assert gated.texts()[-1] == b"a\n"
    await gated.journal.close()


async def test_an_opening_is_taken_though_the_journal_is_full() -> None:
    gated = GatedAppender()
    gated.fs.fail_with(errno.ENOSPC, at=len(gated.fs.calls) + 1, once=True)
    echo = await gated.appender.open_run(RUN, NAME)
    assert not gated.fs.fault_pending
    # Not remembered: what is sent again is stored again, never lost.
    for _ in range(2):
        assert not (await send(gated, above=echo)).duplicate
    await gated.journal.close()


async def test_only_so_many_are_remembered_and_the_one_used_last_stays() -> None:
    gated, echo = await opened()
    await send(gated, above=echo)
    for number in range(MOST):
        await gated.appender.open_run(RunKey("p", f"{number}"), NAME)
        if number == MOST // 2:
            last = await send(gated, b"b\n", above=echo)
    for _ in range(2):
        assert len(gated.journal.state.connectors) == MOST
        assert (await send(gated, b"b\n", above=echo)).ulid == last.ulid
        await gated.restart()
    for number in range(MOST):
        await gated.appender.open_run(RunKey("q", f"{number}"), NAME)
    assert not (await send(gated, b"b\n", above=echo)).duplicate
    assert len(gated.texts()) == 3
    await gated.journal.close()


async def test_long_names_are_not_remembered() -> None:
    gated = GatedAppender()
    for _ in range(2):
        await gated.appender.open_run(RUN, "x" * NAME_BYTES)
        await send(gated, name="x" * NAME_BYTES)
    assert len(gated.journal.state.connectors) == 0
    assert len(gated.texts()) == 2
    await gated.journal.close()


# --- a model: the client, and everything that may come between ------------------------


class Client:
    """Sends again until a reply arrives, as gen-1 does; `shipped` is what it calls sent.

    Three texts only, so that equal ones follow one another all the time.
    """

    def __init__(self, dice: Random, name: str) -> None:
        self.dice = dice
        self.name = name
        self.echo: int | None = None
        self.sending: bytes | None = None
        self.shipped: list[bytes] = []

    async def step(self, gated: GatedAppender) -> None:
        """One request, whose reply arrives or not. Raises what ends the node."""
        if self.echo is None:
            echo = await gated.appender.open_run(RUN, self.name)
            if gated.journal.state.connectors.get(RUN, self.name) is not None:
                self.echo = echo  # else the disk was full: not remembered, and not covered
            return
        if self.sending is None:
            self.sending = self.dice.choice((b"a %b\n", b"b %b\n")) % self.name.encode()
        try:
            receipt = await send(gated, self.sending, above=self.echo, name=self.name)
        except JournalFull:
            return
        if self.dice.random() < 0.6:
            self.echo = receipt.last
            self.shipped.append(self.sending)
            self.sending = None

    async def settle(self, gated: GatedAppender) -> None:
        """What is under way is sent until it is through; then all is there once."""
        while self.sending is not None:
            await self.step(gated)
        mine = [text for text in gated.texts() if text.endswith(self.name.encode() + b"\n")]
        assert mine == self.shipped


async def _between(gated: GatedAppender, dice: Random) -> None:
    chance = dice.random()
    if chance < 0.1:
        await gated.restart()
    elif chance < 0.2:
        gated.fs.heal()
        call = len(gated.fs.calls) + dice.randint(1, 4)
        gated.fs.fail_with(errno.ENOSPC, at=call, once=True)
    elif chance < 0.3:
        gated.rig.clock.ms += dice.choice((-60_000, 5, 60_000))


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("seed", seeds(30))
async def test_every_batch_once_whatever_comes_between(seed: int) -> None:
    dice = Random(f"gen1 {seed}")
    gated = GatedAppender(settings=SMALL)
    clients = [Client(dice, f"host-{number}") for number in range(3)]
    for _ in range(120):
        await dice.choice(clients).step(gated)
        try:
            await _between(gated, dice)
        except JournalFull:
            gated.fs.heal()
            gated.open()
    gated.fs.heal()
    for client in clients:
        await client.settle(gated)
    assert sum(len(client.shipped) for client in clients) > 20
    await gated.journal.close()


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("seed", seeds(3))
def test_a_power_cut_at_every_call(seed: int) -> None:
    call = 0
    while True:
        call += 1
        fs = PowerCutFileSystem(fail_at=call)
        client = Client(Random(f"gen1 {seed}"), NAME)

        async def scenario(fs: PowerCutFileSystem, client: Client) -> None:
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            gated = GatedAppender(fs, SMALL)
            for number in range(14):
                await client.step(gated)
                if number == 7:
                    await gated.restart()
            await client.settle(gated)
            await gated.journal.close()

        try:
            asyncio.run(scenario(fs, client))
        except (PowerCut, JournalFailed):
            assert fs.dead
            asyncio.run(scenario(fs.reboot(seed), client))
            continue
        break
    assert call > 40
