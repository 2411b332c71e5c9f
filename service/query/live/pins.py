"""The hot part of this node at one moment, as live searches need it."""

from __future__ import annotations

from typing import Protocol

from service.query.hot import Pin


class LivePin(Pin, Protocol):
    """A pin that can be taken again, and says how far the node was."""

    @property
    def held(self) -> bool:
        """Whether it was not released yet."""
        ...

    @property
    def first_pos(self) -> int:
        """The lowest position that the journal still holds."""
        ...

    @property
    def end_pos(self) -> int:
        """One past the last record that was synced."""
        ...

    @property
    def confirmed_seq(self) -> int:
        """The number of the last confirmed segment."""
        ...

    def again(self) -> LivePin:
        """Another pin of the same moment."""
        ...
