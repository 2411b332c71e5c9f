"""Static tokens: made, recognised, replaced, expired."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from service.access.access import REMEMBERED_SECONDS, Access
from service.access.rules import hashed, id_of, make_token
from tailrace.logstore.errors import Forbidden, NotAuthenticated
from tests.service.access.rules_file import rule, token_of, written
from tests.simulation.clocks import ManualClock

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {token}".encode())]


def access_with(tmp_path: Path, clock: ManualClock, *tokens: object) -> Access:
    return Access(written(tmp_path / "rules.yaml", *tokens), clock)  # type: ignore[arg-type]


def test_a_token_has_its_id_and_256_random_bits() -> None:
    token, token_id, sha256 = make_token(os.urandom)
    assert id_of(token) == token_id
    assert hashed(token) == sha256
    assert len(token.rpartition("_")[2]) == 64
    assert make_token(os.urandom)[0] != token
    for other in (token.upper(), token[:-1], f"{token}0", "trl_x_y", ""):
        assert id_of(other) is None


def test_only_the_whole_token_is_recognised(tmp_path: Path) -> None:
    token = token_of("abcd")
    access = access_with(tmp_path, ManualClock(), rule(token, {"read": ["*"]}))
    assert access.identify_now(bearer(token), None).name == "name of abcd"
    for other in (token_of("abcd", "1"), token_of("other"), token[:-1] + "1", hashed(token)):
        with pytest.raises(NotAuthenticated) as refused:
            access.identify_now(bearer(other), None)
        assert refused.value.invalid
        assert other not in str(refused.value)
    for headers in ([], [(b"cookie", token.encode())]):
        with pytest.raises(NotAuthenticated) as refused:
            access.identify_now(headers, None)
        assert not refused.value.invalid
    with pytest.raises(NotAuthenticated, match="twice"):
        access.identify_now(bearer(token) * 2, None)
    with pytest.raises(NotAuthenticated, match="not `Bearer`"):
        access.identify_now([(b"authorization", b"Digest dTpw")], None)
    for scheme in (b"Basic", b"ApiKey"):
        pair = base64.b64encode(b"any name:" + token.encode())
        assert access.identify_now([(b"authorization", scheme + b" " + pair)], None).key
        for wrong in (b"dTpw", b"=", b"", base64.b64encode(token.encode() + b":")):
            with pytest.raises(NotAuthenticated):
                access.identify_now([(b"authorization", scheme + b" " + wrong)], None)


def test_two_secrets_are_valid_until_the_old_one_expires(tmp_path: Path) -> None:
    old, new = token_of("abcd", "1"), token_of("abcd", "2")
    secrets = [
        {"sha256": hashed(old), "expires": "2026-01-01T00:01:30Z"},
        {"sha256": hashed(new)},
    ]
    clock = ManualClock(START_MS)
    access = access_with(tmp_path, clock, rule(old, {"read": ["*"]}) | {"secrets": secrets})
    for token in (old, new):
        assert access.identify_now(bearer(token), None).key == "token abcd"
    clock.pass_seconds(89)
    assert access.identify_now(bearer(old), None).key == "token abcd"
    clock.pass_seconds(2)  # it is remembered for less than the usual minute
    with pytest.raises(NotAuthenticated, match="expired"):
        access.identify_now(bearer(old), None)
    assert access.identify_now(bearer(new), None).key == "token abcd"


def test_the_rules_decide_anew_at_once_when_they_change(tmp_path: Path) -> None:
    token = token_of("abcd")
    access = access_with(tmp_path, ManualClock(), rule(token, {"read": ["shop.*"]}))
    who = access.identify_now(bearer(token), None)
    assert access.require(who, ("read",), "shop.orders").hold("shop.orders")
    with pytest.raises(Forbidden):
        access.require(who, ("read",), "shopping")
    with pytest.raises(Forbidden):
        access.require(who, ("read",), "")
    with pytest.raises(Forbidden):
        access.require(who, ("ingest",), None)
    written(tmp_path / "rules.yaml", rule(token, {"read": ["other"]}))
    assert access.reload()
    with pytest.raises(Forbidden):
        access.require(access.identify_now(bearer(token), None), ("read",), "shop.orders")
    written(tmp_path / "rules.yaml", rule(token_of("else"), {"read": ["other"]}))
    assert access.reload()
    with pytest.raises(NotAuthenticated):
        access.identify_now(bearer(token), None)


def test_rules_that_cannot_be_read_change_nothing_and_are_a_problem(tmp_path: Path) -> None:
    token = token_of("abcd")
    access = access_with(tmp_path, ManualClock(), rule(token, {"read": ["*"]}))
    (tmp_path / "rules.yaml").write_text("tokens: [")
    assert not access.reload()
    assert access.identify_now(bearer(token), None).key == "token abcd"
    assert "the previous rules stay in use" in access.problems()[0]
    assert access.broken
    written(tmp_path / "rules.yaml", rule(token, {"read": ["*"]}))
    assert access.reload()
    assert access.problems() == []


def test_the_fast_path_admits_what_the_whole_check_admits(tmp_path: Path) -> None:
    clock = ManualClock()
    token, slow = token_of("abcd"), token_of("slow")
    access = access_with(
        tmp_path,
        clock,
        rule(token, {"ingest": ["shop.*"]}),
        rule(slow, {"ingest": ["*"]}, requests_per_second=1),
    )
    header = f"Bearer {token}".encode()
    for authorization, fqn, admitted in (
        (header, "shop.a", True),
        (header, "bank", False),
        (None, "shop.a", False),
        (b"Bearer nonsense", "shop.a", False),
        (b"", "shop.a", False),
    ):
        assert (access.admits(authorization, fqn) is not None) == admitted
    who = access.admits(f"Bearer {slow}".encode(), "any")
    assert who is not None
    assert who.quota is not None
    who.quota.take(5, 0)
    assert access.admits(f"Bearer {slow}".encode(), "any") is None
    clock.pass_seconds(REMEMBERED_SECONDS + 1)
    assert access.admits(f"Bearer {slow}".encode(), "any") is not None


def test_spellings_of_one_token_are_remembered_once_and_others_not_at_all(tmp_path: Path) -> None:
    token = token_of("abcd")
    access = access_with(tmp_path, ManualClock(), rule(token, {"read": ["*"]}))
    for spelling in (f"Bearer {token}", f"bearer   {token}", f"BEARER {token}{' ' * 60_000}"):
        assert access.bearer(spelling.encode()).key == "token abcd"
    for refused in (token_of("else"), "trl_", "x" * 20_000):
        with pytest.raises(NotAuthenticated):
            access.bearer(f"Bearer {refused}".encode())
    assert len(access._known) == 1
    assert sum(map(len, access._known)) < 100  # bytes: nobody fills the memory with a token
