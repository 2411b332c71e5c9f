"""JWT of issuers: signatures by the keys that the issuer publishes (JWKS), and claims.

Only algorithms with a public key are known here, and a key is used for those of its own kind, so a
public key is never taken for a shared secret. Headers of a token that bring or name a key of their
own (`jwk`, `jku`, `x5u`) are not looked at. Keys are fetched when they are first needed, at
intervals, and when no key that is known signed a token, then at most every 30 s. While an issuer
does not answer its last keys stay in use.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import jwt

from logstore.clock import Clock
from logstore.errors import NotAuthenticated, Unavailable
from service.access.identity import Fetch, Identity, KeysNeeded, merged
from service.access.rules import IssuerRule

_MOST_BYTES: Final = 1 << 20
_MOST_KEYS: Final = 32
_AGAIN_SECONDS: Final = 30.0
_FETCH_SECONDS: Final = 5.0
_LAST_SECOND: Final = 10**13  # also of those who write milliseconds
_LEAST_RSA_BITS: Final = 2048
_KINDS: Final = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("Ed",)}


class Issuer:
    """One issuer and its keys."""

    def __init__(self, rule: IssuerRule, clock: Clock, fetch: Fetch) -> None:
        self.rule = rule
        self.problem = ""
        self._clock = clock
        self._fetch = fetch
        self._keys: list[tuple[str | None, str, Any]] = []
        self._fetched = self._tried = -1e9
        self._fetching: asyncio.Future[None] | None = None

    def identify(self, token: str, header: Mapping[str, Any]) -> Identity:
        """Whose token it is. Raises `NotAuthenticated`, `KeysNeeded`."""
        algorithm = header.get("alg")
        if algorithm not in self.rule.algorithms:
            raise NotAuthenticated("the token is signed by an algorithm that the rules do not name")
        kid = header.get("kid")
        keys = [
            key
            for known, kind, key in self._keys
            if (kid is None or known == kid) and str(algorithm).startswith(_KINDS[kind])
        ]
        now = self._clock.monotonic()
        if not keys and now - self._tried >= _AGAIN_SECONDS:
            raise KeysNeeded(self)
        if not self._keys:
            raise Unavailable(
                f"there are no keys of the issuer {self.rule.issuer}: {self.problem}",
                hint="The service fetches them again in half a minute.",
            )
        if now - self._fetched > self.rule.keys_seconds and now - self._tried >= _AGAIN_SECONDS:
            self._begin()
        claims = self._claims(token, str(algorithm), keys)
        if claims is None:
            if now - self._tried >= _AGAIN_SECONDS:  # a new key may have the id of the old one
                raise KeysNeeded(self)
            raise NotAuthenticated("no key of its issuer signed the token")
        return self._identity(claims)

    def _claims(self, token: str, algorithm: str, keys: Sequence[Any]) -> dict[str, Any] | None:
        """What the token says, None if no key signed it. Raises `NotAuthenticated`."""
        rule = self.rule
        required = [] if rule.without_expiry else ["exp"]
        problem = ""
        for key in keys:
            try:
                claims: dict[str, Any] = jwt.decode(
                    token,
                    key,
                    algorithms=[algorithm],
                    audience=rule.audience or None,
                    issuer=rule.issuer,
                    options={
                        "require": [*required, *(["aud"] if rule.audience else [])],
                        # By the clock of this node, below.
                        "verify_exp": False,
                        "verify_nbf": False,
                        "verify_iat": False,
                    },
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.InvalidAudienceError:
                problem = "the token is for another audience"
            except jwt.MissingRequiredClaimError as error:
                problem = f"the token has no claim {error.claim}"
            except (jwt.PyJWTError, ValueError, TypeError):
                problem = "the token is not valid"
            else:
                self._check_times(claims)
                return claims
        if problem:
            raise NotAuthenticated(problem)
        return None

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        now, skew = self._clock.now_ms() / 1000, self.rule.skew_seconds
        for name in ("exp", "nbf", "iat"):
            value = claims.get(name)
            if value is not None and not (
                type(value) in (int, float) and abs(value) <= _LAST_SECOND
            ):
                raise NotAuthenticated(f"the token's claim {name} is no time")
        if claims.get("exp") is not None and claims["exp"] + skew <= now:
            raise NotAuthenticated("the token has expired")
        if max(claims.get("nbf") or 0, claims.get("iat") or 0) - skew > now:
            raise NotAuthenticated("the token is not valid yet")

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        rule = self.rule
        for name, value in rule.claims.items():
            if claims.get(name) != value:
                raise NotAuthenticated(f"the token's claim {name} is not what the rules want")
        user = claims.get(rule.user_claim)
        if not isinstance(user, str) or not user:
            raise NotAuthenticated(f"the token has no claim {rule.user_claim}")
        said = claims.get(rule.groups_claim)
        groups = [group for group in said if isinstance(group, str)] if type(said) is list else []
        ends = claims.get("exp")
        expires = None if ends is None else round((int(ends) + rule.skew_seconds) * 1000)
        grants = merged(rule.grants(user, groups))
        most = rule.concurrent_requests
        return Identity(user, f"issuer {rule.issuer}", grants, expires, concurrent=most)

    async def refresh(self) -> None:
        """Fetches the keys, one fetch at a time; `problem` says what went wrong."""
        await asyncio.shield(self._begin())

    def _begin(self) -> asyncio.Future[None]:
        if self._fetching is None or self._fetching.done():
            self._tried = self._clock.monotonic()
            self._fetching = asyncio.ensure_future(self._fetch_keys())
        return self._fetching

    async def _fetch_keys(self) -> None:
        try:
            body = await self._fetch(self.rule.keys)
            keys = usable(json.loads(body))
        except Unavailable as error:
            self.problem = str(error)
            return
        except (ValueError, TypeError, AttributeError, KeyError):
            self.problem = f"{_named(self.rule.keys)} has no JWKS"
            return
        if not keys:
            self.problem = f"{_named(self.rule.keys)} has no key for signatures"
            return
        self._keys, self.problem = keys, ""
        self._fetched = self._clock.monotonic()


def usable(content: Mapping[str, Any]) -> list[tuple[str | None, str, Any]]:
    """Id, kind and public key of each key of a JWKS that is for signatures.

    Left out are shared secrets, keys for encryption, and RSA keys of less than 2,048 bits.
    """
    found = []
    for entry in content["keys"][:_MOST_KEYS]:
        kind = entry.get("kty")
        if kind not in _KINDS or entry.get("use", "sig") != "sig":
            continue
        public = {name: entry[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in entry}
        try:
            key = jwt.PyJWK(public, algorithm=_ANY_OF.get(kind)).key
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        if getattr(key, "key_size", _LEAST_RSA_BITS) >= _LEAST_RSA_BITS or kind != "RSA":
            found.append((entry.get("kid"), kind, key))
    return found


_ANY_OF: Final = {"RSA": "RS256", "OKP": "EdDSA"}


def unverified(token: str) -> tuple[Mapping[str, Any], str]:
    """Header and issuer of a JWT, which nobody has checked. Raises `NotAuthenticated`."""
    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise NotAuthenticated("the token is none that this service knows") from error
    issuer = claims.get("iss")
    return header, issuer if isinstance(issuer, str) else ""


async def fetched(place: str) -> bytes:
    """The JWKS at an address, or in a file. Raises `Unavailable`."""
    if urlsplit(place).scheme not in ("http", "https"):
        return await asyncio.to_thread(_of_file, place)
    import httpx

    try:
        async with (
            httpx.AsyncClient(timeout=_FETCH_SECONDS, trust_env=False) as client,
            asyncio.timeout(2 * _FETCH_SECONDS),
            client.stream("GET", place) as response,
        ):
            if response.status_code != 200:
                raise Unavailable(f"{_named(place)} answers {response.status_code}")
            body = b""
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > _MOST_BYTES:
                    raise Unavailable(f"{_named(place)} answers with more than {_MOST_BYTES} bytes")
            return body
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise Unavailable(f"{_named(place)} does not answer: {type(error).__name__}") from error


def _named(place: str) -> str:
    """The address without what may be a secret in it."""
    parts = urlsplit(place)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _of_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from error
