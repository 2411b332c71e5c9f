"""Requests of appenders: where they may go, and what is said when they fail."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.filesystem import Disk
from tailrace.pipelines.appenders import http
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed
from tailrace.pipelines.appenders.http import HttpTargetSettings, Poster, is_allowed
from tailrace.pipelines.appenders.otlp import Webhook, WebhookSettings
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.definition import parse
from tests.pipelines.appenders.receiver import Receiver
from tests.pipelines.events import events


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().running() as found:
        yield found


def context() -> AppenderContext:
    return AppenderContext("p", "x", 0, 1, Disk(), SystemClock(), lambda: True)


@pytest.mark.parametrize(
    ("address", "private", "public"),
    [
        ("93.184.216.34", True, True),
        ("2606:2800:220:1::1", True, True),
        ("127.0.0.1", True, False),
        ("::1", True, False),
        ("10.1.2.3", True, False),
        ("192.168.0.1", True, False),
        ("fd00::1", True, False),
        ("100.64.0.1", False, False),
        ("169.254.169.254", False, False),
        ("fe80::1%eth0", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("::ffff:127.0.0.1", True, False),
        ("64:ff9b::a9fe:a9fe", False, False),
        ("64:ff9b::7f00:1", True, False),
        ("2002:7f00:1::", True, False),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("224.0.0.1", False, False),
        ("255.255.255.255", False, False),
        ("::127.0.0.1", True, False),
        ("::a9fe:a9fe", False, False),
        ("::ffff:0:7f00:1", True, False),
        ("::ffff:0:a9fe:a9fe", False, False),
        ("64:ff9b:1::7f00:1", True, False),
        ("fec0::1", True, False),
        ("2001::1", True, False),
        ("192.0.0.8", True, False),
        ("100.100.100.200", False, False),
        ("168.63.129.16", False, False),
        ("192.0.0.192", False, False),
        ("fd00:ec2::254", False, False),
        ("fd20:ce::254", False, False),
        ("2002:a9fe:a9fe::", False, False),
        ("2002:a9fe:a9fe:1::7", False, False),
        ("64:ff9b:1::a9fe:a9fe", False, False),
        ("64:ff9b:1:a9fe:a9:fe00::", False, False),
        ("64:ff9b:1:a9:fe:a9fe::", False, False),
        ("64:ff9b:1:0:a9:fea9:fe00:0", False, False),
        ("64:ff9b:1:a00:0:100::", True, False),
        ("2001:0:a9fe:a9fe::", False, False),
        ("2001:0:4136:e378:8000:63bf:5601:5601", False, False),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", True, False),
        ("2606:2800:220:1:0:5efe:a9fe:a9fe", False, False),
        ("2606:2800:220:1:200:5efe:a9fe:a9fe", False, False),
        ("64:ff9b::a83f:8110", False, False),
    ],
)
def test_where_a_request_may_go(address: str, private: bool, public: bool) -> None:
    assert is_allowed(address, private=True) is private
    assert is_allowed(address, private=False) is public


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1"]
)
def test_this_machine_is_not_reached_by_any_name_of_it(receiver: Receiver, host: str) -> None:
    poster = Poster(HttpTargetSettings(url=f"http://{host}:{receiver.port}/x"))
    with pytest.raises(AppenderFailed, match=r"no request is sent to|cannot be resolved"):
        poster.post(b"x", {})
    assert receiver.requests == []


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", b"HTTP/1.1 "]
)
def test_an_answer_that_comes_a_byte_a_time_is_broken_off(head: bytes) -> None:
    """Each byte is in time. What was answered before counts."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(head)
                while True:
                    connection.sendall(b"2")
                    ended.wait(0.02)

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        poster = Poster(HttpTargetSettings(url=url, allow_private=True, timeout=1))
        if head.endswith(b"\n"):
            assert poster.post(b"x", {}).status == 200
        else:
            with pytest.raises(AppenderFailed, match="did not answer"):
                poster.post(b"x", {})
        thread.join()


def test_a_name_that_changes_its_address_leads_nowhere_else(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: what was checked is what is connected to, though the name means another."""
    asked: list[str] = []

    def resolved(host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(host)
        address = "192.0.2.1" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    connected: list[str] = []

    def connect(address: tuple[str, int], timeout: float | None) -> socket.socket:
        connected.append(address[0])
        raise ConnectionRefusedError("nobody there")

    monkeypatch.setattr(http, "is_allowed", lambda address, private: address == "192.0.2.1")
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr(socket, "create_connection", connect)
    poster = Poster(HttpTargetSettings(url=f"http://rebound.example:{receiver.port}/x"))
    with pytest.raises(AppenderFailed, match=r"rebound\.example:.* did not answer"):
        poster.post(b"x", {})
    assert (asked, connected) == (["rebound.example"], ["192.0.2.1"])
    with pytest.raises(AppenderFailed, match=r"no request is sent to .*127\.0\.0\.1"):
        poster.post(b"x", {})
    assert connected == ["192.0.2.1"]
    assert receiver.requests == []


def test_redirects_are_not_followed_and_failures_show_no_secret(receiver: Receiver) -> None:
    settings = HttpTargetSettings(url=f"{receiver.url}/secret?token=secret", allow_private=True)
    poster = Poster(settings)
    receiver.answers = [(302, {"Location": f"{receiver.url}/other"}, b""), (503, {}, b"secret")]
    with pytest.raises(AppenderFailed, match="answered 302: redirects are not followed") as first:
        poster.post(b"x", {})
    with pytest.raises(AppenderFailed, match="answered 503") as second:
        poster.post(b"x", {})
    assert "secret" not in f"{first.value}{second.value}{settings!r}"
    assert [one.path for one in receiver.requests] == ["/secret?token=secret"] * 2
    with pytest.raises(AppenderFailed, match="did not answer: ConnectionRefused"):
        Poster(HttpTargetSettings(url="http://127.0.0.1:9/", allow_private=True)).post(b"", {})


@pytest.mark.parametrize(
    "given",
    [
        {"url": "ftp://x/"},
        {"url": "http:///x"},
        {"url": "http://user:pass@x/"},
        {"url": "http://x/ y"},
        {"url": "http://x:99999/"},
        {"url": "http://x/", "headers": {"Host": "y"}},
        {"url": "http://x/", "headers": {"A": "b\r\nC: d"}},
        {"url": "http://x/", "headers": {"A b": "c"}},
    ],
)
def test_what_cannot_be_asked_for_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        HttpTargetSettings.model_validate(given)


def test_a_webhook_gets_events_in_requests_of_bounded_size(receiver: Receiver) -> None:
    settings = WebhookSettings(
        url=f"{receiver.url}/in",
        headers={"Authorization": "Bearer t"},
        allow_private=True,
        max_events=2,
        max_request_size=10,
    )
    hook = Webhook(settings)
    hook.start(context(), None)
    hook.append(events(["a", "b", "c", "long " * 10, "d"]))
    assert hook.sync() == {}
    hook.stop()
    bodies = [
        [json.loads(line)["message"] for line in one.body.decode().splitlines()]
        for one in receiver.requests
    ]
    assert bodies == [["a", "b"], ["c"], ["long " * 10], ["d"]]
    first = receiver.requests[0].headers
    assert (first["authorization"], first["tailrace-pipeline"]) == ("Bearer t", "p")
    assert first["content-type"] == "application/x-ndjson"


def test_a_webhook_may_post_an_array_and_fails_where_it_is_not_taken(receiver: Receiver) -> None:
    hook = Webhook(WebhookSettings(url=receiver.url, allow_private=True, format="json"))
    hook.start(context(), None)
    hook.append(events(["a", "b"]))
    assert [one["message"] for one in json.loads(receiver.requests[0].body)] == ["a", "b"]
    receiver.answers = [(400, {}, b"")]
    with pytest.raises(AppenderFailed, match="answered 400"):
        hook.append(events(["c"]))
    hook.stop()


def test_a_wrong_configuration_is_told_without_its_secrets() -> None:
    hook = {"type": "webhook", "name": "x", "url": "ftp://hooks/secret"}
    for more in ({}, {"url": "http://x/", "headers": {"X": ["secret"]}}):
        with pytest.raises(InvalidInput, match=r"appenders\.0\.(url|headers)") as raised:
            parse({"name": "p", "appenders": [{**hook, **more}]}, AppenderRegistry())
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize("status", [400, 404, 413, 422])
@pytest.mark.parametrize("poison", [{0}, {6}, {3, 4}, set(range(7))])
def test_a_webhook_refuses_the_events_that_are_meant_and_posts_the_others_once(
    receiver: Receiver, status: int, poison: set[int]
) -> None:
    texts = [f"<{number}>" for number in range(7)]
    bad = {texts[number] for number in poison}
    refused: list[tuple[str, str, str]] = []

    def refuse(some: pa.Table, reason: str, detail: str = "") -> None:
        (message,) = some.column("message").to_pylist()
        refused.append((message, reason.partition(" ")[2], detail))

    receiver.judge = lambda body: status if any(one.encode() in body for one in bad) else 200
    hook = Webhook(WebhookSettings(url=receiver.url, allow_private=True, max_events=5))
    hook.start(replace(context(), refuse=refuse), None)
    hook.append(events(texts))
    hook.stop()
    taken = [one.body.decode() for one in receiver.requests if one.status == 200]
    posted = [json.loads(line)["message"] for body in taken for line in body.splitlines()]
    assert posted == [text for text in texts if text not in bad]
    assert [message for message, _, _ in refused] == [text for text in texts if text in bad]
    assert all(reason.startswith(f"answered {status}") for _, reason, _ in refused)
    assert {detail for _, _, detail in refused} == {"{}"}  # what the receiver said
