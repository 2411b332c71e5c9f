"""YAML of configurations, bounded: a few lines cannot stand for more than a machine can hold.

An alias stands for the whole content of its anchor, so nine lines may be a thousand million values,
and a walk through them never ends; endless nesting exhausts the stack. So the number of values is
counted before anything is made of a text.
"""

from __future__ import annotations

from typing import Any, Final, cast

import yaml

MAX_NODES: Final = 100_000
MAX_DEPTH: Final = 100


class BoundedLoader(yaml.SafeLoader):
    """Loads plain values. Raises `YAMLError` for more nodes, aliases resolved, or more depth."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0
        self._sizes: dict[str, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """One node with all below it; an alias counts as often as it is used."""
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]
        anchor: str | None = event.anchor
        if isinstance(event, yaml.AliasEvent):
            if anchor in self.anchors and anchor not in self._sizes:
                raise _refused("an anchor holds itself", event)
            self._count(self._sizes.get(str(anchor), 0), event)
            return super().compose_node(parent, index)
        before = self._nodes
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refused(f"it is nested more than {MAX_DEPTH} deep", event)
        self._count(1, event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None:
            self._sizes[anchor] = self._nodes - before
        return node

    def construct_document(self, node: yaml.Node) -> Any:
        """The values of a document."""
        try:
            return super().construct_document(node)
        except (ValueError, OverflowError) as error:  # a date or a number that is none
            raise yaml.YAMLError(str(error)) from error

    def _count(self, nodes: int, event: yaml.Event) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _refused(f"it stands for more than {MAX_NODES} values", event)


def load_yaml(text: str) -> Any:
    """The values of a text. Raises `YAMLError`."""
    loader = BoundedLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _refused(what: str, event: yaml.Event) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=cast("yaml.Mark", event.start_mark))
