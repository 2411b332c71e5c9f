"""A real Prometheus: on `PATH`, or where `.ci/debian` put it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import yaml

from tests.servers.debian import find_program, why_no_program
from tests.servers.ports import free_port

_START_SECONDS = 120.0


@contextmanager
def running_prometheus(targets: Mapping[str, str], folder: Path) -> Iterator[str]:
    """The address of one that scrapes `host:port` of each job, each second."""
    command = find_program("prometheus")
    assert command is not None, why_no_program("prometheus")
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [target]}]}
        for job, target in targets.items()
    ]
    configuration = folder / "prometheus.yml"
    often = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    configuration.write_text(yaml.safe_dump({"global": often, "scrape_configs": jobs}))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                command,
                f"--config.file={configuration}",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        _wait(f"http://{address}/-/ready", process, folder / "prometheus.log")
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError(f"Prometheus did not start: {log.read_text()[-2000:]}")
