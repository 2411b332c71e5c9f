"""Tailrace as its wheels install it: imports, the command, and folders of the user's own."""

from __future__ import annotations

import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import httpx
import pytest

from tailrace.logstore.java import install_command
from tests.e2e.service_process import BASE, ServiceProcess
from tests.install.environments import REPOSITORY, CleanEnvironment, build_release, pip_install

ROOT = Path(__file__).parents[2]
THEIRS = ("service", "compactor", "tailrace_client", "tests")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a release publishes: three source distributions and their wheels."""
    return build_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """A folder with the contents of all wheels, which `PYTHONPATH` puts before the checkout."""
    target = built / "site"
    for wheel in built.glob("*.whl"):
        with zipfile.ZipFile(wheel) as files:
            files.extractall(target)
    return target


@pytest.fixture
def strangers(tmp_path: Path) -> Path:
    """A working directory with folders that have the names of our packages."""
    for name in THEIRS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not ours')\n")
    return tmp_path


@pytest.mark.in_turn(2)
def test_a_wheel_serves_in_a_folder_that_has_packages_of_the_same_names(
    installed: Path, strangers: Path, tmp_path: Path
) -> None:
    """With two workers: they are processes of their own, and a regular expression has one more."""
    service = ServiceProcess(
        tmp_path / "data", PYTHONPATH=str(installed), TAILRACE_SERVER__WORKERS="2"
    )
    service.within = ("env", "-C", str(strangers))
    service.start()
    try:
        run = f"{service.url}{BASE}/shop.load/run-1"
        text = {"content-type": "text/plain"}
        posted = httpx.post(run, content=b"first\nsecond\n", headers=text, timeout=60)
        assert posted.status_code == 200, posted.text
        search = httpx.get(f"{service.url}/query", params={"q": "/s.cond/"}, timeout=60)
        assert '"message":"second"' in search.text.splitlines()[0], search.text
        assert httpx.get(f"{service.url}/", timeout=60).status_code == 200, "the page is missing"
    finally:
        service.stop()


def test_a_wheel_has_its_version_its_types_and_all_files_that_it_reads(installed: Path) -> None:
    code = {
        path.relative_to(ROOT)
        for name in ("service", "compactor", "tailrace")
        for path in (ROOT / name).rglob("*.py")
    }
    assert {path for path in code if not (installed / path).exists()} == set()
    assert (installed / "tailrace" / "py.typed").exists()
    for name in ("service", "compactor", "tailrace_client"):
        assert (installed / name / "py.typed").exists()
    page = {path.name for path in (ROOT / "service" / "page").iterdir() if path.is_file()}
    assert {name for name in page if not (installed / "service" / "page" / name).exists()} == set()


def test_no_file_is_in_two_wheels(built: Path) -> None:
    """Else pip would remove it with one distribution from below the other."""
    names = [name for wheel in built.glob("*.whl") for name in zipfile.ZipFile(wheel).namelist()]
    assert len(names) == len(set(names)) > 300


def test_a_source_distribution_has_what_is_built_from_it_and_nothing_else(built: Path) -> None:
    """Each wheel was made from it, so nothing is missing."""
    project = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    packages = {*THEIRS[:3], "tailrace"}
    archives = sorted(built.glob("*.tar.gz"))
    assert len(archives) == 3
    for archive in archives:
        with tarfile.open(archive) as files:
            names = [Path(member.name).parts for member in files if member.isfile()]
        tops = {parts[1] for parts in names if not parts[1].endswith(".egg-info")}
        assert tops - packages <= {*project, "setup.py"}
        assert [parts for parts in names if "__pycache__" in parts or "tests" in parts] == []


def test_what_an_index_shows_leads_to_the_repository(built: Path) -> None:
    for wheel in built.glob("*.whl"):
        with zipfile.ZipFile(wheel) as files:
            (name,) = [one for one in files.namelist() if one.endswith(".dist-info/METADATA")]
            metadata = files.read(name).decode()
        assert f"Project-URL: Source, {REPOSITORY}\n" in metadata
        links = re.findall(r"\]\(([^)]+)\)", metadata)
        assert len(links) > 0
        assert [one for one in links if not one.startswith((REPOSITORY, "http"))] == []
        for link in links:
            _, here, path = link.partition("/v0.1.0/")
            assert not here or (ROOT / path.partition("#")[0]).exists(), link
        assert " @ file:" not in metadata


@pytest.mark.in_turn(2)
def test_pip_takes_the_parts_of_a_clone_from_its_folders(tmp_path: Path) -> None:
    """The other requirements are installed here, and no index is asked for anything."""
    report = tmp_path / "report.json"
    options = ["--dry-run", "--no-index", "--no-build-isolation", "--quiet", "--report"]
    pip_install(sys.executable, *options, str(report), str(ROOT))
    taken = json.loads(report.read_text())["install"]
    assert {one["metadata"]["name"]: one["download_info"]["url"] for one in taken} == {
        "tailrace": ROOT.as_uri(),
        "tailrace-forwarder": (ROOT / "forwarder").as_uri(),
        "tailrace-client": (ROOT / "client").as_uri(),
    }


@pytest.mark.in_turn(6)
def test_pip_installs_the_forwarder_alone_in_less_than_60_mb(
    built: Path, installed: Path, tmp_path: Path
) -> None:
    environment = CleanEnvironment(tmp_path / "venv", sys.executable)
    locked = re.findall(r"^\S+==\S+", (ROOT / "requirements" / "run.txt").read_text(), re.MULTILINE)
    versions = tmp_path / "versions.txt"
    versions.write_text("\n".join(locked))
    environment.install(built, "tailrace-forwarder", "--constraint", str(versions))
    assert environment.added_bytes < 60_000_000
    service = ServiceProcess(tmp_path / "data", PYTHONPATH=str(installed))
    service.start()
    try:
        named = ("--url", service.url)
        output = ("sh", "-c", "echo first; echo second")
        environment.tailrace("run", *named, "--fqn", "shop.load", "--run", "r-1", "--", *output)
        tailed = environment.tailrace("tail", *named, "--no-follow", "shop.load", "r-1")
        assert tailed.stdout.splitlines()[:2] == ["first", "second"]
        found = environment.tailrace("query", *named, "second")
        assert "second" in found.stdout
    finally:
        service.stop()
    refused = environment.tailrace("serve", status=1)
    assert refused.stderr.splitlines() == [
        "error: `tailrace serve` is not part of tailrace-forwarder, which is installed alone",
        "hint: Run `uv pip install tailrace`.",  # the environment has no pip of its own
    ]


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("lib/python3.12/site-packages", "pip install {}"),
        ("uv/tools/tailrace/lib/python3.12/site-packages", "uv tool install {}"),
        ("uv/archive-v0/Xy/lib/python3.12/site-packages", "uvx --from {} tailrace"),
        ("pipx/venvs/tailrace/lib/python3.12/site-packages", "pipx install --force {}"),
    ],
)
def test_a_hint_names_the_command_of_the_installation(
    tmp_path: Path, path: str, command: str
) -> None:
    package = str(tmp_path / path / "tailrace/logstore/java.py")
    assert install_command(package=package) == command.format("'tailrace[spark]'")
    assert install_command("tailrace", package=package) == command.format("tailrace")
    (tmp_path / "checkout" / ".ci").mkdir(parents=True)
    (tmp_path / "checkout" / ".ci" / "setup").touch()
    package = str(tmp_path / "checkout/tailrace/logstore/java.py")
    assert install_command(package=package) == "make setup"
