"""Parameters of a URL: unknown names are refused, since they may be typing errors."""

from __future__ import annotations

from collections.abc import Container, Iterable

from fastapi import Request

from logstore.errors import InvalidInput


def refuse_unknown(
    request: Request, known: Iterable[str], *, repeatable: Container[str] = ()
) -> None:
    """Raises `InvalidInput` for a parameter that is not `known`, or that is given twice."""
    names = frozenset(known)
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in names:
            raise InvalidInput(
                f"there is no parameter {name[:80]!r}",
                field=name[:80],
                hint=f"Parameters are {', '.join(sorted(names))}.",
            )
        if name in seen and name not in repeatable:
            raise InvalidInput(f"{name} is given twice", field=name, hint="Give it once.")
        seen.add(name)


def one_of_each(text: str | None, field: str, known: Container[str], hint: str) -> frozenset[str]:
    """The words between commas, each of them known; none if there is no text."""
    words = frozenset(word.strip() for word in (text or "").split(",")) - {""}
    for word in sorted(words):
        if word not in known:
            raise InvalidInput(f"there is no {field} {word[:80]!r}", field=field, hint=hint)
    return words
