"""Patterns of pipelines' names: `shop.orders` is one, `shop.*` all that begin so, `*` all.

A `*` stands at the end or nowhere, so a pattern is a prefix: that is what the names of pipelines
are made for, and what searches can use to skip files. `shop*` has `shopping.cart`, too; `shop.*`
has not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from logstore.errors import InvalidInput
from logstore.names import check_name
from logstore.patterns import TextTest
from logstore.search.conditions import AnyOf, Column, Condition, Is, StartsWith

_FQN = Column("fqn")


@dataclass(frozen=True, slots=True)
class Names:
    """The pipelines that some patterns name."""

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    @staticmethod
    def parse(patterns: Iterable[str], where: str = "") -> Names:
        """The names of all patterns. Raises `InvalidInput` for one that cannot be."""
        exact: set[str] = set()
        prefixes: set[str] = set()
        for pattern in patterns:
            stem, star, rest = pattern.partition("*")
            if rest:
                raise InvalidInput(
                    f"{where}{pattern!r} has a * that is not at its end",
                    hint="A pattern is a name, or the beginning of names with a * behind it.",
                )
            if stem:
                check_name(stem, "fqn")
            elif not star:
                raise InvalidInput(f"{where}a pattern is empty", hint="Write * for all pipelines.")
            (prefixes if star else exact).add(stem)
        return Names(frozenset(exact), tuple(sorted(prefixes)))

    @property
    def every(self) -> bool:
        """Whether all pipelines are among them."""
        return "" in self.prefixes

    def hold(self, fqn: str) -> bool:
        """Whether the pipeline is one of them."""
        return fqn in self.exact or fqn.startswith(self.prefixes)

    def joined(self, other: Names) -> Names:
        """The pipelines of both."""
        prefixes = tuple(sorted({*self.prefixes, *other.prefixes}))
        return Names(self.exact | other.exact, prefixes)

    def condition(self) -> Condition | None:
        """What a record of them must be like; None: anything."""
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
