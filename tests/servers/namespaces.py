"""A network of Linux: namespaces on one bridge of this machine, each with a stack of its own.

What is cut reset is unreachable at once, by a route; what is cut silent goes to a card that nobody
has. Whoever is in no namespace is on the bridge's own side, and reaches everybody.

It needs a user who may make namespaces, and `ip` of iproute2: `why_no_namespaces`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tests.faults.link import Cut
from tests.servers.minio import Place

_NOWHERE: Final = ("lladdr", "02:00:00:00:00:01", "nud", "permanent")
_CABLE: Final = "eth0"


def why_no_namespaces() -> str | None:
    """A sentence that says why they cannot be had here; None if they can."""
    if shutil.which("ip") is None:
        return "no ip (iproute2)"
    try:
        with Namespaces() as network:
            network.place("trial")
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made: {error.stderr.strip()[-200:]}"
    return None


@dataclass(frozen=True)
class _Namespace:
    name: str
    address: str


class Namespaces:
    """The bridge and what is on it. As a context manager it takes all down again."""

    def __init__(self) -> None:
        self._tag = f"t{os.getpid()}"
        self._net = f"10.{64 + os.getpid() % 64}.{os.getpid() // 64 % 256}"
        self._made: dict[str, _Namespace] = {}

    def place(self, who: str) -> Place:
        """A namespace for somebody: its address, and the command that runs another one there."""
        number = len(self._made) + 2
        made = _Namespace(f"tailrace-{self._tag}-{number}", f"{self._net}.{number}")
        self._made[who] = made
        cable = f"{self._tag}c{number}"
        _ip("netns", "add", made.name)
        _ip("link", "add", cable, "type", "veth", "peer", "name", _CABLE, "netns", made.name)
        _ip("link", "set", cable, "master", self._bridge, "up")
        _ip("-n", made.name, "address", "add", f"{made.address}/24", "dev", _CABLE)
        for link in (_CABLE, "lo"):
            _ip("-n", made.name, "link", "set", link, "up")
        return Place(made.address, ("ip", "netns", "exec", made.name))

    def cut(self, one: str, other: str, how: Cut) -> None:
        """Lets nothing pass between two of them."""
        one_place, other_place = self._made[one], self._made[other]
        for here, there in ((one_place, other_place), (other_place, one_place)):
            if how is Cut.RESET:
                _ip("-n", here.name, "route", "replace", "unreachable", f"{there.address}/32")
            else:
                _ip("-n", here.name, *_neighbour("replace", there), *_NOWHERE)

    def mend(self, one: str, other: str) -> None:
        """Ends that cut."""
        one_place, other_place = self._made[one], self._made[other]
        for here, there in ((one_place, other_place), (other_place, one_place)):
            _try_ip("-n", here.name, "route", "del", "unreachable", f"{there.address}/32")
            _try_ip("-n", here.name, *_neighbour("del", there))

    @property
    def _bridge(self) -> str:
        return f"{self._tag}b"

    def __enter__(self) -> Self:
        _ip("link", "add", self._bridge, "type", "bridge")
        try:
            _ip("address", "add", f"{self._net}.1/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
        except subprocess.CalledProcessError:
            _try_ip("link", "del", self._bridge)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for made in self._made.values():
            _try_ip("netns", "del", made.name)  # and its cable with it
        _try_ip("link", "del", self._bridge)


def _neighbour(verb: str, there: _Namespace) -> Sequence[str]:
    return "neighbour", verb, there.address, "dev", _CABLE


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _try_ip(*words: str) -> None:
    """What may not be there any more, or not have been cut this way."""
    subprocess.run(["ip", *words], check=False, capture_output=True)
