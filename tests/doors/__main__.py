"""Real clients of the doors before a real service, by a proxy that loses replies: `make doors`.

    go SDK      OpenTelemetry's SDK for Go, built here
    collector   OpenTelemetry's collector, built by its builder, with kill -9 in the middle
    rsyslog     omelasticsearch with the configuration of docs/use/syslog.md, from Debian's packages
    promtail    PROMTAIL_CLIENT: its client, built of promtail_client.go in Loki's module
    logcli      LOGCLI_BIN: query, labels, series, stats, volume, tail

Each sent line is compared with the stored ones: none is lost, and none is stored twice. What this
machine cannot have is named. Exits 1 and says what does not hold.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.e2e.service_process import ServiceProcess
from tests.servers.cached import cache_folder, why_not_fetched
from tests.servers.otelcol import Collector
from tests.service.doors.dropping_proxy import dropping

PAGE = Path(__file__).parents[2] / "docs" / "use" / "syslog.md"
COUNT = 2_000
LINES = [f"line {number}" for number in range(COUNT)]
_PATIENCE_SECONDS = 120.0
_BATCH = 100
LOGCLI = "logcli"
_OTEL = "go.opentelemetry.io/otel"
_MODULES = (
    f"{_OTEL}/exporters/otlp/otlplog/otlploghttp@v0.23.0",
    f"{_OTEL}/sdk/log@v1.47.0",
    f"{_OTEL}/log@v1.47.0",
)
_PACKAGES = ("rsyslog", "rsyslog-elasticsearch", "libestr0", "libfastjson4", "liblognorm5")


class NotHere(Exception):
    """This machine cannot have a client; the reason."""


def _fetched(name: str, what: str, script: str, *arguments: str) -> Path:
    folder = cache_folder(name)
    why = why_not_fetched(
        folder, what, lambda made: ["sh", "-ec", script, "sh", str(made), *arguments]
    )
    if why is not None:
        raise NotHere(why)
    return folder


def _run(command: Sequence[str], *, seconds: float = _PATIENCE_SECONDS) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


# --- Clients that write -------------------------------------------------------------------------


def by_go_sdk(url: str, service: str, _: Path) -> None:
    """The SDK's batches of 50, in gzip."""
    if shutil.which("go") is None:
        raise NotHere("no Go")
    script = 'mkdir "$1"; cp "$2" "$1/main.go"; cd "$1"; shift 2; go mod init sdk; go get "$@"'
    source = str(Path(__file__).with_name("go_sdk.go"))
    what = "OpenTelemetry's SDK for Go"
    built = _fetched("otel-go-1.47.0", what, f"{script}; go build -o sdk", source, *_MODULES)
    # It does not send again what it got no reply to, and says so at its end.
    command = [str(built / "sdk"), url, str(COUNT), service]
    subprocess.run(command, timeout=_PATIENCE_SECONDS, check=False)


def by_collector(url: str, service: str, folder: Path) -> None:
    """Requests are sent again until the collector has answered, also while it is away."""
    collector = Collector(folder / "collector", f"{url}/v1/logs")
    try:
        collector.start()
    except RuntimeError as error:
        raise NotHere(str(error)) from error
    try:
        for first in range(0, COUNT, _BATCH):
            body = _otlp(service, first)
            if first == COUNT // 2:
                collector.kill()
                collector.start()
            _until_taken(collector.url, body)
    finally:
        collector.stop()


def _otlp(service: str, first: int) -> bytes:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    for key, value in (("service.name", service), ("tailrace.run.id", "42")):
        resource.resource.attributes.add(key=key).value.string_value = value
    scope, now = resource.scope_logs.add(), time.time_ns()
    for number, line in enumerate(LINES[first : first + _BATCH]):
        record = scope.log_records.add(time_unix_nano=now + number)
        record.body.string_value = line
    return bytes(request.SerializeToString())


def _until_taken(url: str, body: bytes) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    with httpx.Client(headers={"content-type": "application/x-protobuf"}, timeout=30) as client:
        while time.monotonic() < end:
            try:
                if client.post(url, content=body).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
    raise AssertionError("the collector does not take a request")


def by_rsyslog(url: str, service: str, folder: Path) -> None:
    """The page's configuration, with lines from a file."""
    if shutil.which("apt-get") is None:
        raise NotHere("no apt-get")
    script = 'mkdir "$1"; cd "$1"; shift; apt-get -qq download "$@"'
    unpack = 'for f in *.deb; do dpkg-deb -x "$f" .; done'
    packages = _fetched("rsyslog-debian", "rsyslog", f"{script}; {unpack}", *_PACKAGES)
    [library] = packages.glob("usr/lib/*-linux-gnu")
    [example] = re.findall(r"```rsyslog\n(.*?)```", PAGE.read_text(), re.DOTALL)
    example = example.replace('"localhost"', '"127.0.0.1"').replace("8790", url.rpartition(":")[2])
    example = example.replace("/var/log/rsyslog-refused.json", str(folder / "refused.json"))
    example = example.replace('"omelasticsearch")', f'"{library}/rsyslog/omelasticsearch.so")')
    work, source = folder / "rsyslog", folder / "lines.log"
    work.mkdir()
    source.write_text("".join(f"{line}\n" for line in LINES))
    config = folder / "rsyslog.conf"
    config.write_text(
        f'global(workDirectory="{work}")\n'
        f'module(load="{library}/rsyslog/imfile.so" mode="polling" pollingInterval="1")\n'
        f'input(type="imfile" file="{source}" tag="{service}:")\n{example}'
    )
    command = [str(packages / "usr/sbin/rsyslogd"), "-n", "-f", str(config)]
    command += ["-i", str(folder / "rsyslog.pid"), "-M", str(library / "rsyslog")]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library)}
    with (
        (folder / "rsyslog.out").open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process,
    ):
        try:
            until(lambda: len(stored(folder_url(folder), service)) >= COUNT)
        finally:
            process.terminate()
    assert not (folder / "refused.json").exists(), (folder / "refused.json").read_text()[:1000]


def by_promtail(url: str, service: str, _: Path) -> None:
    """Promtail's client, in batches of 8 KiB as protobuf in snappy, which it sends until taken."""
    binary = os.environ.get("PROMTAIL_CLIENT")
    if binary is None:
        raise NotHere("PROMTAIL_CLIENT does not name it")
    _run([binary, url, str(COUNT), service])


WRITERS: Sequence[tuple[str, Callable[[str, str, Path], None], int]] = (
    ("go SDK", by_go_sdk, 3),
    ("collector", by_collector, 3),
    ("promtail", by_promtail, 3),
    ("rsyslog", by_rsyslog, 0),  # 8.2302 itself drops lines if a connection breaks
)
"""What writes, and how many replies it loses."""


def folder_url(folder: Path) -> str:
    """The service itself, not the proxy before it."""
    return (folder / "url").read_text()


def stored(url: str, fqn: str) -> list[str]:
    """The lines of a pipeline in the order in which they were stored."""
    reply = httpx.get(f"{url}/query", params={"fqn": fqn, "from": "0", "order": "asc"}, timeout=60)
    return [json.loads(line)["message"] for line in reply.raise_for_status().text.splitlines()[:-1]]


def until(holds: Callable[[], bool]) -> None:
    """Waits until it holds."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("it does not come to pass")
        time.sleep(0.2)


# --- logcli -------------------------------------------------------------------------------------


def by_logcli(url: str, service: str, folder: Path) -> None:
    """Every verb, on the lines that `by_go_sdk` or another client has sent."""
    binary = os.environ.get("LOGCLI_BIN")
    if binary is None:
        raise NotHere("LOGCLI_BIN does not name it")
    _until_taken(f"{url}/v1/logs", _otlp(service, 0))
    logcli = [binary, f"--addr={url}", "--quiet"]
    selector = f'{{pipeline="{service}"}}'

    def asked(*words: str) -> str:
        return _run([*logcli, *words])

    found = asked("query", selector, "--limit=1000", "--output=raw", "--forward")
    assert sorted(found.splitlines()) == sorted(LINES[:_BATCH]), found[-500:]
    filtered = asked("query", f'{selector} |~ "line 9." | logfmt', "--output=raw", "--since=1h")
    assert sorted(filtered.splitlines()) == [f"line 9{n}" for n in range(10)], filtered
    counted = json.loads(asked("instant-query", f"sum(count_over_time({selector}[1h]))"))
    assert counted[0]["value"][1] == str(_BATCH), counted
    assert {"pipeline", "run", "service_name"} <= set(asked("labels").split())
    assert service in asked("labels", "pipeline").split()
    assert f'pipeline="{service}"' in asked("series", selector)
    stats = asked("stats", selector)
    assert re.search(rf"entries: {_BATCH}\b", stats), stats
    assert service in asked("volume", selector)
    assert service in asked("volume_range", selector, "--step=1m")
    output = folder / "tail.out"
    with (
        output.open("wb") as to,
        subprocess.Popen([*logcli, "query", "--tail", "--output=raw", selector], stdout=to) as tail,
    ):
        try:
            until(lambda: len(output.read_text().split("\n")) > 30)
            _until_taken(f"{url}/v1/logs", _otlp(service, _BATCH))
            until(lambda: f"line {2 * _BATCH - 1}\n" in output.read_text())
        finally:
            tail.terminate()
    shown = output.read_text().splitlines()
    assert shown == LINES[_BATCH - 30 : 2 * _BATCH], "the newest 30, then the new ones"


# --- The run ------------------------------------------------------------------------------------


async def told(name: str, service: ServiceProcess, folder: Path) -> str:
    """Runs one client; says how it went."""
    fqn = name.replace(" ", "-")
    (folder / "url").write_text(service.url)
    if name == LOGCLI:
        await asyncio.to_thread(by_logcli, service.url, fqn, folder)
        return "query, labels, series, stats, volume and tail answer what was sent"
    [(write, drops)] = [row[1:] for row in WRITERS if row[0] == name]
    async with dropping(service.url, drops=drops) as proxy:
        await asyncio.to_thread(write, proxy.url, fqn, folder)
    found = await asyncio.to_thread(stored, service.url, fqn)
    lost, twice = len({*LINES} - {*found}), len(found) - len({*found})
    assert (lost, twice) == (0, 0), f"{lost} lost, {twice} twice, of {COUNT}"
    return f"{COUNT} lines, each stored once; {proxy.dropped} replies were lost"


async def main(names: Sequence[str]) -> int:
    """Runs all clients, or those that are named."""
    wrong = 0
    with tempfile.TemporaryDirectory() as root:
        service = ServiceProcess(Path(root, "data"))
        service.start()
        try:
            for name in names or [*[row[0] for row in WRITERS], LOGCLI]:
                folder = Path(root, name.replace(" ", "-"))
                folder.mkdir()
                try:
                    print(f"{name}: {await told(name, service, folder)}", flush=True)
                except NotHere as error:
                    print(f"{name}: not here: {error}", flush=True)
                except AssertionError as error:
                    wrong += 1
                    print(f"{name}: DOES NOT HOLD: {error}", flush=True)
        finally:
            service.kill()
    return wrong


if __name__ == "__main__":
    sys.exit(min(asyncio.run(main(sys.argv[1:])), 1))
