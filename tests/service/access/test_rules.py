"""What a file of rules may say, what a quota admits, and whom a proxy may name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from service.access.access import Access
from service.access.rules import BURST_SECONDS, PipelineNames, Quota, parse
from tailrace.logstore.errors import InvalidInput, NotAuthenticated, OverQuota
from tests.service.access.rules_file import rule, token_of, written
from tests.simulation.clocks import ManualClock

TOKEN = rule(token_of("abcd"), {"read": ["*"]})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({}, "there are no rules"),
        ({"tokens": []}, "allow no access"),
        ({"token": [TOKEN]}, "Extra inputs"),
        ({"tokens": [TOKEN, TOKEN]}, "given twice"),
        ({"tokens": [TOKEN | {"scopes": {"reed": ["*"]}}]}, "no scope 'reed'"),
        ({"tokens": [TOKEN | {"scopes": {"read": ["a*b"]}}]}, "not at its end"),
        ({"tokens": [TOKEN | {"scopes": {"read": [""]}}]}, "is empty"),
        ({"tokens": [TOKEN | {"scopes": {"metrics": ["shop.*"]}}]}, "about all pipelines"),
        ({"tokens": [TOKEN | {"secrets": TOKEN["secrets"] * 3}]}, "at most 2"),
        ({"tokens": [TOKEN | {"secrets": []}]}, "at least 1"),
        ({"tokens": [TOKEN | {"secrets": [{"sha256": token_of("abcd")}]}]}, "not the token"),
        ({"proxy": {"addresses": ["0.0.0.0/0"], "user_header": "X-User"}}, "every address"),
        ({"proxy": {"addresses": ["10.0.0.1"], "user_header": "Cookie"}}, "cannot be the header"),
        ({"proxy": {"addresses": ["ten"], "user_header": "X-User"}}, "is neither an address"),
    ],
)
def test_what_cannot_be_is_refused_without_a_secret(content: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as error:
        parse(yaml.safe_dump(content), "rules.yaml")
    assert token_of("abcd") not in f"{error.value}{error.value.hint}"
    assert error.value.hint


def test_patterns_are_names_and_beginnings() -> None:
    names = PipelineNames.parse(["shop.*", "bank"])
    for fqn, held in {"shop.a": 1, "shop.": 1, "shop": 0, "shopping": 0, "bank": 1, "": 0}.items():
        assert names.hold(fqn) == bool(held), fqn
    assert not names.every
    assert PipelineNames.parse(["*", "a"]).every
    assert PipelineNames.parse(["*"]).condition() is None
    for text, wanted in (("shop.a", True), ("bank", True), ("banker", False), ("a\nshop.a", False)):
        seen = names.within(None)
        assert seen is not None
        assert seen(text) == wanted
        within = names.within(lambda name: name.endswith("a"))
        assert within is not None
        assert within(text) == (wanted and text.endswith("a"))


def test_a_quota_is_spent_and_comes_back() -> None:
    quota, now = Quota(2, 1000), 100.0
    for _ in range(int(2 * BURST_SECONDS)):
        quota.check(now, "it")
        quota.take(1, 0)
    with pytest.raises(OverQuota, match="requests") as error:
        quota.check(now, "it")
    assert error.value.retry_after_seconds == 1
    quota.check(now + 0.6, "it")
    quota.take(1, 25_000)
    with pytest.raises(OverQuota, match="bytes") as error:
        quota.check(now + 0.6, "it")
    assert error.value.retry_after_seconds == 20
    quota.check(now + 21, "it")
    Quota(0, 0).check(now, "it")


PROXY = {
    "addresses": ["10.1.2.0/24", "::1"],
    "user_header": "X-Forwarded-Email",
    "groups_header": "X-Forwarded-Groups",
    "users": {"anna@example.com": {"read": ["shop.*"]}},
    "groups": {"ops": {"admin": ["*"]}},
}


def test_only_the_proxy_may_name_a_user(tmp_path: Path) -> None:
    token = token_of("abcd")
    path = written(tmp_path / "rules.yaml", rule(token, {"ingest": ["*"]}), proxy=PROXY)
    access = Access(path, ManualClock())
    user = (b"x-forwarded-email", b"anna@example.com")
    for peer in ("10.1.2.3", "::ffff:10.1.2.3", "::1"):
        who = access.identify_now([user, (b"x-forwarded-groups", b"a, ops")], peer)
        assert (who.name, who.key, sorted(who.grants)) == (
            "anna@example.com",
            "proxy",
            ["admin", "read"],
        )
    refused: list[tuple[list[tuple[bytes, bytes]], str | None]] = [
        ([user], "10.1.3.3"),
        ([user], None),
        ([user], "testclient"),
        ([user, user], "10.1.2.3"),
        ([(b"x-forwarded-email", b"")], "10.1.2.3"),
        ([(b"x-forwarded-email", b"\xff")], "10.1.2.3"),
        ([], "10.1.2.3"),
        ([user, (b"authorization", b"Bearer nonsense")], "10.1.2.3"),
    ]
    for headers, address in refused:
        with pytest.raises(NotAuthenticated):
            access.identify_now(headers, address)
    both = [user, (b"authorization", f"Bearer {token}".encode())]
    assert access.identify_now(both, "10.1.2.3").key == "token abcd"
    stranger = access.identify_now([(b"x-forwarded-email", b"eve@example.com")], "10.1.2.3")
    assert stranger.grants == {}
