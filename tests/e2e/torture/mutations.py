"""Faults that the torture must see, each of a promise that it is there to break."""

from __future__ import annotations

from tests.proving import Mutation

MUTATIONS: list[Mutation] = []
