"""Fields of an entry: `body`, `body.a.b`, `attributes.a`, `attributes["a.b"]`, `resource.a`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from forwarder.entries.entry import Entry

_FIELD = re.compile(r"""\$?(body|attributes|resource)((?:\.[\w-]+|\[(?:"[^"]*"|'[^']*')\])*)""")
_STEP = re.compile(r"""\.([\w-]+)|\[(?:"([^"]*)"|'([^']*)')\]""")
MISSING: Final = object()
"""What `get` gives where there is nothing."""


@dataclass(frozen=True, slots=True)
class Field:
    """One place in an entry."""

    root: str
    path: tuple[str, ...] = ()

    def get(self, entry: Entry) -> Any:
        """The value, or `MISSING`."""
        value = getattr(entry, self.root)
        for name in self.path:
            if not isinstance(value, dict) or name not in value:
                return MISSING
            value = value[name]
        return value

    def take(self, entry: Entry) -> Any:
        """The value, which is no longer there afterwards, or `MISSING`."""
        value = self.get(entry)
        if value is MISSING:
            return value
        if not self.path:
            setattr(entry, self.root, "" if self.root == "body" else {})
        else:
            inner = getattr(entry, self.root)
            for name in self.path[:-1]:
                inner = inner[name]
            del inner[self.path[-1]]
        return value

    def getter(self) -> Callable[[Entry], Any]:
        """`get`, made for this field."""
        if self.root == "body" and not self.path:
            return lambda entry: entry.body
        if self.root == "attributes" and len(self.path) == 1:
            (name,) = self.path
            return lambda entry: entry.attributes.get(name, MISSING)
        return self.get

    def set(self, entry: Entry, value: Any) -> None:
        """Sets the value; one that is no mapping goes out of the way of one that must be."""
        if not self.path:
            if self.root == "body":
                entry.body = value
            elif isinstance(value, dict):
                getattr(entry, self.root).update(value)
            return
        inner = getattr(entry, self.root)
        if not isinstance(inner, dict):
            inner = entry.body = {}
        for name in self.path[:-1]:
            following = inner.get(name)
            if not isinstance(following, dict):
                following = inner[name] = {}
            inner = following
        inner[self.path[-1]] = value


def parse_field(value: object) -> Field:
    """A field as it is written. Raises `ValueError` with what a field looks like."""
    if isinstance(value, Field):
        return value
    found = _FIELD.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('a field is body, body.name, attributes.name or attributes["a.b"]')
    return Field(found[1], tuple("".join(one) for one in _STEP.findall(found[2])))
