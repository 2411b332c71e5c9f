"""The file of rules: tokens, issuers and proxies, their scopes and quotas; checks of tokens.

    tokens:
      - id: 4f0c21d9ab              # of trl_<id>_<secret>
        name: connectors of shop
        secrets:                    # one, or two while one replaces the other
          - sha256: 9f86d081…
            expires: 2027-01-31T00:00:00Z
        scopes: {ingest: ["shop.*"], read: ["shop.*"]}
        requests_per_second: 500    # no limit without it
        bytes_per_second: 20MiB
        concurrent_requests: 20
    issuers:                        # of JWT
      - issuer: open-metadata.org
        keys: https://openmetadata.example.com/api/v1/system/config/jwks
        users: {ingestion-bot: {ingest: ["*"]}}
    proxy:                          # that names its users in a header
      addresses: [10.1.2.3]
      user_header: X-Forwarded-Email
      users: {anna@example.com: {read: ["*"]}}

`parse` refuses a file as a whole, for example for an unknown key, two tokens of one id, or an
unknown scope.

**Tokens.** A static token is `trl_<id>_<secret>`; the rules have its id and a SHA-256 of the whole
token. The secret has 256 random bits, so a plain hash is enough: trying all secrets is impossible.
A comparison takes the same time wherever two hashes differ.

**Patterns.** `shop.orders` names one pipeline, `shop.*` all with this beginning, `*` all. A `*` may
only stand at the end, so a pattern is a prefix: names of pipelines are designed for prefixes, and
searches can use them to skip files. `shop*` includes `shopping.cart`; `shop.*` does not.

**Quotas.** A token has two token buckets, for requests and bytes per second, that may be in debt. A
bucket holds the allowance of `BURST_SECONDS`. A request is admitted while both have something left,
and its cost is taken once it is known, also below zero: the next request waits for that.

**JWT.** `Issuer` checks signatures by the keys that the issuer publishes (JWKS), and claims. Only
algorithms with a public key are accepted, and a key is used for algorithms of its own kind, so a
public key is never taken for a shared secret. Headers of a token that contain or name their own key
(`jwk`, `jku`, `x5u`) are ignored. Keys are fetched when they are first needed, at intervals, and
when no known key signed a token, then at most every 30 s. If an issuer does not answer, its last
keys stay in use.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil, inf
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import AwareDatetime, ConfigDict, Field, ValidationError, field_validator

from tailrace.logstore.bounded_yaml import load_yaml
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import InvalidInput, NotAuthenticated, OverQuota, Unavailable
from tailrace.logstore.keys import check_name
from tailrace.logstore.patterns import TextTest
from tailrace.logstore.search.conditions import AnyOf, Column, Condition, Is, StartsWith
from tailrace.logstore.settings import Bytes, Section

PREFIX: Final = "trl_"
LONGEST_TOKEN: Final = 16 << 10
"""Bytes of any token, those of issuers too."""
_ID_BYTES: Final = 5
_SECRET_BYTES: Final = 32
_TOKEN: Final = re.compile(r"trl_([a-z0-9]{4,32})_[0-9a-f]{64}", re.ASCII)
ID: Final = re.compile(r"[a-z0-9]{4,32}", re.ASCII)
SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NOBODY: Final = "0" * 64


@dataclass(frozen=True, slots=True)
class Secret:
    """The hash of a token, and the end of its validity; None if it has no end."""

    sha256: str
    expires_ms: int | None = None


def id_of(token: str) -> str | None:
    """Returns the id in a token; None if the text is no token."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else None


def make_token(random: Callable[[int], bytes], token_id: str = "") -> tuple[str, str, str]:
    """Makes a token. Returns it, its id and its hash. `random` returns unguessable bytes."""
    token_id = token_id or random(_ID_BYTES).hex()
    token = f"{PREFIX}{token_id}_{random(_SECRET_BYTES).hex()}"
    return token, token_id, hashed(token)


def hashed(token: str) -> str:
    """Returns the hash of a token as in the rules."""
    return hashlib.sha256(token.encode()).hexdigest()


def matching(token: str, secrets: Sequence[Secret]) -> Secret | None:
    """Returns the secret that matches the token, expired or not. Compares with all of them."""
    ours, found = hashed(token), None
    for secret in secrets or (Secret(_NOBODY),):
        if hmac.compare_digest(ours, secret.sha256):
            found = secret
    return found


_FQN = Column("fqn")


@dataclass(frozen=True, slots=True)
class PipelineNames:
    """The pipelines that some patterns name."""

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    @staticmethod
    def parse(patterns: Iterable[str], where: str = "") -> PipelineNames:
        """Parses patterns. Raises `InvalidInput` for an invalid one."""
        exact: set[str] = set()
        prefixes: set[str] = set()
        for pattern in patterns:
            stem, star, rest = pattern.partition("*")
            if rest:
                raise InvalidInput(
                    f"{where}{pattern!r} has a * that is not at its end",
                    hint="Write a whole name, or the beginning of names and a *, such as shop.*.",
                )
            if stem:
                check_name(stem, "fqn")
            elif not star:
                raise InvalidInput(f"{where}a pattern is empty", hint="Write * for all pipelines.")
            (prefixes if star else exact).add(stem)
        return PipelineNames(frozenset(exact), tuple(sorted(prefixes)))

    @property
    def every(self) -> bool:
        """Whether all pipelines are among them."""
        return "" in self.prefixes

    def hold(self, fqn: str) -> bool:
        """Whether the pipeline is one of them."""
        return fqn in self.exact or fqn.startswith(self.prefixes)

    def joined(self, other: PipelineNames) -> PipelineNames:
        """The pipelines of both."""
        prefixes = tuple(sorted({*self.prefixes, *other.prefixes}))
        return PipelineNames(self.exact | other.exact, prefixes)

    def condition(self) -> Condition | None:
        """A condition for records of these pipelines; None if all match."""
        if self.every:
            return None
        parts: list[Condition] = [Is(name, _FQN) for name in sorted(self.exact)]
        parts += [StartsWith(prefix, _FQN) for prefix in self.prefixes]
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def within(self, wanted: TextTest | None) -> TextTest | None:
        """A test for the names that are `wanted` as well; None: all names."""
        if self.every or wanted is None:
            return wanted if self.every else self.hold
        return lambda fqn: self.hold(fqn) and wanted(fqn)


BURST_SECONDS: Final = 5.0
_LONGEST_SECONDS: Final = 3600


class Quota:
    """The use of one token. Times are monotonic seconds; a rate of 0 is no limit."""

    __slots__ = ("_bytes", "_requests", "_seen", "per_second")

    def __init__(self, requests: float, size: float) -> None:
        self.per_second = requests, size
        self._requests = max(1, requests * BURST_SECONDS) if requests else inf
        self._bytes = size * BURST_SECONDS or inf
        self._seen: float | None = None

    def has_room(self, now: float) -> bool:
        """Whether a request is admitted."""
        self._fill(now)
        return self._requests >= 1 and self._bytes > 0

    def take(self, requests: int, size: int) -> None:
        """Counts the used requests and bytes."""
        self._requests -= requests
        self._bytes -= size

    def check(self, now: float, name: str) -> None:
        """Raises `OverQuota` with the time after which a request is admitted again."""
        if self.has_room(now):
            return
        requests, size = self.per_second
        waits = [
            (1 - self._requests) / requests if requests and self._requests < 1 else 0.0,
            -self._bytes / size if size and self._bytes <= 0 else 0.0,
        ]
        which = "requests" if waits[0] >= waits[1] else "bytes"
        raise OverQuota(
            f"{name} has used up its {which} per second",
            retry_after_seconds=min(max(1, ceil(max(waits))), _LONGEST_SECONDS),
            hint="Wait as Retry-After says; the quota is in the rules of access.",
        )

    def _fill(self, now: float) -> None:
        passed = 0.0 if self._seen is None else now - self._seen
        self._seen = now
        requests, size = self.per_second
        if requests:
            self._requests = min(
                self._requests + passed * requests, max(1, requests * BURST_SECONDS)
            )
        if size:
            self._bytes = min(self._bytes + passed * size, size * BURST_SECONDS)


SCOPES: Final = ("ingest", "read", "consume", "admin", "metrics", "node")
"""What a token may be for."""

NOTHING: Final = PipelineNames()
Grants = Mapping[str, PipelineNames]
"""The pipelines of each scope."""
Fetch = Callable[[str], Awaitable[bytes]]
"""Gives the content at an address. Raises `Unavailable`."""


class KeysNeeded(Exception):
    """The token names an unknown key; `issuer` may fetch it."""

    def __init__(self, issuer: Issuer) -> None:
        super().__init__()
        self.issuer = issuer


@dataclass(frozen=True, slots=True)
class Identity:
    """A recognised sender: name, permissions, and end of validity.

    `expires_ms` is a time of the wall clock; None if it does not expire. `key` distinguishes
    identities of the same name: the token's id, or the source of the name.
    """

    name: str
    key: str
    grants: Grants
    expires_ms: int | None = None
    quota: Quota | None = field(default=None, compare=False)
    concurrent: int = field(default=0, compare=False)
    """How many requests it may have in progress; 0: any number."""

    def names(self, scopes: Iterable[str]) -> PipelineNames:
        """The pipelines for which it has one of the scopes."""
        found = NOTHING
        for scope in scopes:
            more = self.grants.get(scope)
            if more is not None:
                found = more if found is NOTHING else found.joined(more)
        return found


def merged(grants: Iterable[Grants]) -> Grants:
    """Returns the union of all grants."""
    found: dict[str, PipelineNames] = {}
    for one in grants:
        for scope, names in one.items():
            found[scope] = found[scope].joined(names) if scope in found else names
    return found


_HEADER: Final = re.compile(r"[A-Za-z0-9-]+")
_TAKEN: Final = frozenset(["authorization", "cookie", "host", "origin"])
_HINT: Final = "docs/operate/access.md describes the file; `tailrace token make` prints its lines."

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Algorithms with a public and a private key; there is no other here."""
Scopes = dict[str, list[str]]
People = dict[str, Scopes]


class _NamePart(Section):
    model_config = ConfigDict(hide_input_in_errors=True)


def _grants(scopes: Scopes) -> Grants:
    for scope, patterns in scopes.items():
        if scope not in SCOPES:
            raise ValueError(f"there is no scope {scope!r}: there are {', '.join(SCOPES)}")
        if scope in ("metrics", "node") and patterns != ["*"]:
            raise ValueError(f"the scope {scope} is about all pipelines: its patterns are ['*']")
    try:
        return {
            scope: PipelineNames.parse(patterns) for scope, patterns in scopes.items() if patterns
        }
    except InvalidInput as error:
        raise ValueError(f"{error}. {error.hint}") from error


class SecretRule(_NamePart):
    """A valid secret of a token."""

    sha256: str
    expires: AwareDatetime | None = None

    @field_validator("sha256")
    @classmethod
    def _is_hash(cls, text: str) -> str:
        if not SHA256.fullmatch(text):
            raise ValueError("a hash has 64 digits, 0-9 and a-f: it is not the token itself")
        return text


class TokenRule(_NamePart):
    """A static token."""

    id: str
    name: str = Field(min_length=1, max_length=200)
    secrets: Annotated[list[SecretRule], Field(min_length=1, max_length=2)]
    scopes: Scopes
    requests_per_second: float = Field(default=0, ge=0)
    bytes_per_second: Bytes | Literal[0] = 0
    concurrent_requests: int = Field(default=0, ge=0)

    @field_validator("id")
    @classmethod
    def _is_id(cls, text: str) -> str:
        if not ID.fullmatch(text):
            raise ValueError("an id has 4 to 32 of a-z and 0-9")
        return text

    @field_validator("scopes")
    @classmethod
    def _are_scopes(cls, scopes: Scopes) -> Scopes:
        _grants(scopes)
        return scopes

    @property
    def grants(self) -> Grants:
        return _grants(self.scopes)

    @property
    def hashes(self) -> list[Secret]:
        """The hashes of its secrets and their ends."""
        return [Secret(s.sha256, _ms(s.expires)) for s in self.secrets]


class PeopleRules(_NamePart):
    """Permissions of the users and groups of one source; a user has the union of all of them.

    Each user may have `concurrent_requests` in progress; 0: any number.
    """

    users: People = Field(default_factory=dict)
    groups: People = Field(default_factory=dict)
    concurrent_requests: int = Field(default=0, ge=0)

    @field_validator("users", "groups")
    @classmethod
    def _are_people(cls, people: People) -> People:
        for scopes in people.values():
            _grants(scopes)
        return people

    def grants(self, user: str, groups: list[str]) -> list[Grants]:
        """The grants of a user who is in these groups."""
        found = [self.users.get(user), *(self.groups.get(group) for group in groups)]
        return [_grants(scopes) for scopes in found if scopes]


class IssuerRule(PeopleRules):
    """An issuer of JWT. `keys` is the address or the file of its JWKS."""

    issuer: str = Field(min_length=1)
    keys: str = Field(min_length=1)
    audience: str = ""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256",)
    skew_seconds: float = Field(default=30, ge=0, le=300)
    keys_seconds: float = Field(default=600, ge=1)
    without_expiry: bool = False
    claims: dict[str, str] = Field(default_factory=dict)
    user_claim: str = "sub"
    groups_claim: str = "groups"


class ProxyRule(PeopleRules):
    """A proxy that authenticates its users and names them in headers."""

    addresses: Annotated[list[str], Field(min_length=1)]
    user_header: str
    groups_header: str = ""

    @field_validator("addresses")
    @classmethod
    def _are_addresses(cls, listed: list[str]) -> list[str]:
        for one in listed:
            try:
                network = ipaddress.ip_network(one)
            except ValueError as error:
                raise ValueError(f"{one!r} is neither an address nor a network: {error}") from error
            if network.prefixlen == 0:
                raise ValueError(f"{one} is every address: anybody could claim any name")
        return listed

    @field_validator("user_header", "groups_header")
    @classmethod
    def _is_header(cls, name: str) -> str:
        if name and (not _HEADER.fullmatch(name) or name.lower() in _TAKEN):
            raise ValueError(f"{name!r} cannot be the header")
        return name.lower()

    @property
    def networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        return [ipaddress.ip_network(one) for one in self.addresses]


class Rules(_NamePart):
    """All rules of a file."""

    tokens: list[TokenRule] = Field(default_factory=list)
    issuers: list[IssuerRule] = Field(default_factory=list)
    proxy: ProxyRule | None = None

    @field_validator("tokens")
    @classmethod
    def _ids_differ(cls, tokens: list[TokenRule]) -> list[TokenRule]:
        _refuse_twice([token.id for token in tokens], "token")
        return tokens

    @field_validator("issuers")
    @classmethod
    def _issuers_differ(cls, issuers: list[IssuerRule]) -> list[IssuerRule]:
        _refuse_twice([issuer.issuer for issuer in issuers], "issuer")
        return issuers


def parse(text: str, where: str) -> Rules:
    """Parses the text of a file. Raises `InvalidInput`, which never quotes a value."""
    try:
        content: Any = load_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        raise InvalidInput(f"the rules of access {where} are no YAML{line}", hint=_HINT) from None
    if not isinstance(content, Mapping) or not content:
        raise InvalidInput(f"there are no rules of access in {where}", hint=_HINT)
    try:
        rules = Rules.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise InvalidInput(
            f"the rules of access {where}: {place}: {message}", field=place, hint=_HINT
        ) from None
    if not (rules.tokens or rules.issuers or rules.proxy):
        raise InvalidInput(f"the rules of access {where} allow no access to anybody", hint=_HINT)
    return rules


def read(path: str) -> Rules:
    """Reads the rules from a file. Raises `InvalidInput`."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidInput(
            f"the rules of access {path} cannot be read: {why}", field="access.rules", hint=_HINT
        ) from error
    return parse(text, path)


def _refuse_twice(names: list[str], what: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the {what} {twice[0]} is given twice")


def _ms(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    return round(moment.astimezone(UTC).timestamp() * 1000)


_MOST_BYTES: Final = 1 << 20
_MOST_KEYS: Final = 32
_AGAIN_SECONDS: Final = 30.0
_FETCH_SECONDS: Final = 5.0
_LAST_SECOND: Final = 10**13  # also for claims in milliseconds
_LEAST_RSA_BITS: Final = 2048
_KINDS: Final = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("Ed",)}


class Issuer:
    """One issuer and its keys."""

    def __init__(self, rule: IssuerRule, clock: Clock, fetch: Fetch) -> None:
        import jwt  # noqa: F401 -- now, so that no request waits for it; 10 MB with cryptography

        self.rule = rule
        self.problem = ""
        self._clock = clock
        self._fetch = fetch
        self._keys: list[tuple[str | None, str, Any]] = []
        self._fetched = self._tried = -1e9
        self._fetching: asyncio.Future[None] | None = None

    def identify(self, token: str, header: Mapping[str, Any]) -> Identity:
        """Identifies the owner of a token. Raises `NotAuthenticated`, `KeysNeeded`."""
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
        """Returns the claims of the token; None if no key signed it. Raises `NotAuthenticated`."""
        import jwt

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
                        # Checked below, by the clock of this node.
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
                raise NotAuthenticated(f"the token's claim {name} is not a time")
        if claims.get("exp") is not None and claims["exp"] + skew <= now:
            raise NotAuthenticated("the token has expired")
        if max(claims.get("nbf") or 0, claims.get("iat") or 0) - skew > now:
            raise NotAuthenticated("the token is not valid yet")

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        rule = self.rule
        for name, value in rule.claims.items():
            if claims.get(name) != value:
                raise NotAuthenticated(f"the token's claim {name} does not match the rules")
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
        """Fetches the keys, one fetch at a time. `problem` describes an error."""
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
    """Returns id, kind and public key of each key of a JWKS that is for signatures.

    Leaves out shared secrets, keys for encryption, and RSA keys of less than 2,048 bits.
    """
    import jwt

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
    """Returns header and issuer of a JWT, unverified. Raises `NotAuthenticated`."""
    import jwt

    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise NotAuthenticated("the token is not known to this service") from error
    issuer = claims.get("iss")
    return header, issuer if isinstance(issuer, str) else ""


async def fetched(place: str) -> bytes:
    """Reads the JWKS at an address, or in a file. Raises `Unavailable`."""
    if urlsplit(place).scheme not in ("http", "https"):
        return await asyncio.to_thread(_of_file, place)
    import aiohttp

    limit = aiohttp.ClientTimeout(total=2 * _FETCH_SECONDS, sock_read=_FETCH_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as client,
            client.get(place, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise Unavailable(f"{_named(place)} answers {response.status}")
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > _MOST_BYTES:
                    raise Unavailable(f"{_named(place)} answers with more than {_MOST_BYTES} bytes")
            return bytes(body)
    except (aiohttp.ClientError, OSError, ValueError) as error:  # a TimeoutError is an OSError
        raise Unavailable(f"{_named(place)} does not answer: {type(error).__name__}") from error


def _named(place: str) -> str:
    """Returns the address without parts that may be secret."""
    parts = urlsplit(place)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _of_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from error
