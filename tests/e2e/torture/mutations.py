"""Faults that the torture must see, each of a promise that it is there to break."""

from __future__ import annotations

from tests.proving import Mutation

MUTATIONS = [
    Mutation(
        "the fast path answers and stores nothing",
        "service/ingest/appender.py",
        "        _, done = self._write(batch, ulid, digest(batch.text))\n",
        "        done = asyncio.get_running_loop().create_future()\n"
        "        done.set_result(None)\n",
    ),
    Mutation(
        "bulk is acknowledged as durable",
        "service/ingest/appender.py",
        '        if batch.durability == "bulk":\n'
        "            await self._confirmed_through(pos + batch.records)\n",
        "",
    ),
    Mutation(
        "a batch's id is not remembered",
        "service/ingest/appender.py",
        "            known = await self._known(batch, chosen, checksum)\n",
        "            known = None\n",
    ),
    Mutation(
        "a retry of OpenMetadata's first generation is not known",
        "service/ingest/appender.py",
        "        return batch.above < last.ulid\n",
        "        return False\n",
    ),
    Mutation(
        "an equal batch of the first generation is always a retry",
        "service/ingest/appender.py",
        "            or not is_retry(last, batch, checksum, self._now_ms())\n",
        "            or last.ulid == 0\n",
    ),
    Mutation(
        "a segment is put without its precondition",
        "service/shipping/shipper.py",
        "segment.body, if_absent=True)",
        "segment.body)",
    ),
    Mutation(
        "a fork is not noticed by the rows that are stored",
        "service/shipping/shipper.py",
        "        if (stored.rows, stored.checksums) != (ours.rows, ours.checksums):\n",
        "        if stored.rows < 0:\n",
    ),
    Mutation(
        "some entries of the journal are not read back",
        "service/journal/state.py",
        "        if batch.pos < file.end_pos:\n",
        "        if batch.pos % 5 == 0:\n"
        "            file.end_pos = batch.pos + batch.records\n"
        "            return\n"
        "        if batch.pos < file.end_pos:\n",
    ),
    Mutation(
        "a flush tells that it is further than it is",
        "service/run_log/contracts.py",
        "        return self.pending.low(self.confirmed_pos) if self._started.is_set() else 0\n",
        "        return self.confirmed_pos if self._started.is_set() else 0\n",
    ),
    Mutation(
        "a chunk takes in copies of what is in others",
        "service/run_log/flush.py",
        "return (await select_new([source], [part], manifest, self._chunks, horizon))[0]",
        "return part",
    ),
    Mutation(
        "a deletion hides nothing",
        "service/run_log/backlog.py",
        "        return max(self._runs.get(key, 0), self._pipelines.get(key.fqn, 0))\n",
        "        return 0\n",
    ),
    Mutation(
        "a reader that comes back gets its last line again",
        "service/run_log/cursors.py",
        """at, seen + 1 - int(stretch.rows["pos"][at]))\n""",
        """at, seen - int(stretch.rows["pos"][at]))\n""",
    ),
]
