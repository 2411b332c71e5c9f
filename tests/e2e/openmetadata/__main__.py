"""OpenMetadata's own clients against the service: `make clients`.

Each generation ships 2,000 records through its own handler, in three stories:

- **plain**: nothing goes wrong;
- **lost replies**: a proxy throws replies away after the batch was stored, also that of
  the retry, also of compressed batches;
- **killed**: the service gets kill -9 between a batch and its reply, and once more while a
  request is on its way to it, and is started again, while the client goes on.

All records are there, once, in order, byte for byte, the run is closed, the client's own
page reader gives all of it, and its own SSE reader ended by itself. The second generation
never sends again: in "killed" it loses the one batch that did not arrive, and counts it.

With `--store minio` the objects are on a real S3 server, with `--store faults` on one behind a
proxy that misbehaves.

The environments (400 MB each) are made on the first call and kept, see `environments`.
Exits 1 and says what does not hold.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailrace.logstore.batch import RunKey
from tests.e2e.openmetadata.checks import ROWS, Shipped, all_rows_once, as_sent, common, fetch
from tests.e2e.openmetadata.environments import CLIENTS, Client, interpreter
from tests.e2e.openmetadata.proxy import Loss, LossyProxy, Sent
from tests.e2e.service_process import ServiceProcess
from tests.e2e.torture_store import KINDS, tortured_store

PORTION = 250
_DRIVER = Path(__file__).with_name("driver.py")
_STORY_SECONDS = 120


@dataclass(frozen=True)
class Simulation:
    """Which appends lose what, and whether the service is killed at that moment."""

    name: str
    fqn: str
    losses: Mapping[int, Loss]
    kills: bool = False
    compressed: bool = False


# The first generation counts its retries too: 4 is that of 3.
STORIES = (
    Simulation("plain", "service name.pipeline", {}),
    Simulation(
        "lost replies", 'Dienst "süß".a/b', {1: "reply", 3: "reply", 4: "reply"}, compressed=True
    ),
    Simulation("killed", "service.pipeline", {1: "reply", 3: "request"}, kills=True),
)


def play(
    client: Client, python: Path, story: Simulation, folder: Path, settings: Mapping[str, str]
) -> Iterator[str]:
    """One client in one story; gives what does not hold."""
    service = ServiceProcess(
        folder / f"{client.name} {story.name}",
        store=None,
        TAILRACE_OPENMETADATA__VERSION=client.version,
        **settings,
    )
    service.start()

    def meanwhile() -> None:
        if story.kills:
            service.kill()
            service.start()

    key = RunKey(story.fqn, str(uuid.uuid4()))
    try:
        if not story.losses:
            shipped = fetch(service.url, key, drive(python, story, service.url, key, None))
            yield from check(client, story, shipped, [])
            return
        with LossyProxy(service.url, story.losses, meanwhile) as proxy:
            shipped = fetch(service.url, key, drive(python, story, proxy.url, key, proxy))
            yield from check(client, story, shipped, proxy.sent)
    finally:
        if service.running:
            service.stop()
        if "Traceback" in service.output():
            yield f"the service's log: {service.output()[-2000:]}"


def drive(python: Path, story: Simulation, url: str, key: RunKey, proxy: LossyProxy | None) -> str:
    """Runs the client, giving its output; raises `RuntimeError` with what it says if it fails.

    Its last portion is shipped once everything that the story holds has happened.
    """
    job = {
        "url": url,
        "fqn": key.fqn,
        "run": key.run,
        "rows": ROWS,
        "portion": PORTION,
        "pause": 1.5,
        "follow_seconds": 60,
    }
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [str(python), str(_DRIVER), json.dumps(job)],
            env={"ENABLE_LOG_COMPRESSION": str(story.compressed).lower()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            last = line
            if line == "holding\n":
                if proxy is not None:
                    proxy.told.wait(_STORY_SECONDS)
                process.stdin.write("go on\n")
                process.stdin.flush()
        if process.wait():
            errors.seek(0)
            raise RuntimeError(f"the driver ended with {process.returncode}: {errors.read()}")
        return last


def check(
    client: Client, story: Simulation, shipped: Shipped, sent: Sequence[Sent]
) -> Iterator[str]:
    """What does not hold."""
    print(f"    {len(shipped.text.encode())} bytes; the client says {shipped.told['counters']}")
    yield from common(shipped)
    if shipped.told["refusal"] != [400, "Invalid log data format"]:
        yield f"a body of another shape is refused with {shipped.told['refusal']}"
    if all(batch.taken for batch in sent) or client.name == "gen-1":
        yield from all_rows_once(shipped)
    if sent:
        print(f"    {len(sent)} appends, {sum(not batch.heard for batch in sent)} not heard of")
        if len(sent) <= max(story.losses):
            yield f"only {len(sent)} appends: not all of the story was told"
        yield from as_sent(shipped, sent, retries=client.name == "gen-1")
    unheard = sum(not batch.heard for batch in sent) if client.name == "gen-2" else 0
    failed = shipped.told["counters"].get("failed_posts", 0)
    if failed != unheard:
        yield f"the client counts {failed} failed posts, {unheard} were not answered"


def main() -> int:
    """All clients in all stories."""
    arguments = argparse.ArgumentParser(prog="tests.e2e.openmetadata")
    arguments.add_argument("--client", choices=[client.name for client in CLIENTS])
    arguments.add_argument("--story", choices=[story.name for story in STORIES])
    arguments.add_argument("--store", choices=KINDS, default="local")
    chosen = arguments.parse_args()
    faults = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        tortured_store(chosen.store, seed=0) as store,
    ):
        for client in CLIENTS:
            if chosen.client in (None, client.name):
                faults += _play_all(client, chosen.story, Path(folder), store.settings)
    print(f"{faults} faults")
    return 1 if faults else 0


def _play_all(client: Client, only: str | None, folder: Path, settings: Mapping[str, str]) -> int:
    print(f"{client.name}: openmetadata-ingestion {client.release}", flush=True)
    python = interpreter(client)
    faults = 0
    for story in STORIES:
        if only not in (None, story.name):
            continue
        begun = time.monotonic()
        print(f"  {story.name}", flush=True)
        for fault in play(client, python, story, folder, settings):
            faults += 1
            print(f"    FAULT {fault}")
        print(f"    {time.monotonic() - begun:.0f} s", flush=True)
    return faults


if __name__ == "__main__":
    sys.exit(main())
