"""Fork, threads, spawned processes and every way in which a program ends."""

from __future__ import annotations

import os
import signal
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from tests.client.programs import finish, left_in, messages, records, start, state_of
from tests.e2e.service_process import ServiceProcess

PATIENT = "options=Options(exit_seconds=60)"

LATE = """
def late():
    threading.main_thread().join()
    log.info('late')
threading.Thread(target=late).start()
"""
ASYNC = """
import asyncio
async def work():
    await asyncio.gather(*[asyncio.to_thread(log.info, 'in a thread') for _ in 'ab'])
    log.info('in the loop')
asyncio.run(work())
"""
ENDINGS = {
    "returns": ("pass", 0, None),
    "exits": ("sys.exit(3)", 3, None),
    "raises": ("1 / 0", 1, None),
    "exits-well": ("sys.exit(0)", 0, "success"),
    "raises-and-says": ("1 / 0", 1, "failed"),
    "is-interrupted": ("os.kill(os.getpid(), 2); time.sleep(60)", -2, "stopped"),
    "says-itself": ("made.outcome = 'partialSuccess'", 0, "partialSuccess"),
    "leaves-a-thread-that-never-ends": (
        "threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()",
        0,
        "success",
    ),
    "logs-in-a-thread-that-outlives-the-main-one": (
        LATE,
        0,
        "success",
    ),
    "logs-in-an-exit-function": (
        "import atexit; atexit.register(log.info, 'late')",
        0,
        "success",
    ),
    "uses-asyncio": (
        ASYNC,
        0,
        "success",
    ),
}
SAID = {
    "logs-in-a-thread-that-outlives-the-main-one": ["late"],
    "logs-in-an-exit-function": ["late"],
    "uses-asyncio": ["in a thread", "in a thread", "in the loop"],
}


@pytest.mark.in_turn(3)
def test_a_run_is_whole_and_closed_however_its_program_ends(
    service: ServiceProcess, tmp_path: Path
) -> None:
    started = {
        name: start(
            f"made = handler(outcome={'auto' if outcome else None!r}, {PATIENT})\n"
            f"log.info('begin')\n{code}\n",
            service.url,
            tmp_path / name,
            name,
        )
        for name, (code, _, outcome) in ENDINGS.items()
    }
    for name, (_, status, outcome) in ENDINGS.items():
        finish(started[name], status)
        found = [message.partition("\n")[0] for message in messages(service.url, name)]
        ends = {"failed": ["unhandled exception"], "stopped": ["the program was interrupted"]}
        expected = ["begin", *SAID.get(name, []), *ends.get(outcome or "", [])]
        assert found == expected, name
        assert state_of(service.url, name) == ("closed", outcome), name
        assert left_in(tmp_path / name) == [], name


FORKING = """
made = handler(outcome="auto", options=Options(exit_seconds=60, linger_seconds=0.5))
for number in range(100):
    log.info("parent before %d", number)
children = []
for child in range(3):
    pid = os.fork()
    if pid == 0:
        for number in range(100):
            log.info("child %d %d", child, number)
        if child == 0:
            os._exit(0)
        if child == 1:
            sys.exit(0)
        os.kill(os.getpid(), 9)
    children.append(pid)
for number in range(100):
    log.info("parent after %d", number)
for pid in children:
    os.waitpid(pid, 0)
"""


def test_forked_children_send_what_is_theirs_and_nothing_of_their_parent(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """Also what children wrote that ended without any clean-up: their parent delivers it."""
    finish(start(FORKING, service.url, tmp_path / "spool", "forking"))
    found = Counter(messages(service.url, "forking"))
    expected = [f"parent {when} {n}" for when in ("before", "after") for n in range(100)]
    expected += [f"child {child} {number}" for child in range(3) for number in range(100)]
    assert found == Counter(expected)
    assert state_of(service.url, "forking") == ("closed", "success")
    assert left_in(tmp_path / "spool") == []


BUSY_FORKING = """
made = handler(close_run=False, options=Options(exit_seconds=60, linger_seconds=0.001))
stop = threading.Event()
counts = [0, 0]
def busy(me):
    while not stop.is_set():
        log.info("thread %d %d", me, counts[me])
        counts[me] += 1
threads = [threading.Thread(target=busy, args=(me,)) for me in (0, 1)]
[thread.start() for thread in threads]
for child in range(20):
    pid = os.fork()
    if pid == 0:
        log.info("child %d", child)
        os._exit(0)
    os.waitpid(pid, 0)
stop.set()
[thread.join() for thread in threads]
print(*counts)
"""


def test_forks_amid_busy_threads_neither_hang_nor_double(
    service: ServiceProcess, tmp_path: Path
) -> None:
    out, _ = finish(start(BUSY_FORKING, service.url, tmp_path / "spool", "busy"))
    counts = [int(word) for word in out.split()]
    found = messages(service.url, "busy")
    for me, count in enumerate(counts):
        mine = [line for line in found if line.startswith(f"thread {me} ")]
        assert mine == [f"thread {me} {number}" for number in range(count)]
    # What children left is the spool's, until somebody delivers it: the parent does.
    children = [line for line in found if line.startswith("child ")]
    assert Counter(children) == Counter(f"child {child}" for child in range(20))
    assert left_in(tmp_path / "spool") == []


def test_a_child_that_lives_on_keeps_nobody_from_what_its_killed_parent_left(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """The child inherits the lock of its parent's queue, and must not keep it."""
    code = """
    made = handler(options=Options(linger_seconds=1000))
    log.info("of the parent")
    child = os.fork()
    if child == 0:
        time.sleep(1000)
        os._exit(0)
    time.sleep(0.1)
    os.write(1, b"%d\\n" % child)
    os.kill(os.getpid(), 9)
    """
    process = start(code, service.url, tmp_path / "spool", "orphan")
    assert process.stdout is not None
    assert process.stderr is not None
    child = int(process.stdout.readline())
    process.wait(timeout=60)
    try:
        finish(start(f"handler({PATIENT})", service.url, tmp_path / "spool", "orphan", "next"))
        assert messages(service.url, "orphan") == ["of the parent"]
        assert left_in(tmp_path / "spool") == []
    finally:
        os.kill(child, signal.SIGKILL)
    process.stdout.close()
    process.stderr.close()


PROCESSES = """
import multiprocessing

def work(number):
    log.info("worker %d", number)
    return os.getpid()

def begin():
    handler(close_run=False, options=Options(exit_seconds=60))

if __name__ == "__main__":
    method = sys.argv[4]
    context = multiprocessing.get_context(method)
    begin()
    log.info("parent")
    with context.Pool(2, None if method == "fork" else begin) as pool:
        pool.map(work, range(20), chunksize=1)
        pool.close()
        pool.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes(service: ServiceProcess, tmp_path: Path, method: str) -> None:
    process = start(PROCESSES, service.url, tmp_path / "spool", method, method)
    finish(process)
    expected = ["parent", *(f"worker {number}" for number in range(20))]
    assert Counter(messages(service.url, method)) == Counter(expected)
    assert left_in(tmp_path / "spool") == []


def test_two_programs_share_a_spool_and_a_run(service: ServiceProcess, tmp_path: Path) -> None:
    code = f"""
    handler({PATIENT}, close_run=False)
    for number in range(500):
        log.info("%s %d", sys.argv[4], number)
    """
    both = [start(code, service.url, tmp_path / "spool", "shared", name) for name in "ab"]
    for process in both:
        finish(process)
    found = messages(service.url, "shared")
    for name in "ab":
        mine = [line for line in found if line.startswith(name)]
        assert mine == [f"{name} {number}" for number in range(500)]
    assert len(found) == 1000
    assert left_in(tmp_path / "spool") == []


def test_threads_log_at_once(service: ServiceProcess, tmp_path: Path) -> None:
    code = f"""
    made = handler({PATIENT})
    def work(me):
        for number in range(500):
            log.info("%d %d", me, number)
    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    [thread.start() for thread in threads]
    """
    finish(start(code, service.url, tmp_path / "spool", "threads"))
    found = messages(service.url, "threads")
    for me in range(8):
        mine = [line for line in found if line.startswith(f"{me} ")]
        assert mine == [f"{me} {number}" for number in range(500)]
    assert len(found) == 4000


def test_a_signal_handler_logs_while_its_thread_logs(
    service: ServiceProcess, tmp_path: Path
) -> None:
    code = f"""
    import itertools, signal
    made = handler({PATIENT})
    numbers = itertools.count()
    def interrupted(*_):
        log.info("signal %d", next(numbers))
    signal.signal(signal.SIGALRM, interrupted)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    for number in range(3000):
        log.info("main %d", number)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(next(numbers))
    """
    out, _ = finish(start(code, service.url, tmp_path / "spool", "signals"))
    found = messages(service.url, "signals")
    mine = [line for line in found if line.startswith("main ")]
    assert mine == [f"main {number}" for number in range(3000)]
    signals = [line for line in found if line.startswith("signal ")]
    assert int(out) > 10
    assert Counter(signals) == Counter(f"signal {number}" for number in range(int(out)))


def test_what_a_record_carries(service: ServiceProcess, tmp_path: Path) -> None:
    code = f"""
    made = handler({PATIENT})
    before = time.time()
    log.debug("fine"); log.info("of %s", "note"); log.warning("odd"); log.error("bad")
    log.critical("worst"); log.log(35, "own level")
    try:
        {{}}["key"]
    except KeyError:
        more = {{"order": 7, "tags": ["a", 1], "who": object, "nan": float("nan")}}
        log.exception("failed", extra=more)
    log.info("half \\ud800 of a pair, \\u2028, \\0 and a tab\\t")
    log.info("%d", "no number")
    log.info("x" * (2 << 20))
    print(before, time.time())
    """
    out, errors = finish(start(code, service.url, tmp_path / "spool", "carries"))
    assert "no number" in errors  # as `logging` says it for every handler
    found = records(service.url, "carries")
    levels = [record["level"] for record in found]
    assert levels == [
        "DEBUG",
        "INFO",
        "WARN",
        "ERROR",
        "FATAL",
        "WARN",
        "ERROR",
        "INFO",
        "INFO",
    ]
    assert found[5]["attributes"]["level"] == "Level 35"
    assert [r["message"] for r in found[:3]] == ["fine", "of note", "odd"]
    failed = found[6]
    assert failed["message"].startswith("failed\nTraceback (most recent call last):\n")
    assert failed["message"].endswith("KeyError: 'key'")
    attributes = failed["attributes"]
    assert attributes["logger"] == "program"
    assert attributes["thread"] == "MainThread"
    assert attributes["exception"] == "KeyError"
    assert (attributes["order"], attributes["tags"], attributes["nan"]) == ("7", '["a", 1]', "nan")
    assert attributes["who"] == "<class 'object'>"
    assert found[7]["message"].startswith("half ")
    assert found[7]["message"].endswith("\u2028, \0 and a tab\t")
    assert len(found[8]["message"]) == (1 << 20) + len("… [1048576 bytes cut]")
    began, ended = (float(word) for word in out.split())
    times = [datetime.fromisoformat(record["ts"]).timestamp() for record in found]
    assert began - 1e-6 <= times[0] <= times[-1] <= ended
