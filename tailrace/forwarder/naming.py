"""Maps a file to its run: `fqn` and `run` made of its path, or by a shipped template.

Texts of the configuration have places in braces: named groups of `path_pattern`, `{name}` (the
file's name), `{stem}` (the name up to its first dot), `{0}`, `{1}`, … (parts of the path from the
root), `{-1}`, `{-2}`, … (from its end), `{host}`, `{source}` and `{id}`, which is another for each
generation of the file: a file that is rotated away keeps its own, and the new one has a new one.
`{{` and `}}` are braces.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tailrace.forwarder.config.source import FileSource
from tailrace.forwarder.entries.splitting import clean
from tailrace.forwarder.pods import PodNames, PodPath
from tailrace.logstore.errors import InvalidInput

_OWN = ("name", "stem", "host", "source", "id")
_INDEX = re.compile(r"-?\d+")


class RunName(NamedTuple):
    """The run of a file."""

    fqn: str
    run: str


class Template(NamedTuple):
    """A shipped rule: what paths look like, and the texts that name their runs."""

    pattern: re.Pattern[str]
    fqn: str
    run: str
    path: str
    """Such a path, for messages."""


# Files that the kubelet rotated (0.log.20260102-030405.gz) are of the same run.
_PODS: Final = Template(
    re.compile(
        r".*/(?P<namespace>[^/_]+)_(?P<pod>[^/_]+)_(?P<uid>[0-9a-f-]+)"
        r"/(?P<container>[^/]+)/(?P<restart>\d+)\.log(?:\.[^/]*)?"
    ),
    "{namespace}.{pod}.{container}",
    "{uid}/{restart}",
    "/var/log/pods/NAMESPACE_POD_UID/CONTAINER/RESTART.log",
)
TEMPLATES: Final[Mapping[str, Template]] = {
    "pods": _PODS,
    "kubernetes": _PODS,  # of pods whose labels name no run
    "airflow": Template(
        re.compile(
            r".*/dag_id=(?P<dag>[^/]+)/run_id=(?P<dag_run>[^/]+)/task_id=(?P<task>[^/]+)"
            r"(?:/(?P<map>map_index=-?\d+))?/(?P<attempt>attempt=\d+)\.log"
            r"(?P<trigger>\.trigger\.\d+)?(?:\.[^/]*)?"
        ),
        "{dag}.{task}",
        "{dag_run}{/map}/{attempt}{trigger}",
        "…/dag_id=DAG/run_id=RUN/task_id=TASK/attempt=N.log",
    ),
}


class Namer:
    """Names the runs of the files of one source. Raises `InvalidInput` for a place it has not."""

    def __init__(self, source: FileSource, *, host: str, pods: PodNames | None = None) -> None:
        """`pods` names runs by labels; with the template `kubernetes`."""
        self._pods = pods
        template = TEMPLATES.get(source.template)
        self._source = source.name
        self._host = host
        self._pattern = template.pattern if template else source.path_pattern
        self._like = template.path if template else "path_pattern"
        groups = set(self._pattern.groupindex) if self._pattern else set()
        self._fqn = _filler(template.fqn if template else source.fqn, groups, "fqn")
        run = source.run or (template.run if template else "{id}")
        self._run = _filler(run, groups, "run")

    def remember(self, path: str, named: RunName) -> None:
        """Keeps the name that a file got before a restart."""
        found = None if self._pattern is None else self._pattern.fullmatch(path)
        if self._pods is not None and found is not None:
            self._pods.remember(_pod_path(found.groupdict()), named)

    def name(self, path: str, id: str) -> RunName:  # noqa: A002 - the file's, as it is called
        """The run of the file at `path`, whose generation is `id`.

        Raises `InvalidInput` if the path is not as the pattern has it, or a name would be empty;
        `Unavailable` if the name is not known yet.
        """
        groups: Mapping[str, str | None] = {}
        if self._pattern is not None:
            found = self._pattern.fullmatch(path)
            if found is None:
                raise InvalidInput(
                    f"{path} has no run: it does not match {self._like}",
                    hint="Change `path_pattern`, or exclude the file.",
                )
            groups = found.groupdict()
        named = None if self._pods is None else self._pods.name(_pod_path(groups))
        if named is not None:
            return RunName(*(clean(each)[0] for each in named))
        name = path.rpartition("/")[2]
        own = {
            "name": name,
            "stem": name[:1] + name[1:].partition(".")[0],
            "host": self._host,
            "source": self._source,
            "id": id,
        }
        parts = [part for part in path.split("/") if part]
        made = RunName(*(clean(fill(groups, own, parts))[0] for fill in (self._fqn, self._run)))
        if not all(made):
            raise InvalidInput(
                f"{path} has no run: its {'run' if made.fqn else 'fqn'} would be empty",
                hint="Use a group of `path_pattern` that is in every path, or exclude the file.",
            )
        return made


def _pod_path(groups: Mapping[str, str | None]) -> PodPath:
    return PodPath(**{name: value or "" for name, value in groups.items()})


_Fill = Callable[[Mapping[str, str | None], Mapping[str, str], list[str]], str]


def _filler(text: str, groups: set[str], key: str) -> _Fill:
    """The values of the places in a text; `{/group}` is a slash and the group, or nothing."""
    try:
        pieces = [(literal, place) for literal, place, _, _ in string.Formatter().parse(text)]
    except ValueError as error:
        raise _wrong(key, f"{text!r}: {error}") from None
    for _, place in pieces:
        known = place is None or place in _OWN or place.lstrip("/") in groups
        if not known and not _INDEX.fullmatch(str(place)):
            raise _wrong(key, f"{{{place}}} is not a group of path_pattern")

    def fill(found: Mapping[str, str | None], own: Mapping[str, str], parts: list[str]) -> str:
        return "".join(
            literal + ("" if place is None else _value(place, found, own, parts))
            for literal, place in pieces
        )

    return fill


def _value(
    place: str, found: Mapping[str, str | None], own: Mapping[str, str], parts: list[str]
) -> str:
    group = place.lstrip("/")
    if group in found:
        value = found[group] or ""
        return f"/{value}" if value and place != group else value
    if place in own:
        return own[place]
    index = int(place)
    return parts[index] if -len(parts) <= index < len(parts) else ""


def _wrong(key: str, message: str) -> InvalidInput:
    own = ", ".join(f"{{{name}}}" for name in _OWN)
    return InvalidInput(
        f"{key}: {message}",
        field=key,
        hint=f"It may have groups of path_pattern, {own}, {{0}} and {{-2}}.",
    )
