"""Pages of a large run: `python -m benchmarks.pages [--megabytes 1000]`.

One run of so many MB, while it is open and after it was closed: the time of a page of
1,000 lines at the start, in the middle and at the end, many times each, alternating.
The limit beside it: reading as many bytes of a file of that size at the same place.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from benchmarks.corpus import lines_of
from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path
from tests.e2e.service_process import ServiceProcess

_KEY = RunKey("bench.pages", "run")
_BATCH_LINES = 10_000
_LIMIT = 1000
_ROUNDS = 40


def _fill(client: httpx.Client, megabytes: int) -> int:
    """Posts the run: its lines."""
    source = lines_of(_BATCH_LINES * 8)
    batches = [b"".join(source[i : i + _BATCH_LINES]) for i in range(0, len(source), _BATCH_LINES)]
    sent = lines = 0
    while sent < megabytes * 1_000_000:
        batch = batches[lines // _BATCH_LINES % len(batches)]
        reply = client.post(run_path(_KEY), content=batch, headers={"Content-Type": "text/plain"})
        reply.raise_for_status()
        sent += len(batch)
        lines += _BATCH_LINES
    return lines


def _measure(client: httpx.Client, lines: int) -> dict[str, float]:
    """Median milliseconds of a page at each place."""
    places = {"start": 0, "middle": lines // 2, "end": lines - _LIMIT}
    times: dict[str, list[float]] = {place: [] for place in places}
    for turn in range(_ROUNDS):
        for place, after in places.items():
            # Another page each time, so that no cache of pages could help.
            offset = max(min(after + turn * 13 - 260, lines - _LIMIT), 0)
            start = time.perf_counter()
            page = client.get(run_path(_KEY), params={"after": offset, "limit": _LIMIT})
            times[place].append(time.perf_counter() - start)
            assert page.json()["logs"].count("\n") == _LIMIT - 1
    return {place: statistics.median(values) * 1000 for place, values in times.items()}


def _measure_file(path: Path, size: int) -> dict[str, float]:
    """Median milliseconds of reading as many bytes as a page has, at the same places."""
    end = path.stat().st_size - size
    places = {"start": 0, "middle": end // 2, "end": end}
    found = {}
    with path.open("rb", buffering=0) as file:
        for place, offset in places.items():
            times = []
            for turn in range(_ROUNDS):
                start = time.perf_counter()
                file.seek(max(offset - turn * size, 0))
                file.read(size)
                times.append(time.perf_counter() - start)
            found[place] = statistics.median(times) * 1000
    return found


def _report(state: str, measured: dict[str, float]) -> float:
    worst = max(measured.values()) / min(measured.values())
    row = ", ".join(f"{place} {ms:.2f} ms" for place, ms in measured.items())
    print(f"{state:<6} {row}; slowest over fastest {worst:.2f}", flush=True)
    return worst


def main() -> int:
    """0 if the places differ by less than a factor of two."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=".") as temporary:
        folder = Path(temporary).resolve()
        service = ServiceProcess(folder / "data")
        service.start()
        with httpx.Client(base_url=service.url, timeout=120) as client:
            lines = _fill(client, arguments.megabytes)
            time.sleep(15)
            worst = _report("open", _measure(client, lines))
            while client.post(run_path(_KEY, verb="close")).json()["state"] != "closed":
                time.sleep(0.5)
            worst = max(worst, _report("closed", _measure(client, lines)))
        (text,) = folder.glob("data/store/pipeline-logs/*/*/logs.txt")
        _report("file", _measure_file(text, text.stat().st_size * _LIMIT // lines))
        service.stop()
    return 0 if worst < 2 else 1


if __name__ == "__main__":
    sys.exit(main())
