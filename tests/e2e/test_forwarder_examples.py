"""The shipped configurations of the forwarder, on what their producers write today.

`tests/forwarder/config/test_reference.py` has those of Airflow.
"""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import yaml

from tests.client.programs import records
from tests.e2e.service_process import BASE, ServiceProcess
from tests.forwarder.forwarder_process import ForwarderProcess
from tests.servers.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "deploy" / "forwarder"
HOST = socket.gethostname()

SYSLOG = """\
2026-11-30T03:00:01.123456+00:00 web1 systemd[1]: Started cron.service - Regular background program.
2026-11-30T03:00:02.000001+00:00 web1 kernel: usb 1-1: device descriptor read/64, error -71
2026-11-30T03:00:03.500000+00:00 web1 app[812]: ERROR: payment refused
"""
"""As rsyslog writes it in Debian 12 and Ubuntu 24.04: RSYSLOG_FileFormat."""
MESSAGES = """\
Nov 30 03:00:03 web1 sshd[99]: Accepted publickey for root from 10.0.0.1 port 5022 ssh2
Nov 30 03:00:04 web1 NetworkManager[700]: <warn>  [1796007604.5] dhcp4 (eth0): request timed out
"""
"""As rsyslog writes it in Red Hat's: RSYSLOG_TraditionalFileFormat."""
NGINX_ERROR = """\
2026/11/30 03:00:04 [error] 31#31: *1 open() "/srv/x" failed (2: No such file or directory), \
client: 10.0.0.1, server: _, request: "GET /x HTTP/1.1", host: "web1"
2026/11/30 03:00:05 [notice] 30#30: signal process started
"""
NGINX_ACCESS = """\
10.0.0.1 - - [30/Nov/2026:03:00:04 +0000] "GET /x HTTP/1.1" 404 153 "-" "curl/8.5.0"
10.0.0.1 - - [30/Nov/2026:03:00:06 +0000] "GET / HTTP/1.1" 200 615 "-" "curl/8.5.0"
"""
APP = """\
2026-11-30 03:00:07,100 ERROR app.pay: failed
Traceback (most recent call last):
  File "/srv/app/pay.py", line 7, in <module>
    raise KeyError('total')
KeyError: 'total'
2026-11-30 03:00:08,200 INFO app.pay: next
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    started = ServiceProcess(tmp_path_factory.mktemp("service") / "node")
    started.start()
    yield started
    started.stop()


def _shipped(name: str, folder: Path, url: str) -> ForwarderProcess:
    """A forwarder with that configuration, whose `/var/log` is `folder/log`."""
    text = (EXAMPLES / name).read_text().replace("/var/log", str(folder / "log"))
    config: dict[str, Any] = yaml.safe_load(text)
    config.pop("token_file", None)
    listen = {"listen": f"127.0.0.1:{free_port()}"}
    config |= {"targets": [url], "storage": str(folder / "state"), "metrics": listen}
    forwarder = ForwarderProcess(folder, url)
    forwarder.configure(**config)
    return forwarder


def _runs(url: str, fqn: str) -> list[str]:
    answer = httpx.get(f"{url}{BASE}/{fqn}", timeout=60)
    return [] if answer.status_code == 404 else sorted(answer.json()["runs"])


def _all(url: str, fqn: str) -> list[dict[str, Any]]:
    return [record for run in _runs(url, fqn) for record in records(url, quote(run, safe=""), fqn)]


def _said(url: str, fqn: str) -> list[tuple[str, str | None]]:
    """The first line and the level of each record."""
    return [(record["message"].split("\n")[0], record["level"]) for record in _all(url, fqn)]


def test_the_log_files_of_a_machine(service: ServiceProcess, tmp_path: Path) -> None:
    log, url = tmp_path / "log", service.url
    for folder in ("nginx", "app/pay", "journal/4b1c"):
        (log / folder).mkdir(parents=True)
    files = {
        "syslog": SYSLOG,
        "messages": MESSAGES,
        "nginx/error.log": NGINX_ERROR,
        "nginx/access.log": NGINX_ACCESS,
        "app/pay/pay.log": APP,
        "dpkg.log": "2026-11-30 03:00:09 status installed tzdata:all 2026b-0\n",
    }
    for name in ("lastlog", "wtmp", "btmp", "journal/4b1c/system.journal"):
        (log / name).write_bytes(b"LPKSHHRH\0\0\0\0" * 100)
    (log / "syslog.2.gz").write_bytes(gzip.compress(b"long ago\n"))
    forwarder = _shipped("host.yaml", tmp_path, url)
    forwarder.start()
    for name, text in files.items():
        (log / name).write_text(text)
    forwarder.until(lambda: len(_all(url, f"{HOST}.pay")) == 3)
    for name, text in files.items():
        fqn = f"{HOST}.{Path(name).stem}"
        lines = text.count("\n") - (3 if name.startswith("app") else 0)
        forwarder.until(lambda: len(_all(url, fqn)) == lines)  # noqa: B023
    levels = {
        name: [level for _, level in _said(url, f"{HOST}.{name}")]
        for name in ("syslog", "messages", "error", "access", "pay", "dpkg")
    }
    assert levels == {
        "syslog": [None, None, "ERROR"],
        "messages": [None, "WARN"],
        "error": ["ERROR", "INFO"],
        "access": [None, None],
        "pay": ["ERROR", "ERROR", "INFO"],
        "dpkg": [None],
    }
    first = _all(url, f"{HOST}.syslog")[0]
    assert first["ts"] == "2026-11-30T03:00:01.123456Z"
    assert first["attributes"] == {"log.file.name": "syslog"}
    assert "KeyError: 'total'" in _all(url, f"{HOST}.pay")[1]["message"]
    # logrotate renames, while the forwarder does not run.
    assert forwarder.stop() == 0
    with (log / "syslog").open("a") as file:
        file.write(SYSLOG)
    (log / "syslog").rename(log / "syslog.1")
    (log / "syslog").write_text("2026-11-30T04:00:00.000000+00:00 web1 systemd[1]: after\n")
    forwarder.start()
    forwarder.until(lambda: len(_all(url, f"{HOST}.syslog")) == 7)
    assert forwarder.stop() == 0
    answer = httpx.get(f"{url}{BASE}?name={HOST}.", timeout=60).json()["pipelines"]
    assert sorted(answer) == sorted(f"{HOST}.{name}" for name in levels)


UID = "0f6d3c1e-8a52-4c50-9f6e-3d1f6c0a9b11"
POD = f"shop_web-7d4b9c6f5-x2x8l_{UID}"


def _cri(text: str, *, second: int, stream: str = "stdout", tag: str = "F") -> str:
    return f"2026-11-30T03:00:{second:02}.123456789Z {stream} {tag} {text}\n"


@pytest.mark.in_turn(3)
def test_the_logs_of_containers(service: ServiceProcess, tmp_path: Path) -> None:
    """As containerd writes and the kubelet rotates them."""
    url, fqn = service.url, "shop.web-7d4b9c6f5-x2x8l.app"
    folder = tmp_path / "log" / "pods" / POD / "app"
    folder.mkdir(parents=True)
    log = folder / "0.log"
    forwarder = _shipped("kubernetes.yaml", tmp_path, url)
    forwarder.start()
    long = "x" * 16_384
    log.write_text(
        _cri("ready", second=1)
        + _cri(long, second=2, tag="P")
        + _cri("WARNING: disk", second=2, stream="stderr")
        + _cri("its end", second=2)
        + _cri("Traceback (most recent call last):", second=3, stream="stderr")
        + _cri('  File "a.py", line 1, in <module>', second=3, stream="stderr")
        + _cri("between", second=3)
        + _cri("KeyError: 'total'", second=3, stream="stderr")
        + _cri(json.dumps({"level": "error", "msg": "refused"}), second=4)
        + _cri("", second=5)
    )
    first = quote(f"{UID}/0", safe="")
    expected = {
        ("ready", "stdout"),
        ("WARNING: disk", "stderr"),
        (f"{long}its end", "stdout"),
        ("Traceback (most recent call last):", "stderr"),
        ("between", "stdout"),
        ('{"level": "error", "msg": "refused"}', "stdout"),
        ("", "stdout"),
    }

    def found() -> set[tuple[str, str]]:
        return {
            (record["message"].split("\n")[0], record["attributes"]["log.iostream"])
            for record in records(url, first, fqn)
        }

    forwarder.until(lambda: found() == expected)
    by_text = {record["message"]: record for record in records(url, first, fqn)}
    assert by_text["ready"]["ts"] == "2026-11-30T03:00:01.123456Z"
    assert by_text["ready"]["attributes"] == {
        "log.iostream": "stdout",
        "k8s.namespace.name": "shop",
        "k8s.pod.name": "web-7d4b9c6f5-x2x8l",
        "k8s.pod.uid": UID,
        "k8s.container.name": "app",
        "k8s.container.restart_count": "0",
    }
    assert [record["level"] for text, record in by_text.items() if "refused" in text] == ["ERROR"]
    (traceback,) = [record for text, record in by_text.items() if "Traceback" in text]
    assert (traceback["level"], traceback["message"][-17:]) == ("ERROR", "KeyError: 'total'")
    # The kubelet renames, and compresses the rotation before by way of another name.
    assert forwarder.stop() == 0
    texts = []
    for hour in (4, 5, 6):
        rotated = folder / f"0.log.20261130-0{hour}0000"
        with log.open("a") as file:
            file.write(_cri(f"last of {hour}", second=hour))
        log.rename(rotated)
        log.write_text(_cri(f"first after {hour}", second=hour + 1))
        texts += [f"last of {hour}", f"first after {hour}"]
        for before in folder.glob("0.log.*-0[45]0000"):
            if before != rotated:
                partly = before.with_name(f"{before.name}.tmp")
                partly.write_bytes(gzip.compress(before.read_bytes()))
                partly.rename(before.with_name(f"{before.name}.gz"))
                before.unlink()
        if hour == 5:
            forwarder.start()
            forwarder.until(lambda: {text for text, _ in found()} >= set(texts))  # noqa: B023
    forwarder.until(lambda: {text for text, _ in found()} >= set(texts))
    (folder / "1.log").write_text(_cri("ready again", second=9))
    forwarder.until(lambda: f"{UID}/1" in _runs(url, fqn))
    assert forwarder.stop() == 0
    stored = [record["message"] for record in records(url, first, fqn)]
    assert [text for text in stored if " of " in text or "first" in text] == texts
    assert len(stored) == len(set(stored)) == len(expected) + len(texts)
    assert _runs(url, fqn) == [f"{UID}/0", f"{UID}/1"]
