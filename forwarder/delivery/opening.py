"""A delivery made of what the configuration says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forwarder.balanced import Balanced
from forwarder.delivery.delivery import Delivery
from forwarder.delivery.encodings import BodyEncoding, encoder
from forwarder.delivery.pool import Pool
from forwarder.delivery.targets import (
    DEFAULT_PORT,
    Address,
    Resolver,
    SystemResolver,
    parse_target,
)
from forwarder.delivery.token import Token
from forwarder.delivery.verdicts import Verdict
from logstore.clock import Clock, Entropy, SystemClock, system_entropy
from logstore.credentials import trust
from logstore.errors import InvalidInput
from tailrace_client.errors import InvalidRequest
from tailrace_client.retry import Backoff
from tailrace_client.service import Service

_TIMEOUT_SECONDS = 30.0


def open_pool(
    targets: Sequence[str],
    token: Token,
    *,
    say: Callable[[str], None],
    ca_file: str = "",
    backoff: Callable[[], Backoff] = Backoff,
    resolver: Resolver | None = None,
    clock: Clock | None = None,
    dice: Entropy | None = None,
    timeout_seconds: float = _TIMEOUT_SECONDS,
) -> Pool:
    """The places of the targets. Raises `InvalidInput` for a target, token or file that cannot be.

    Nothing is looked up or connected to yet.
    """
    tls = trust(ca_file, field="ca_file") if ca_file else None

    def connect(address: Address) -> Service:
        return Service(
            address.url,
            token=token.current,
            timeout_seconds=timeout_seconds,
            ssl_context=tls,
            compress=False,
            connect_to=(address.ip, address.port) if address.ip else None,
        )

    if not targets:
        raise InvalidInput("there is no target", hint="Name one, such as 127.0.0.1:8790.")
    parsed = [parse_target(text) for text in targets]
    try:
        Service("http://127.0.0.1", token=token.current)
    except InvalidRequest as error:
        raise InvalidInput(str(error)) from None
    return Pool(
        parsed,
        connect=connect,
        backoff=backoff,
        resolver=resolver or SystemResolver(),
        clock=clock or SystemClock(),
        dice=dice or system_entropy(),
        say=say,
    )


def open_service(
    targets: Sequence[str],
    token: Token,
    *,
    say: Callable[[str], None],
    ca_file: str = "",
    longest_pause_seconds: float = 5.0,
) -> Balanced:
    """All targets as one service. Raises `InvalidInput`."""
    pool = open_pool(
        targets,
        token,
        say=say,
        ca_file=ca_file,
        backoff=lambda: Backoff(longest=longest_pause_seconds),
    )
    first = parse_target(targets[0])
    host = f"[{first.host}]" if ":" in first.host else first.host
    url = f"{first.scheme}://{host}:{first.port or DEFAULT_PORT}{first.path}"
    try:
        return Balanced(url, pool, new_token=token.renew)
    except InvalidRequest as error:
        raise InvalidInput(error.message, hint=error.hint) from None


def open_delivery(
    targets: Sequence[str],
    token: Token,
    *,
    on_verdict: Callable[[str, Verdict], None],
    say: Callable[[str], None],
    senders: int = 4,
    durability: str = "",
    body_encoding: BodyEncoding = "",
    first_pause_seconds: float = 1.0,
    longest_pause_seconds: float = 30.0,
    ca_file: str = "",
    resolver: Resolver | None = None,
) -> Delivery:
    """A delivery that runs. Raises `InvalidInput`."""

    def backoff() -> Backoff:
        return Backoff(first_pause_seconds, longest_pause_seconds)

    pool = open_pool(targets, token, say=say, ca_file=ca_file, backoff=backoff, resolver=resolver)
    delivery = Delivery(
        pool,
        senders=senders,
        on_verdict=on_verdict,
        backoff=backoff,
        durability=durability,
        encode=encoder(body_encoding),
        new_token=token.renew,
    )
    delivery.start()
    return delivery
