"""A served node for the tests of doors."""

from __future__ import annotations

from tests.service.http.conftest import direct, serve

__all__ = ["direct", "serve"]
