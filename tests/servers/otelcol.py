"""A real OpenTelemetry collector for tests: built by its builder (ocb), once for a machine.

It receives OTLP/HTTP and passes on what came as OTLP/HTTP in JSON, before it answers. Go builds it
from pinned versions into the user's cache, which takes some minutes of CPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import yaml

from tests.servers.cached import cache_folder, why_not_fetched
from tests.servers.ports import free_port

VERSION = "v0.165.0"
_CORE = "go.opentelemetry.io/collector"
_START_SECONDS = 120.0
_BUILD = {
    "dist": {"name": "otelcol", "output_path": "."},
    "receivers": [{"gomod": f"{_CORE}/receiver/otlpreceiver {VERSION}"}],
    "exporters": [{"gomod": f"{_CORE}/exporter/otlphttpexporter {VERSION}"}],
}
_SCRIPT = """
set -e
mkdir -p "$1"
cat > "$1/build.yaml"
cd "$1"
go run {builder}@{version} --config build.yaml
mv otelcol .. && rm -rf "$1" && mkdir "$1" && mv ../otelcol "$1"
"""


def otelcol() -> Path:
    """The collector's program, built if need be. Raises `RuntimeError` that says why it is not."""
    folder = cache_folder(f"otelcol-{VERSION}")
    script = _SCRIPT.format(builder=f"{_CORE}/cmd/builder", version=VERSION)
    given = yaml.safe_dump(_BUILD)
    why = why_not_fetched(
        folder,
        f"OpenTelemetry's collector {VERSION}, by its builder",
        lambda made: ["sh", "-c", f"printf '%s' \"$2\" | (\n{script}\n)", "sh", str(made), given],
    )
    if why is not None:
        raise RuntimeError(why)
    return folder / "otelcol"


class Collector:
    """A collector that passes on to `target`, and has its files in `folder`.

    Its port stays the same over restarts.
    """

    def __init__(self, folder: Path, target: str) -> None:
        self._folder = folder
        self._target = target
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/v1/logs"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        receiver = {"protocols": {"http": {"endpoint": f"127.0.0.1:{self._port}"}}}
        exporter = {
            "logs_endpoint": self._target,
            "encoding": "json",
            "compression": "none",
            "sending_queue": {"enabled": False},
            "retry_on_failure": {"enabled": False},
        }
        pipeline = {"receivers": ["otlp"], "exporters": ["otlphttp"]}
        config = {
            "receivers": {"otlp": receiver},
            "exporters": {"otlphttp": exporter},
            "service": {
                "pipelines": {"logs": pipeline},
                "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "warn"}},
            },
        }
        path = self._folder / "collector.yaml"
        path.write_text(yaml.safe_dump(config))
        with (self._folder / "collector.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(otelcol()), "--config", str(path)],
                stdout=log,
                stderr=log,
                env={**os.environ, "GOMAXPROCS": "1"},
            )
        self._wait_ready()

    def stop(self) -> None:
        """Asks it to stop, and waits."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(_START_SECONDS)
            self._process = None

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_START_SECONDS)
            self._process = None

    def output(self) -> str:
        """What it said."""
        return (self._folder / "collector.log").read_text(errors="replace")

    def _wait_ready(self) -> None:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            try:
                urlopen(self.url, timeout=5)  # a GET, which it refuses
            except HTTPError:
                return
            except (URLError, OSError):
                time.sleep(0.05)
        raise AssertionError(f"the collector does not answer: {self.output()[-2000:]}")
