"""`${NAME:-default}` in a settings file, replaced as OpenMetadata's server replaces it.

Its rules are those of Dropwizard's `EnvironmentVariableSubstitutor(false)`, which is commons-text's
`StringSubstitutor`. They differ from a shell's:

- The text is replaced before it is YAML, comments and keys too: a value may be a list or a number.
- A variable that is set to nothing is replaced by nothing. The default stands only for one that is
  not set.
- A variable that is not set and has no default stays as it is written.
- What a variable or a default holds is replaced in turn, but a name or a default ends at the first
  `}`: `${A:-${B}}` is `${B}`.
- `$${A}` is `${A}`.

Source: `substitute` in org.apache.commons.text.StringSubstitutor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from logstore.errors import InvalidInput

_FOUND = re.compile(r"\$(?P<escaped>\$\{)(?=[^}]*\})|\$\{(?P<inside>[^}]*)\}")


def substituted(text: str, variables: Mapping[str, str]) -> str:
    """`text` with its variables replaced. Raises `InvalidInput` for one that needs itself."""
    return _substituted(text, variables, ())


def _substituted(text: str, variables: Mapping[str, str], within: tuple[str, ...]) -> str:
    def value(found: re.Match[str]) -> str:
        if found["escaped"]:
            return found["escaped"]
        name, default = _parts(found["inside"])
        said = variables.get(name, default)
        if said is None:
            return found[0]
        if name in within:
            chain = " needs ".join([*within, name])
            raise InvalidInput(f"a variable of the settings file needs itself: {chain}", field=name)
        return _substituted(said, variables, (*within, name))

    return _FOUND.sub(value, text)


def _parts(inside: str) -> tuple[str, str | None]:
    """Name and default; a `:-` behind a further `${` parts nothing."""
    stem, delimiter, default = inside.partition(":-")
    return (stem, default) if delimiter and "${" not in stem else (inside, None)
