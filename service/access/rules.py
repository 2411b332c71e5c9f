"""The file of rules: which tokens, issuers and proxies there are, and what each may do.

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

`parse` refuses a file as a whole: an unknown key, two tokens of one id, a scope nobody knows.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import AwareDatetime, ConfigDict, Field, ValidationError, field_validator

from logstore.bounded_yaml import load_yaml
from logstore.errors import InvalidInput
from logstore.settings import Bytes, Section
from service.access.identity import SCOPES, Grants
from service.access.names import Names
from service.access.tokens import ID, SHA256, Secret

_HEADER: Final = re.compile(r"[A-Za-z0-9-]+")
_TAKEN: Final = frozenset(["authorization", "cookie", "host", "origin"])
_HINT: Final = "docs/access.md describes the file; `tailrace token make` prints its lines."

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Algorithms with a public and a private key; there is no other here."""
Scopes = dict[str, list[str]]
People = dict[str, Scopes]


class _Part(Section):
    model_config = ConfigDict(hide_input_in_errors=True)


def _grants(scopes: Scopes) -> Grants:
    for scope, patterns in scopes.items():
        if scope not in SCOPES:
            raise ValueError(f"there is no scope {scope!r}: there are {', '.join(SCOPES)}")
        if scope in ("metrics", "node") and patterns != ["*"]:
            raise ValueError(f"the scope {scope} is about all pipelines: its patterns are ['*']")
    try:
        return {scope: Names.parse(patterns) for scope, patterns in scopes.items() if patterns}
    except InvalidInput as error:
        raise ValueError(f"{error}. {error.hint}") from error


class SecretRule(_Part):
    """A valid secret of a token."""

    sha256: str
    expires: AwareDatetime | None = None

    @field_validator("sha256")
    @classmethod
    def _is_hash(cls, text: str) -> str:
        if not SHA256.fullmatch(text):
            raise ValueError("a hash has 64 digits, 0-9 and a-f: it is not the token itself")
        return text


class TokenRule(_Part):
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
        """Hashes and their ends."""
        return [Secret(s.sha256, _ms(s.expires)) for s in self.secrets]


class PeopleRules(_Part):
    """What users and groups of one source may do; what they may together is added.

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
    """A proxy that has recognised its users, and says so in headers."""

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
                raise ValueError(f"{one!r} is no address and no network: {error}") from error
            if network.prefixlen == 0:
                raise ValueError(f"{one} is every address: anybody could name themselves")
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


class Rules(_Part):
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
    """The rules in the text of a file. Raises `InvalidInput`, which never quotes a value."""
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
        raise InvalidInput(f"the rules of access {where} let nobody in", hint=_HINT)
    return rules


def read(path: str) -> Rules:
    """The rules in a file. Raises `InvalidInput`."""
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
        raise ValueError(f"the {what} {twice[0]} is there twice")


def _ms(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    return round(moment.astimezone(UTC).timestamp() * 1000)
