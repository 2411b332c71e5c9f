"""A real service with rules of access: what each token sees, reloading, and what is kept secret."""

from __future__ import annotations

import json
import os
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tests.client.answering import Given, answering
from tests.e2e.service_process import BASE, ServiceProcess
from tests.service.access.rules_file import rule, token_of, written
from tests.service.query.world import World

PLAIN = {"content-type": "text/plain"}
PIPELINES = ("shop.a", "shopping", "bank")
ALL, SHOP, WRITER = token_of("every"), token_of("shop"), token_of("writer")
KEY = "key-in-an-address"


def until_true(holds: Callable[[], bool]) -> None:
    """Looks until it holds; a test's own limit of time ends it."""
    while not holds():
        time.sleep(0.05)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def rules(path: Path, *more: object, **parts: object) -> str:
    return written(
        path,
        rule(ALL, {scope: ["*"] for scope in ("ingest", "read", "consume", "admin", "metrics")}),
        rule(SHOP, {"read": ["shop.*"], "consume": ["shop.*"]}),
        *more,  # type: ignore[arg-type]
        **parts,
    )


def table_in(data: Path, *fqns: str) -> None:
    """A table in a service's store, with a line for each pipeline, as a compactor leaves it."""
    batch = ulid.lowest_at(time.time_ns() // 1_000_000)
    lines = [
        (RunKey(fqn, "r"), batch + (number << 40), f"compacted of {fqn}\n".encode(), None)
        for number, fqn in enumerate(fqns)
    ]
    attributes = [{"in": fqn} for fqn in fqns]
    entries = [(*line, more) for line, more in zip(lines, attributes, strict=True)]
    World(data).merge(entries, {})


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    table_in(tmp_path / "data", *PIPELINES)
    process = ServiceProcess(
        tmp_path / "data",
        TAILRACE_ACCESS__RULES=rules(tmp_path / "rules.yaml", rule(WRITER, {"ingest": ["shop.*"]})),
        TAILRACE_ACCESS__RELOAD_SECONDS="0.2",
        TAILRACE_FLUSH__SEGMENT_SECONDS="1",
    )
    process.start()
    yield process
    if process.running:
        process.stop()


def test_patterns_hold_in_lists_searches_and_streams_over_every_source(
    service: ServiceProcess,
) -> None:
    with httpx.Client(base_url=service.url, timeout=30) as client:

        def post(name: str) -> None:
            for fqn in PIPELINES:
                client.post(
                    f"{BASE}/{fqn}/r",
                    content=f'{{"message":"{name} of {fqn}","attributes":{{"in":"{fqn}"}}}}\n',
                    headers=bearer(ALL) | {"content-type": "application/x-ndjson"},
                ).raise_for_status()

        def found(token: str, **parameters: str) -> list[str]:
            reply = client.get("/query", params={"from": "0", **parameters}, headers=bearer(token))
            assert reply.status_code == 200, reply.text
            return sorted(json.loads(line)["message"] for line in reply.text.splitlines()[:-1])

        def get(path: str, token: str = SHOP) -> httpx.Response:
            return client.get(path, headers=bearer(token))

        post("stored")
        until_true(lambda: len(get("/segments", ALL).json()["segments"]) > 0)
        post("hot")
        mine = ["compacted of shop.a", "hot of shop.a", "stored of shop.a"]
        assert found(SHOP) == mine
        assert found(SHOP, q="of OR bank") == mine
        assert found(SHOP, q="NOT fqn:shop.a") == []
        assert found(SHOP, q="/.*/") == mine
        assert found(SHOP, q=".*", regex="true") == mine
        assert found(SHOP, context="5") == mine
        assert found(SHOP, q="compacted") == mine[:1]
        assert found(SHOP, run="r", order="asc", limit="9") == mine
        assert found(SHOP, stats_only="true") == []
        assert len(found(ALL)) == 9
        assert get("/query?fqn=bank").status_code == 403
        assert get("/query?q=fqn%3Abank").status_code == 403
        stats = client.head("/query?from=0", headers=bearer(SHOP))
        assert stats.headers["tailrace-matches"] == "3"
        for form in ("text", "parquet"):
            content = get(f"/query?from=0&format={form}").content
            assert b"of shop.a" in content
            assert b"bank" not in content
            assert b"shopping" not in content
        counts = get("/query/histogram?from=0").json()["buckets"]
        assert sum(bucket["count"] for bucket in counts) == 3
        values = get("/query/values?field=fqn&from=0").json()["values"]
        assert [(v["value"], v["records"]) for v in values] == [("shop.a", 3)]
        for asked in ("field=attributes.in", "field=attributes.in&prefix=b", "field=fqn&prefix=b"):
            assert "bank" not in get(f"/query/values?{asked}&from=0").text
        assert "bank" in get("/query/values?field=attributes.in&from=0", ALL).text
        fields = get("/query/fields?from=0").json()
        assert fields["records"] == 3
        assert "bank" not in str(fields)
        assert get(BASE).json()["pipelines"] == ["shop.a"]
        assert sorted(get(BASE, ALL).json()["pipelines"]) == ["bank", "shop.a", "shopping"]
        assert get(f"{BASE}?name=bank").json()["pipelines"] == []
        for path in ("/segments", "/segments/next?group=g", "/metrics", "/leases"):
            assert get(path).status_code == 403
        with client.stream("GET", "/query/stream?tail=9&window=0", headers=bearer(SHOP)) as stream:
            post("live")
            seen = []
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line[6:])["message"])
                if len(seen) == 4:
                    break
        assert sorted(seen) == sorted([*mine, "live of shop.a"])


def test_whole_segments_need_rights_on_all_of_their_pipelines(service: ServiceProcess) -> None:
    with httpx.Client(base_url=service.url, timeout=30) as client:

        def get(path: str, token: str = SHOP) -> httpx.Response:
            return client.get(path, headers=bearer(token))

        def segment_of(*fqns: str) -> str:
            """The id of a segment with lines of just these, which may take more than one."""
            while True:
                for fqn in fqns:
                    client.post(
                        f"{BASE}/{fqn}/r", content=f"of {fqn}\n", headers=bearer(ALL) | PLAIN
                    ).raise_for_status()
                time.sleep(1.2)
                for one in get("/segments", ALL).json()["segments"]:
                    text = get(f"/segments/{one['id']}?format=text", ALL).text
                    if {line.removeprefix("of ") for line in text.split("\n") if line} == {*fqns}:
                        return str(one["id"])

        of_shop, of_both = segment_of("shop.a"), segment_of("bank", "shop.a")
        for form, line in (("text", b"of shop.a"), ("ndjson", b"shop.a"), ("parquet", b"PAR1")):
            assert line in get(f"/segments/{of_shop}?format={form}").content
            assert line in get(f"/segments/{of_both}?format={form}", ALL).content
            refused = get(f"/segments/{of_both}?format={form}")
            assert (refused.status_code, refused.json()["type"]) == (403, "forbidden")
            assert "bank" not in refused.text
        assert client.head(f"/segments/{of_both}", headers=bearer(SHOP)).status_code == 403
        refusals = (service.data / "audit.log").read_text().splitlines()
        assert json.loads(refusals[-1])["path"] == f"/segments/{of_both}"
        for path in ("/segments", "/segments/groups"):
            assert get(path).status_code == 403
        lease = client.post("/segments/next?group=g", headers=bearer(SHOP))
        assert lease.status_code == 403
        assert "all pipelines" in lease.json()["detail"]
        for fqn in ("bank", "shop.a"):
            client.delete(f"{BASE}/{fqn}/r", headers=bearer(ALL)).raise_for_status()
        assert [one["fqn"] for one in get("/segments/deletions").json()["deletions"]] == ["shop.a"]
        deletions = get("/segments/deletions", ALL).json()["deletions"]
        assert {one["fqn"] for one in deletions} == {"bank", "shop.a"}


def test_rules_are_read_again_and_no_secret_is_told(
    service: ServiceProcess, tmp_path: Path
) -> None:
    file = tmp_path / "rules.yaml"
    with (
        httpx.Client(base_url=service.url, timeout=30) as client,
        answering(lambda _: Given(200, {}, b"{}")) as keys,
    ):

        def append(token: str) -> int:
            return client.post(
                f"{BASE}/shop.a/r",
                content=b"line\n",
                headers=bearer(token) | {"content-type": "text/plain"},
            ).status_code

        later = token_of("later")
        theirs = jwt.encode({"iss": "them"}, ec.generate_private_key(ec.SECP256R1()), "ES256")
        issuer = {"issuer": "them", "keys": f"{keys}/jwks?key={KEY}", "algorithms": ["ES256"]}
        assert [append(WRITER), append(WRITER), append(later)] == [200, 200, 401]
        rules(file, rule(later, {"ingest": ["*"]}), issuers=[issuer])
        until_true(lambda: append(later) == 200)
        assert append(WRITER) == 401
        assert append(theirs) == 503  # at that address are no keys
        file.write_text(f"tokens: [{WRITER}")
        os.kill(service.pid, signal.SIGHUP)
        until_true(
            lambda: "previous rules" in client.get("/health/ready", headers=bearer(ALL)).text
        )
        assert client.get("/health/ready").json() == {"status": "ready", "problems": []}
        assert append(later) == 200
        client.get(f"/query?token={ALL}", headers=bearer(later))
        client.delete(f"{BASE}/shop.a/r?t={ALL}", headers=bearer(ALL)).raise_for_status()
        metrics = client.get("/metrics", headers=bearer(ALL)).text
    command = Path(f"/proc/{service.pid}/cmdline").read_text()
    service.stop()
    audit = (tmp_path / "data" / "audit.log").read_text()
    events = [json.loads(line) for line in audit.splitlines()]
    assert {"refused", "deleted", "answered", "rules"} <= {event["event"] for event in events}
    deleted = [event for event in events if event["event"] == "deleted"]
    assert [(event["who"], event["method"]) for event in deleted] == [("name of every", "DELETE")]
    everything = [metrics, command, audit, service.output()]
    for secret in (ALL, SHOP, WRITER, later, theirs, KEY, "0" * 64):
        assert not any(secret in text for text in everything)


def test_another_address_needs_rules(tmp_path: Path) -> None:
    open_door = ServiceProcess(tmp_path / "open", TAILRACE_SERVER__HOST="0.0.0.0")
    with pytest.raises(RuntimeError, match="there are no rules of access"):
        open_door.start()
    missing = ServiceProcess(tmp_path / "missing", TAILRACE_ACCESS__RULES=str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match="cannot be read"):
        missing.start()
    closed = ServiceProcess(
        tmp_path / "closed",
        TAILRACE_SERVER__HOST="0.0.0.0",
        TAILRACE_ACCESS__RULES=rules(tmp_path / "rules.yaml"),
    )
    closed.start()
    assert httpx.get(f"{closed.url}{BASE}", timeout=60).status_code == 401
    closed.stop()


def let_read_pages_of_set_origins_alone(client: httpx.Client) -> None:
    """`server.cors_origins` are https://tools.example and another one."""
    asked = {
        "access-control-request-method": "GET",
        "access-control-request-headers": "authorization",
    }
    page = f"{BASE}/shop.a/r"
    for origin in ("https://tools.example", "http://localhost:3000"):
        before = client.options(page, headers={"origin": origin, **asked})
        assert before.status_code == 200
        assert before.headers["access-control-allow-headers"] == "authorization"
        asks = {"origin": origin, "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
        replies = [
            client.get(page, headers=asks | bearer(ALL)),
            client.get(page, headers=asks),
            client.post(page, content=b"3\n", headers=asks | bearer(ALL) | PLAIN),
        ]
        assert [reply.status_code for reply in replies] == [200, 401, 200]
        for reply in (before, *replies):
            assert reply.headers["access-control-allow-origin"] == origin
            assert "access-control-allow-credentials" not in reply.headers
    for origin in ("https://evil.example", "https://tools.example.evil", "null"):
        before = client.options(page, headers={"origin": origin, **asked})
        assert before.status_code == 400
        asks = {"origin": origin, "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
        reply = client.get(page, headers=asks | bearer(ALL))
        assert reply.status_code == 403
        for each in (before, reply):
            assert "access-control-allow-origin" not in each.headers


@pytest.mark.parametrize("workers", [1, 2])
def test_it_speaks_tls(tmp_path: Path, workers: int) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2100, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    chain, secret = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(certificate.public_bytes(Encoding.PEM))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    secret.write_bytes(pem)
    service = ServiceProcess(
        tmp_path / "data",
        TAILRACE_ACCESS__RULES=rules(tmp_path / "rules.yaml"),
        TAILRACE_SERVER__TLS_CERTIFICATE=str(chain),
        TAILRACE_SERVER__TLS_KEY=str(secret),
        TAILRACE_SERVER__WORKERS=str(workers),
        TAILRACE_SERVER__CORS_ORIGINS="https://tools.example, http://localhost:3000",
    )
    service.verify = ssl.create_default_context(cafile=str(chain))
    service.url = f"https://localhost:{service.port}"
    service.start()
    with httpx.Client(base_url=service.url, verify=service.verify, timeout=30) as client:
        for number in range(3):  # the second and third on the fast path
            reply = client.post(
                f"{BASE}/shop.a/r",
                content=b"%d\n" % number,
                headers=bearer(ALL) | {"content-type": "text/plain"},
            )
            assert reply.status_code == 200
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert reply.headers["strict-transport-security"] == "max-age=31536000"
        text = client.get(f"{BASE}/shop.a/r/download", headers=bearer(ALL)).text
        assert text == "0\n1\n2\n"
        let_read_pages_of_set_origins_alone(client)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{service.port}/health/live", timeout=60)
    assert service.stop() == 0
