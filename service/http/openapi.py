"""Generates openapi.yaml, the same text for the same app.

python -m service.http.openapi > openapi.yaml
"""

from __future__ import annotations

import sys
from typing import Any

import yaml

from service.http.app import documented


def render(schema: dict[str, Any]) -> str:
    """The schema as YAML, the same for the same schema."""
    return yaml.safe_dump(schema, sort_keys=False, allow_unicode=True, width=100)


if __name__ == "__main__":
    sys.stdout.write(render(documented().openapi()))
