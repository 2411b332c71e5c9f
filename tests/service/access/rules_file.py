"""Files of rules for tests: tokens with known secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from service.access.rules import hashed, id_of

Scopes = Mapping[str, Sequence[str]]


def token_of(token_id: str, secret: str = "0") -> str:
    """The token with this id, a different one for each secret."""
    return f"trl_{token_id}_{secret * 64}"


def rule(token: str, scopes: Scopes, **more: Any) -> dict[str, Any]:
    """The rule of a token."""
    token_id = id_of(token)
    return {
        "id": token_id,
        "name": f"name of {token_id}",
        "secrets": [{"sha256": hashed(token)}],
        "scopes": {scope: list(patterns) for scope, patterns in scopes.items()},
        **more,
    }


def written(path: Path, *tokens: Mapping[str, Any], **more: Any) -> str:
    """Writes the rules: the path of their file."""
    path.write_text(yaml.safe_dump({"tokens": [dict(t) for t in tokens], **more}))
    return str(path)
