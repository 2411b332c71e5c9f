"""A server under measurement: its CPU, its memory, and wrk as the load beside it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_REQUESTS = """
local bodies, paths = {}, {}
for path in io.open(os.getenv("BODIES")):lines() do
  local file = io.open(path, "rb")
  bodies[#bodies + 1] = file:read("*a")
  file:close()
end
for path in string.gmatch(os.getenv("PATHS"), "%S+") do paths[#paths + 1] = path end
local requests, at = {}, 0
function init()
  local headers = { ["Content-Type"] = os.getenv("CONTENT_TYPE") }
  local token = os.getenv("TOKEN")
  if token ~= "" then headers["Authorization"] = "Bearer " .. token end
  for i = 0, #bodies * #paths - 1 do
    local path, body = paths[i % #paths + 1], bodies[i % #bodies + 1]
    requests[i] = wrk.format("POST", path, headers, body)
  end
end
function request()
  at = at + 1
  return requests[at % #requests]
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What wrk saw: requests a second, latencies in ms, replies that were no 2xx."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    errors: int

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds


class Watched:
    """CPU seconds and memory of a process and its children, sampled while it runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu = cpu_seconds(self._pid)
        self.rss_samples: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def end(self) -> float:
        """Stops sampling: CPU seconds since the beginning."""
        self._stop.set()
        self._thread.join()
        return cpu_seconds(self._pid) - self._cpu

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds since the beginning."""
        return cpu_seconds(self._pid) - self._cpu

    @property
    def peak_mb(self) -> float:
        """The highest resident size that was seen."""
        return max(self.rss_samples, default=0) / 1e6

    @property
    def late_growth_mb(self) -> float:
        """Mean of the last quarter of the samples less mean of the second: flat is near 0."""
        quarter = max(len(self.rss_samples) // 4, 1)
        second = self.rss_samples[quarter : 2 * quarter] or self.rss_samples
        last = self.rss_samples[-quarter:]
        return (sum(last) / max(len(last), 1) - sum(second) / max(len(second), 1)) / 1e6

    def _sample(self) -> None:
        while not self._stop.wait(0.25):
            self.rss_samples.append(_rss(self._pid))


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _rss(pid: int) -> int:
    """Anonymous and shared resident bytes, without file pages that the kernel may drop."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def load(
    url: str,
    paths: Sequence[str],
    bodies: Sequence[Path],
    *,
    seconds: float,
    connections: int,
    content_type: str,
    folder: Path,
    token: str = "",
) -> Load:
    """POSTs the bodies round robin to the paths with wrk. Raises `RuntimeError` without wrk."""
    if shutil.which("wrk") is None:
        raise RuntimeError("wrk is missing: install the package `wrk`")
    script, names = folder / "requests.lua", folder / "bodies.txt"
    script.write_text(_REQUESTS)
    names.write_text("".join(f"{body}\n" for body in bodies))
    result = subprocess.run(
        [
            "wrk",
            "-t1",
            f"-c{connections}",
            f"-d{seconds:g}s",
            "--timeout",
            "30s",
            "--latency",
            "-s",
            str(script),
            url,
        ],
        check=True,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "BODIES": str(names),
            "PATHS": " ".join(paths),
            "CONTENT_TYPE": content_type,
            "TOKEN": token,
        },
    )
    return _parse(result.stdout)


def _parse(text: str) -> Load:
    done = re.search(r"(\d+) requests in ([\d.]+)(\w+),", text)
    if done is None:
        raise RuntimeError(f"wrk said:\n{text}")
    unit = {"s": 1.0, "m": 60.0, "ms": 1e-3}[done[3]]
    errors = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    sockets = re.search(
        r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text
    )
    failed = int(errors[1]) if errors else 0
    failed += sum(int(n) for n in sockets.groups()) if sockets else 0
    return Load(
        int(done[1]), float(done[2]) * unit, _latency(text, "50"), _latency(text, "99"), failed
    )


def _latency(text: str, percentile: str) -> float:
    found = re.search(rf"\s{percentile}%\s+([\d.]+)(us|ms|s)\b", text)
    if found is None:
        return float("nan")
    return float(found[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[found[2]]
