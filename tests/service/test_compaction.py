"""The compactor's keeper, with real children."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from compactor.settings import load_settings
from service.compaction import CompactionChild, job_command, job_environment
from service.runtime.process import RestartPolicy
from service.settings import Settings
from tailrace.logstore.clock import SystemClock
from tests.waiting import until

QUICK = RestartPolicy(first_pause_seconds=0.01, longest_pause_seconds=0.05, stop_seconds=120)


def _python(text: str) -> list[str]:
    return [sys.executable, "-S", "-c", text]


@contextlib.asynccontextmanager
async def running(child: CompactionChild) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(child.run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_it_says_why_it_is_off_and_starts_nothing() -> None:
    child = CompactionChild(_python(""), SystemClock(), off="no Java 17 found", restart=QUICK)
    await child.run()
    assert (child.state, child.starts) == ("off: no Java 17 found", 0)


async def test_a_child_that_ends_is_started_again() -> None:
    child = CompactionChild(_python("raise SystemExit(3)"), SystemClock(), restart=QUICK)
    async with running(child):
        await until(lambda: child.starts >= 3)
        await until(lambda: "exit status 3" in child.state)
    assert child.failures >= 2
    assert child.state == "off: stopped"


async def test_a_child_stands_behind_the_service(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    lower = min(os.nice(0) + 10, 19)
    program = f"""
import os, time
group = "/proc/self/autogroup"  # of its session; not every kernel has it
while os.nice(0) < {lower} or os.path.exists(group) and not open(group).read().endswith(" 10\\n"):
    time.sleep(0.01)
open({str(seen)!r}, "w").close()
time.sleep(60)
"""
    async with running(CompactionChild(_python(program), SystemClock(), restart=QUICK)):
        await until(seen.exists)


async def test_a_program_that_is_not_there_is_reported() -> None:
    child = CompactionChild(["/nowhere/job"], SystemClock(), restart=QUICK)
    async with running(child):
        await until(lambda: child.failures >= 1)
        await until(lambda: child.state.startswith("waiting: "))


async def test_a_stop_ends_the_child_and_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = (
        "import os, subprocess, sys, time\n"
        "other = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r} + '.new', 'w').write(f'{{os.getpid()}} {{other.pid}}')\n"
        f"os.rename({str(pids)!r} + '.new', {str(pids)!r})\n"
        "time.sleep(600)\n"
    )
    child = CompactionChild(_python(text), SystemClock(), restart=QUICK)
    async with running(child):
        await until(pids.exists)
        assert child.state == "running"
    for pid in pids.read_text().split():
        await until(lambda pid=pid: not _alive(int(pid)))  # type: ignore[misc]


async def test_a_stop_is_told_to_the_child_and_not_to_its_spark(tmp_path: Path) -> None:
    seen, ready = tmp_path / "seen", tmp_path / "ready"
    waiting = "open({0!r}, 'w').close()\ntime.sleep(600)\n"
    telling = "signal.signal(15, lambda *_: (open({0!r}, 'w').close(), sys.exit(0)))\n"
    first = "import signal, subprocess, sys, time\n"
    spark = first + telling.format(f"{seen}-spark") + waiting.format(str(ready))
    text = first + telling.format(f"{seen}-child")  # before anybody can be ready
    text += f"subprocess.Popen([sys.executable, '-S', '-c', {spark!r}])\ntime.sleep(600)\n"
    async with running(CompactionChild(_python(text), SystemClock(), restart=QUICK)):
        await until(ready.exists)
    assert [path.name for path in tmp_path.glob("seen*")] == ["seen-child"]


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_child_is_told_of_a_store_elsewhere(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), store=str(tmp_path / "elsewhere"))
    out = tmp_path / "seen"
    text = (
        f"import os; open({str(out)!r} + '.new', 'w').write(os.environ['TAILRACE_STORE'])\n"
        f"os.rename({str(out)!r} + '.new', {str(out)!r})"
    )
    environment = job_environment(settings)
    child = CompactionChild(_python(text), SystemClock(), environment=environment, restart=QUICK)
    async with running(child):
        await until(out.exists)
    assert out.read_text() == str(tmp_path / "elsewhere")


def test_a_child_is_told_of_a_bucket_and_who_we_are() -> None:
    s3 = {"endpoint_url": "http://minio:9000", "attempts": 7}
    key = {"access_key_id": "somebody", "secret_access_key": "s3cret"}
    settings = Settings.model_validate({"store": "s3a://bucket/prefix/", "s3": s3 | key})
    environment = job_environment(settings)
    assert "s3cret" not in " ".join(job_command(settings))
    assert environment == {
        "TAILRACE_STORE": "s3://bucket/prefix",
        "TAILRACE_S3__ENDPOINT_URL": "http://minio:9000",
        "TAILRACE_S3__ATTEMPTS": "7",
        "TAILRACE_S3__ACCESS_KEY_ID": "somebody",
        "TAILRACE_S3__SECRET_ACCESS_KEY": "s3cret",
    }


def test_a_child_goes_by_all_that_its_service_was_told_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = {"table_name": "leases", "region": "eu-west-1", "skip_table_creation": True}
    file = {
        "compaction": {"grace_seconds": 7.5, "lease_seconds": 90, "batch_bytes": "32MiB"},
        "queue": {"evict_after_hours": 3},
        "runs": {"expiration_days": 9, "expiration_days_of": {"a.*": 0}, "prefix": "texts"},
        "source_coordination": {"partition_prefix": "blue", "store": {"dynamodb": table}},
    }
    settings = Settings.model_validate(file)
    for name, value in job_environment(settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)  # no tailrace.yaml of ours
    told = load_settings({}, None)
    for section in ("compaction", "queue", "runs", "source_coordination"):
        shared = getattr(told, section).model_dump()
        ours = getattr(settings, section).model_dump()
        assert shared == {name: ours[name] for name in shared}
    assert told.source_coordination.store.dynamodb.table_name == "leases"


def test_the_command_names_a_program_that_exists() -> None:
    command = job_command(Settings(data="somewhere"))
    assert os.path.exists(command[1])
    assert command[2:] == ["--quiet", "--every", "300s", "--data", os.path.abspath("somewhere")]


_KEEPER = """
import asyncio, sys
from tailrace.logstore.clock import SystemClock
from service.compaction import CompactionChild
text = "import os, sys, time; print(os.getpid(), file=sys.stderr); time.sleep(600)"
asyncio.run(CompactionChild([sys.executable, "-S", "-c", text], SystemClock()).run())
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv (util-linux)")
async def test_the_child_of_a_killed_service_ends() -> None:
    service = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _KEEPER, stderr=asyncio.subprocess.PIPE
    )
    assert service.stderr is not None
    pid = int(await service.stderr.readline())
    assert _alive(pid)
    service.kill()
    await service.wait()
    await until(lambda: not _alive(pid))
