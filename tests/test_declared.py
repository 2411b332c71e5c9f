"""What is imported is declared: what only another package brings may go with its next release."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUNNING = ["service", "compactor", "tailrace"]
DEVELOPING = ["tests", "benchmarks", "docs"]
# pyspark names the very version; OpenMetadata's packages are in an environment of their own.
BROUGHT = {"py4j": "pyspark"}
ELSEWHERE = {"metadata"}
CLIENT = "tailrace_client"  # of `client/`, with the standard library alone

_PROJECTS = {
    name: tomllib.loads((ROOT / name / "pyproject.toml").read_text())
    for name in (".", "forwarder", "client")
}
_EXTRAS = _PROJECTS["."]["project"]["optional-dependencies"]
_RUN = [
    requirement
    for name in (".", "forwarder")
    for requirement in [
        *_PROJECTS[name]["dependency-groups"]["run"],
        *_PROJECTS[name]["tool"]["tailrace"]["distributions"],
    ]
]


def plain(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> set[str]:
    return {plain(re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0]) for one in requirements}


def imported(folders: list[str]) -> set[str]:
    """Top-level modules of others, in code of these folders."""
    own = {*RUNNING, *DEVELOPING, *ELSEWHERE, *sys.stdlib_module_names}
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {name for path in paths for name in _names(path)} - own


def _names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def missing(folders: list[str], known: set[str]) -> set[str]:
    found = packages_distributions()
    return {
        name
        for name in imported(folders)
        if not known & {plain(one) for one in [*found.get(name, []), BROUGHT.get(name, name)]}
    }


def test_what_runs_imports_what_is_declared() -> None:
    known = declared(_RUN) | declared(_EXTRAS["spark"])
    assert {"fastapi", "pyspark"} <= imported(RUNNING)
    assert missing(RUNNING, known) == set()


def test_tests_and_benchmarks_import_what_is_declared() -> None:
    everything = [*_RUN, *_EXTRAS["spark"], *_EXTRAS["dev"]]
    assert missing(DEVELOPING, declared(everything)) == set()
    assert imported(["client"]) == {CLIENT}


def test_what_only_another_package_brings_is_found() -> None:
    known = declared(_RUN) | declared(_EXTRAS["spark"])
    assert missing(RUNNING, known - {"starlette"}) == {"starlette"}


def test_the_distributions_of_a_release_have_one_version_and_state_what_they_support() -> None:
    projects = [one["project"] for one in _PROJECTS.values()]
    assert len({project["version"] for project in projects}) == 1
    for project in projects:
        assert "Programming Language :: Python :: 3.14" in project["classifiers"]
        assert "Typing :: Typed" in project["classifiers"]


def test_only_a_package_that_has_to_be_is_pinned_exactly() -> None:
    exact = {one.partition("==")[0] for one in [*_RUN, *_EXTRAS["spark"]] if "==" in one}
    assert exact == {"pyspark"}  # its jars from Maven are built for one release


@pytest.mark.in_turn(4, "the image")
def test_the_image_has_every_package(tmp_path: Path) -> None:
    """No engine for containers runs in tests: what the build copies is installed beside it."""
    allowed = set((ROOT / ".dockerignore").read_text().split())
    for line in re.findall(r"^COPY ([^-].*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        for name in line.split():
            assert f"!{name.split('/')[0]}" in allowed
            _copy(name, tmp_path / "build")
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    offline = ["--no-deps", "--no-build-isolation", "--no-index", f"--target={installed}"]
    distributions = ["./client", "./forwarder", "."]
    subprocess.run([*pip, *offline, *distributions], check=True, cwd=tmp_path / "build")
    for package in [*RUNNING, CLIENT]:
        folder = ROOT / ("client" if package == CLIENT else "") / package
        assert _sources(installed / package) == _sources(folder)


def test_actions_and_images_of_others_are_pinned_by_digest() -> None:
    """A tag may lead to something else tomorrow."""
    workflows = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    used = re.findall(r"^ *(?:- )?uses: *(\S+)", "\n".join(workflows), re.MULTILINE)
    assert len(used) >= 5
    assert [one for one in used if not re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40}", one)] == []
    stages = re.findall(
        r"^FROM (?:--\S+ )*(\S+)(?: AS (\S+))?", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    names = {name for _, name in stages}
    composed = re.findall(
        r"^ *image: *(\S+)", (ROOT / "docker-compose.yml").read_text(), re.MULTILINE
    )
    images = {image for image, _ in stages} - names | set(composed) - {
        "tailrace:latest",
        "tailrace:slim",
    }
    assert len(images) >= 2
    assert [one for one in images if not re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", one)] == []


def _copy(name: str, to: Path) -> None:
    if (ROOT / name).is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
        shutil.copytree(ROOT / name, to / name, symlinks=True, ignore=ignored)
    else:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name)


def _sources(package: Path) -> set[Path]:
    found = (path.relative_to(package) for path in package.rglob("*") if path.is_file())
    return {path for path in found if path.suffix != ".pyc"}


def test_what_the_setup_asks_our_code_is_there_before_any_package_is() -> None:
    """`.ci/setup` runs before anything is installed, so `-S` hides what this machine has."""
    asked = re.findall(r"python -S -c '([^']+)'", (ROOT / ".ci/setup").read_text())
    assert asked
    for code in asked:
        subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, check=True, timeout=120)
