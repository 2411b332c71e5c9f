"""Decides about each request: identifies its sender, and checks the sender's permissions.

The fast path and every route ask `Access` before a body is read. `identify` recognises the sender
by a token, a JWT, or a trusted proxy's header. A token is sent as `Bearer`, as the password of
`Basic`, as the key of Elasticsearch's `ApiKey`, or as `Splunk`. `require` compares the permissions
with the required scopes.

Invariants: an identity is remembered for at most `REMEMBERED_SECONDS`, never past the end of its
token, and not over a change of the rules. Only hashes of valid tokens are kept, so a client without
a token cannot evict those of others. No secret gets into a message, a log or a metric. A change of
the rules that cannot be read changes nothing, and is a problem of the node's health.

`RulesWatch` reads the rules again when their file changes, and at SIGHUP.
"""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import ipaddress
import logging
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias

from service.access.audit import AuditLog
from service.access.rules import (
    LONGEST_TOKEN,
    PREFIX,
    Fetch,
    Identity,
    Issuer,
    KeysNeeded,
    PipelineNames,
    Quota,
    Rules,
    Secret,
    TokenRule,
    fetched,
    id_of,
    matching,
    merged,
    read,
    unverified,
)
from service.runtime.health import HealthProblem
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import (
    Forbidden,
    InvalidInput,
    NotAuthenticated,
    TailraceError,
    TooManyAtOnce,
)

REMEMBERED_SECONDS: Final = 60.0
_REMEMBERED: Final = 4096
_PLAIN: Final = (b"bearer", b"splunk")
_PAIRS: Final = (b"basic", b"apikey")
"""Schemes with base64 of two parts, of which the second is the token; the first has no meaning."""

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]


class _Token:
    """A static token of the rules."""

    def __init__(self, rule: TokenRule, quota: Quota | None) -> None:
        self.rule = rule
        self.hashes: list[Secret] = rule.hashes
        self.grants = rule.grants
        self.quota = quota


class Access:
    """Decides by the rules in the file `path`. Raises `InvalidInput` if the file is unreadable."""

    def __init__(
        self,
        path: str,
        clock: Clock,
        *,
        fetch: Fetch | None = None,
        refused: Counter[str] | None = None,
    ) -> None:
        self.path = path
        self.refused: Counter[str] = Counter() if refused is None else refused
        """Refused requests by the reason: no-token, invalid-token, scope, quota, and others."""
        self.loads = 0
        self._clock = clock
        self._fetch = fetch
        self._problem = ""
        self._known: dict[bytes, tuple[Identity, float]] = {}
        self._running: Counter[tuple[str, str]] = Counter()
        self._tokens: dict[str, _Token] = {}
        self._issuers: dict[str, Issuer] = {}
        self._use(read(path))

    # --- the rules -----------------------------------------------------------------

    def reload(self) -> bool:
        """Reads the rules again. Returns whether they are valid; if not, the old ones stay."""
        try:
            rules = read(self.path)
        except InvalidInput as error:
            self._problem = f"{error}; the previous rules stay in use"
            return False
        self._use(rules)
        self._problem = ""
        return True

    def problems(self) -> list[str]:
        """Problems of the rules and the keys of issuers, as sentences."""
        found = [self._problem] if self._problem else []
        return found + [
            HealthProblem(
                f"the keys of the issuer {issuer.rule.issuer} cannot be fetched",
                f"the keys of the issuer {issuer.rule.issuer} cannot be fetched: {issuer.problem}",
            )
            for issuer in self._issuers.values()
            if issuer.problem
        ]

    @property
    def broken(self) -> bool:
        """Whether the rules in use differ from the file."""
        return bool(self._problem)

    def _use(self, rules: Rules) -> None:
        before = self._tokens
        self._tokens = {rule.id: _Token(rule, _quota(rule, before)) for rule in rules.tokens}
        self._issuers = self._issuers_of(rules)
        self._proxy = rules.proxy
        self._networks = [] if rules.proxy is None else rules.proxy.networks
        self._known.clear()
        self.loads += 1

    def _issuers_of(self, rules: Rules) -> dict[str, Issuer]:
        """Returns the issuers. An issuer whose rule is unchanged keeps its keys."""
        if not rules.issuers:
            return {}
        fetch, known = self._fetch or fetched, self._issuers
        return {
            rule.issuer: old
            if (old := known.get(rule.issuer)) is not None and old.rule == rule
            else Issuer(rule, self._clock, fetch)
            for rule in rules.issuers
        }

    # --- who -----------------------------------------------------------------------

    async def identify(self, headers: Headers, peer: str | None) -> Identity:
        """Identifies the sender of these headers from the address `peer`.

        Raises `NotAuthenticated`, and `Unavailable` if the keys of an issuer are unavailable.
        """
        try:
            return self.identify_now(headers, peer)
        except KeysNeeded as needed:
            await needed.issuer.refresh()
        return self.identify_now(headers, peer)

    def identify_now(self, headers: Headers, peer: str | None) -> Identity:
        """Identifies without a fetch of keys. Raises `KeysNeeded` if one is needed."""
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) == 1:
            return self.bearer(given[0])
        if given:
            raise NotAuthenticated("the header Authorization is given twice", hint="Send it once.")
        found = self._by_proxy(headers, peer)
        if found is None:
            raise _no_token()
        return found

    def bearer(self, authorization: bytes) -> Identity:
        """Identifies the owner of the header's token. Raises `NotAuthenticated`, `KeysNeeded`."""
        given = _token_in(authorization)
        if len(given) > LONGEST_TOKEN:
            raise NotAuthenticated(f"the token is longer than {LONGEST_TOKEN} bytes")
        name = hashlib.sha256(given).digest()
        known = self._known.get(name)
        now = self._clock.monotonic()
        if known is not None and now < known[1]:
            return known[0]
        token = given.decode("latin-1")
        found = self._static(token) if token.startswith(PREFIX) else self._of_issuer(token)
        seconds = REMEMBERED_SECONDS
        if found.expires_ms is not None:
            seconds = min(seconds, (found.expires_ms - self._clock.now_ms()) / 1000)
        self._known.pop(name, None)
        if len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[name] = found, now + seconds
        return found

    def _static(self, token: str) -> Identity:
        rule = self._tokens.get(id_of(token) or "")
        secret = matching(token, [] if rule is None else rule.hashes)
        if rule is None or secret is None:
            raise NotAuthenticated("the token is not known")
        if secret.expires_ms is not None and secret.expires_ms <= self._clock.now_ms():
            raise NotAuthenticated(
                f"the token {rule.rule.id} has expired", hint="Use the one that replaces it."
            )
        name, key = rule.rule.name, f"token {rule.rule.id}"
        most = rule.rule.concurrent_requests
        return Identity(name, key, rule.grants, secret.expires_ms, rule.quota, most)

    def _of_issuer(self, token: str) -> Identity:
        if not self._issuers:
            raise NotAuthenticated("the token is not known")
        try:
            header, name = unverified(token)
            issuer = self._issuers.get(name)
            if issuer is None:
                raise NotAuthenticated("the token's issuer is not in the rules")
            return issuer.identify(token, header)
        except (TailraceError, KeysNeeded):
            raise
        except Exception as error:
            # A library reads untrusted input: none of its errors may admit a request.
            raise NotAuthenticated("the token is not valid") from error

    def _by_proxy(self, headers: Headers, peer: str | None) -> Identity | None:
        rule = self._proxy
        if rule is None or peer is None or not self._is_proxy(peer):
            return None
        users = [value for name, value in headers if name == rule.user_header.encode()]
        if len(users) != 1 or not users[0]:
            return None
        try:
            user = users[0].decode()
            said = [v.decode() for n, v in headers if n == rule.groups_header.encode()]
        except UnicodeDecodeError:
            return None
        groups = [group.strip() for value in said for group in value.split(",") if group.strip()]
        granted = merged(rule.grants(user, groups))
        return Identity(user, "proxy", granted, concurrent=rule.concurrent_requests)

    def _is_proxy(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            return any(address.ipv4_mapped in network for network in self._networks)
        return any(address in network for network in self._networks)

    # --- what ----------------------------------------------------------------------

    def require(self, who: Identity, scopes: tuple[str, ...], fqn: str | None) -> PipelineNames:
        """Returns the pipelines for which `who` has one of the scopes; `fqn` must be among them.

        Raises `Forbidden`, `OverQuota`. An admitted call counts as a request.
        """
        names = who.names(scopes)
        either = " or ".join(scopes)
        if not (names.exact or names.prefixes):
            raise Forbidden(f"{who.name} has not the scope {either}")
        if fqn is not None and not names.hold(fqn):
            which = "all pipelines" if fqn == "" else f"the pipeline {fqn[:200]!r}"
            raise Forbidden(f"{who.name} has not the scope {either} for {which}")
        if who.quota is not None:
            who.quota.check(self._clock.monotonic(), who.name)
        return names

    def begin(self, who: Identity) -> None:
        """Counts a request in progress. Raises `TooManyAtOnce`, and counts nothing."""
        if not who.concurrent:
            return
        one = who.key, who.name
        if self._running.get(one, 0) >= who.concurrent:
            raise TooManyAtOnce(f"{who.name} has {who.concurrent} requests in progress")
        self._running[one] += 1

    def end(self, who: Identity) -> None:
        """Counts the end of a request that `begin` counted."""
        if not who.concurrent:
            return
        one = who.key, who.name
        self._running[one] -= 1
        if not self._running[one]:
            del self._running[one]

    def still_holds(self, who: Identity, loads: int) -> bool:
        """Whether an identity from the time of `loads` is still valid without another check."""
        if loads != self.loads:
            return False
        return who.expires_ms is None or self._clock.now_ms() < who.expires_ms

    def admits(self, authorization: bytes | None, fqn: str) -> Identity | None:
        """Identifies a sender who may append to the pipeline; None leaves it to the full check."""
        if authorization is None:
            return None
        try:
            who = self.bearer(authorization)
        except (NotAuthenticated, KeysNeeded):
            return None
        except Exception:  # noqa: BLE001 -- the whole check meets it again, and says it
            return None
        names = who.grants.get("ingest")
        if names is None or not names.hold(fqn):
            return None
        if who.quota is not None and not who.quota.has_room(self._clock.monotonic()):
            return None
        return who


def _token_in(authorization: bytes) -> bytes:
    """Returns the token in an Authorization of any scheme that clients of log stores use."""
    scheme, _, given = authorization.partition(b" ")
    scheme, given = scheme.lower(), given.strip()
    if scheme in _PLAIN:
        return given
    if scheme not in _PAIRS:
        raise NotAuthenticated("Authorization is not `Bearer` and a token")
    try:
        pair = binascii.a2b_base64(given, strict_mode=True)
    except binascii.Error as error:
        raise NotAuthenticated("Authorization is not base64 of a name, `:` and a token") from error
    return pair.partition(b":")[2]


def _quota(rule: TokenRule, before: Mapping[str, _Token]) -> Quota | None:
    """The quota of a token. An unchanged quota keeps its present use."""
    rates = (rule.requests_per_second, float(rule.bytes_per_second))
    if not any(rates):
        return None
    old = before.get(rule.id)
    if old is not None and old.quota is not None and old.quota.per_second == rates:
        return old.quota
    return Quota(*rates)


def _no_token() -> NotAuthenticated:
    error = NotAuthenticated("this service needs a token")
    error.invalid = False
    return error


log = logging.getLogger(__name__)


class RulesWatch:
    """Reads the rules again when their file changes."""

    def __init__(self, access: Access, audit: AuditLog, clock: Clock, seconds: float) -> None:
        self._access = access
        self._audit = audit
        self._clock = clock
        self._seconds = seconds
        self._seen = _state(access.path)
        self.signalled = asyncio.Event()

    async def run(self) -> None:
        """Checks the file at intervals and when `signalled`, until cancelled."""
        while True:
            waiting = asyncio.ensure_future(self.signalled.wait())
            sleeping = asyncio.ensure_future(self._clock.sleep(self._seconds))
            try:
                await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
                sleeping.cancel()
            await self.look(at_once=self.signalled.is_set())

    async def look(self, *, at_once: bool = False) -> None:
        """Reads the rules if their file changed, or `at_once`."""
        self.signalled.clear()
        seen = await asyncio.to_thread(_state, self._access.path)
        if seen == self._seen and not at_once:
            return
        self._seen = seen
        if self._access.reload():
            log.info("the rules of access %s are in use", self._access.path)
            self._audit.note("rules", what="loaded")
        else:
            self._audit.note("rules", what="refused")


@asynccontextmanager
async def following_rules(
    access: Access, audit: AuditLog, clock: Clock, seconds: float
) -> AsyncIterator[RulesWatch]:
    """Reads the rules again while the block runs, also at SIGHUP; then closes the audit log."""
    watch = RulesWatch(access, audit, clock, seconds)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, watch.signalled.set)
    task = asyncio.create_task(watch.run(), name="rules of access")
    try:
        yield watch
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await audit.close()


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
