"""JWT: OpenMetadata's bot tokens, rotation of keys, and what is forged."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from service.access.access import Access
from service.access.rules import Identity
from tailrace.logstore.errors import Forbidden, NotAuthenticated, Unavailable
from tests.service.access.rules_file import written
from tests.simulation.clocks import ManualClock

KEYS = {name: rsa.generate_private_key(65537, 2048) for name in ("one", "two", "alien")}
WEAK = rsa.generate_private_key(65537, 1024)
CURVE = ec.generate_private_key(ec.SECP256R1())
START_SECONDS = 1_767_225_600
BOT = {
    "iss": "open-metadata.org",
    "sub": "ingestion-bot",
    "roles": [],
    "email": "ingestion-bot@open-metadata.org",
    "isBot": True,
    "tokenType": "BOT",
    "iat": START_SECONDS,
    "exp": None,
}
"""The claims of a bot of OpenMetadata 1.11 whose token has no end."""
RULE = {
    "issuer": "open-metadata.org",
    "keys": "https://openmetadata.test/api/v1/system/config/jwks",
    "without_expiry": True,
    "claims": {"tokenType": "BOT"},
    "groups_claim": "roles",
    "users": {"ingestion-bot": {"ingest": ["*"]}},
    "groups": {"Readers": {"read": ["shop.*"]}},
}


def jwk(name: str, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(KEYS[name].public_key(), as_dict=True)
    return {**made, "kid": name, "alg": "RS256", "use": "sig", **more}


class Publisher:
    """Gives a JWKS, and counts how often it is asked."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.body = json.dumps({"keys": keys}).encode()
        self.asked = 0
        self.away = False

    async def __call__(self, place: str) -> bytes:
        assert place == RULE["keys"]
        self.asked += 1
        if self.away:
            raise Unavailable("it does not answer")
        return self.body


class World:
    def __init__(self, tmp_path: Path, publisher: Publisher, **rule: Any) -> None:
        self.clock = ManualClock(START_SECONDS * 1000)
        path = tmp_path / "rules.yaml"
        path.write_text(json.dumps({"issuers": [{**RULE, **rule}]}))
        self.access = Access(str(path), self.clock, fetch=publisher)

    async def who(self, token: str | bytes) -> Identity:
        text = token.decode() if isinstance(token, bytes) else token
        return await self.access.identify([(b"authorization", f"Bearer {text}".encode())], None)

    async def refused(self, token: str, match: str) -> None:
        with pytest.raises(NotAuthenticated, match=match) as error:
            await self.who(token)
        assert token not in str(error.value)


def signed(
    key: Any = KEYS["one"], kid: str | None = "one", alg: str = "RS256", **claims: Any
) -> str:
    body = {name: value for name, value in {**BOT, **claims}.items() if value is not None}
    return jwt.encode(body, key, algorithm=alg, headers={"kid": kid} if kid else {})


def forged(header: dict[str, Any], signature: bytes = b"", **claims: Any) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    body = {name: value for name, value in {**BOT, **claims}.items() if value is not None}
    end = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    return f"{part(header)}.{part(body)}.{end}"


async def test_a_bot_of_openmetadata_ingests_with_the_token_that_it_has(tmp_path: Path) -> None:
    world = World(tmp_path, publisher := Publisher(jwk("one")))
    who = await world.who(signed())
    assert (who.name, who.key, who.expires_ms) == (
        "ingestion-bot",
        "issuer open-metadata.org",
        None,
    )
    assert world.access.require(who, ("ingest",), "any").every
    with pytest.raises(Forbidden):
        world.access.require(who, ("read",), None)
    await world.who(signed(kid=None))
    assert publisher.asked == 1
    reader = await world.who(signed(sub="anna", roles=["Readers"]))
    assert world.access.require(reader, ("read",), "shop.a").prefixes == ("shop.",)


async def test_keys_rotate_and_an_unknown_one_is_asked_for_twice_a_minute(tmp_path: Path) -> None:
    world = World(tmp_path, publisher := Publisher(jwk("one")))
    await world.who(signed())
    publisher.body = Publisher(jwk("one"), jwk("two")).body
    world.clock.pass_seconds(31)
    await world.who(signed(KEYS["two"], "two"))
    assert publisher.asked == 2
    for _ in range(20):
        await world.refused(signed(KEYS["alien"], "alien"), "no key of its issuer")
    assert publisher.asked == 2
    publisher.body = Publisher(jwk("two")).body
    world.clock.pass_seconds(31)
    await world.refused(signed(KEYS["alien"], "alien"), "no key of its issuer")
    assert publisher.asked == 3
    await world.refused(signed(KEYS["one"], "one", email="not remembered"), "no key of its issuer")


async def test_a_new_key_may_have_the_id_of_the_old_one(tmp_path: Path) -> None:
    world = World(tmp_path, publisher := Publisher(jwk("one")))
    await world.who(signed())
    publisher.body = Publisher({**jwk("two"), "kid": "one"}).body
    await world.refused(signed(KEYS["two"], "one"), "no key of its issuer")  # fetched just now
    world.clock.pass_seconds(31)
    await world.who(signed(KEYS["two"], "one"))
    for _ in range(20):
        await world.refused(signed(KEYS["alien"], "one"), "no key of its issuer")
    assert publisher.asked == 2


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), 10**400, "1", True, [], 1e300],
    ids=["nan", "inf", "-inf", "huge", "text", "true", "list", "large"],
)
async def test_a_time_that_is_none_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    world = World(tmp_path, Publisher(jwk("one")))
    await world.refused(signed(**{name: value}), "token|claim|key")


@pytest.mark.parametrize(
    "header", [{"alg": []}, {"alg": {}, "kid": []}, {"kid": {}}, {"crit": 7}, {"b64": False}, []]
)
async def test_whatever_a_token_says_it_is_refused_and_nothing_else(
    tmp_path: Path, header: Any
) -> None:
    world = World(tmp_path, Publisher(jwk("one")))
    whole = {"alg": "RS256", "kid": "one", **header} if isinstance(header, dict) else header
    await world.refused(forged(whole), "token|claim|key")
    await world.refused(forged({"alg": "RS256", "kid": "one"}, iss=["a"]), "token|claim|key")
    deep = base64.urlsafe_b64encode(b"[" * 10_000).decode()
    await world.refused(f"{deep}.{deep}.", "token|claim|key")


async def test_an_issuer_that_is_away_keeps_its_keys_and_is_a_problem(tmp_path: Path) -> None:
    world = World(tmp_path, publisher := Publisher(jwk("one")), keys_seconds=60)
    publisher.away = True
    with pytest.raises(Unavailable, match="does not answer"):
        await world.who(signed())
    publisher.away = False
    world.clock.pass_seconds(31)
    await world.who(signed())
    assert world.access.problems() == []
    publisher.away = True
    world.clock.pass_seconds(120)
    await world.who(signed(email="other"))
    issuer = next(iter(world.access._issuers.values()))
    await issuer.refresh()
    assert "cannot be fetched" in world.access.problems()[0]
    await world.who(signed(email="another"))


async def test_forged_tokens_are_refused(tmp_path: Path) -> None:
    world = World(tmp_path, Publisher(jwk("one")), algorithms=["RS256", "ES256"])
    pem = KEYS["one"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for alg in ("none", "None", "NONE", ""):
        await world.refused(forged({"alg": alg, "typ": "JWT", "kid": "one"}), "algorithm")
    unsigned = forged({"alg": "HS256", "typ": "JWT", "kid": "one"}).rpartition(".")[0]
    for key in (pem, pem.strip(), json.dumps(jwk("one")).encode()):
        mac = base64.urlsafe_b64encode(hmac.digest(key, unsigned.encode(), hashlib.sha256))
        await world.refused(f"{unsigned}.{mac.decode().rstrip('=')}", "algorithm")
    await world.refused(signed(CURVE, "one", "ES256"), "no key of its issuer")
    await world.refused(signed(KEYS["alien"], "one"), "no key of its issuer")
    own = jwk("alien")
    for header in ({"jwk": own}, {"jku": "https://evil.test/jwks"}, {"x5u": "https://evil.test"}):
        token = jwt.encode(
            {k: v for k, v in BOT.items() if v is not None},
            KEYS["alien"],
            algorithm="RS256",
            headers={"kid": "one", **header},
        )
        await world.refused(token, "no key of its issuer")
    head, body, signature = signed().split(".")
    other = forged({}, sub="admin").split(".")[1]
    await world.refused(f"{head}.{other}.{signature}", "no key of its issuer")
    for nonsense in (f"{head}.{body}", "a.b.c", "....", "x" * 20_000):
        with pytest.raises(NotAuthenticated):
            await world.who(nonsense)


async def test_claims_decide(tmp_path: Path) -> None:
    world = World(
        tmp_path,
        Publisher(jwk("one")),
        audience="tailrace",
        without_expiry=False,
        skew_seconds=30,
    )
    now = START_SECONDS
    good: dict[str, Any] = {"aud": "tailrace", "exp": now + 600}
    assert (await world.who(signed(**good))).expires_ms == (now + 630) * 1000
    await world.who(signed(**{**good, "exp": now - 20}))
    await world.refused(signed(**{**good, "exp": now - 40}), "expired")
    await world.refused(signed(aud="tailrace"), "no claim exp")
    await world.refused(signed(**{**good, "aud": "other"}), "another audience")
    await world.refused(signed(exp=now + 600), "no claim aud")
    await world.refused(signed(**good, nbf=now + 600), "not valid yet")
    await world.refused(signed(**good, iss="evil"), "issuer is not in the rules")
    await world.refused(signed(**good, tokenType="PERSONAL_ACCESS"), "claim tokenType")
    await world.refused(signed(**{**good, "sub": ""}), "no claim sub")


async def test_keys_that_are_not_for_this_are_not_used(tmp_path: Path) -> None:
    weak: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(WEAK.public_key(), as_dict=True)
    shared = {"kty": "oct", "kid": "one", "k": base64.urlsafe_b64encode(b"s" * 32).decode()}
    publisher = Publisher(shared, jwk("one", use="enc"), {**weak, "kid": "weak"}, {"kty": "RSA"})
    world = World(tmp_path, publisher)
    with pytest.raises(Unavailable, match="no key for signatures"):
        await world.who(signed())


async def test_without_an_audience_in_the_rules_a_token_for_somebody_is_refused(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, Publisher(jwk("one")))
    await world.refused(signed(aud="elsewhere"), "another audience")


def test_rules_cannot_name_an_algorithm_with_a_shared_secret(tmp_path: Path) -> None:
    for algorithm in ("HS256", "none"):
        path = written(tmp_path / "r.yaml", issuers=[{**RULE, "algorithms": [algorithm]}])
        with pytest.raises(Exception, match="algorithms"):
            Access(path, ManualClock())
