"""Targets with https: a certificate that the target's name and `ca_file` prove, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.forwarder.delivery.delivery import open_delivery
from tailrace.forwarder.delivery.targets import Token
from tailrace.logstore.errors import InvalidInput
from tailrace_client.records import BatchIds
from tests.client.programs import messages
from tests.e2e.service_process import ServiceProcess
from tests.forwarder.delivery.test_delivery import sending, shipment
from tests.forwarder.forwarder_process import ForwarderProcess, stored
from tests.servers.openssl import Authority, tls_before

pytestmark = pytest.mark.openssl
_LOCAL = "DNS:localhost"


def test_a_certificate_of_the_own_authority_is_trusted(
    service: ServiceProcess, tmp_path: Path
) -> None:
    ours = Authority(tmp_path, "ours")
    context = [ours.certificate("good", _LOCAL)]
    with tls_before(service.port, context) as port:
        target = f"https://localhost:{port}"
        with sending(target, ca_file=str(ours.file)) as sent:
            sent.delivery.submit(shipment(BatchIds().mint(), "tls", "tls", "over tls\n"))
            assert sent.kinds(1) == ["acknowledged"]
    assert messages(service.url, "tls") == ["over tls"]


@pytest.mark.parametrize("wrong", ["authority", "name", "no authority"])
def test_any_other_is_refused_said_once_and_waited_for(
    service: ServiceProcess, tmp_path: Path, wrong: str
) -> None:
    """Nothing is sent to whoever cannot prove its name; once it can, everything is."""
    ours = Authority(tmp_path, "ours")
    good = ours.certificate("good", _LOCAL)
    bad = {
        "authority": lambda: Authority(tmp_path, "theirs").certificate("bad", _LOCAL),
        "name": lambda: ours.certificate("bad", "DNS:elsewhere.test"),
        "no authority": lambda: good,
    }[wrong]()
    context = [bad]
    run = f"tls-{wrong.replace(' ', '-')}"
    ca_file = "" if wrong == "no authority" else str(ours.file)
    with tls_before(service.port, context) as port:
        with sending(f"https://localhost:{port}", ca_file=ca_file) as sent:
            sent.delivery.submit(shipment(BatchIds().mint(), run, run, "secret\n"))
            while sent.delivery.counts.retries < 3:
                pass
            assert sent.quiet
            assert messages(service.url, run) == []
            assert len(sent.said) == 1
            assert "certificate" in sent.said[0].lower()
            if wrong != "no authority":
                context.append(good)
                assert sent.kinds(1) == ["acknowledged"]
    assert messages(service.url, run) == ([] if wrong == "no authority" else ["secret"])


def test_a_forwarder_with_ca_file(service: ServiceProcess, tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    with tls_before(service.port, [ours.certificate("good", _LOCAL)]) as port:
        one = ForwarderProcess(
            tmp_path, f"https://localhost:{port}", run="tls-file", ca_file=str(ours.file)
        )
        (one.logs / "a.log").write_text("a\nb\n")
        one.start()
        try:
            one.until(lambda: stored(service.url, "tls-file") == ["a", "b"])
            assert one.stop() == 0
        finally:
            if one.process is not None:
                one.kill()


def test_a_file_that_has_no_certificates_is_refused_at_the_start(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    for path in (empty, tmp_path / "missing.pem"):
        with pytest.raises(InvalidInput, match="certificates"):
            open_delivery(
                ["https://localhost"],
                Token(),
                on_verdict=lambda file, verdict: None,
                say=lambda said: None,
                ca_file=str(path),
            )
