"""Tailrace as its wheels install it: imports, the command, and folders of the user's own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from tailrace.logstore.java import install_command
from tests.e2e.service_process import BASE, ServiceProcess

ROOT = Path(__file__).parents[2]
THEIRS = ("service", "compactor", "tailrace_client", "tests")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of both wheels, which `PYTHONPATH` puts before the checkout."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, ROOT / "client"):
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
                *("--no-build-isolation", "--wheel-dir", str(folder), str(source)),
            ],
            check=True,
            timeout=120,
        )
    target = folder / "site"
    for wheel in folder.glob("*.whl"):
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
    assert (installed / "tailrace_client" / "py.typed").exists()
    page = {path.name for path in (ROOT / "service" / "page").iterdir() if path.is_file()}
    assert {name for name in page if not (installed / "service" / "page" / name).exists()} == set()


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("lib/python3.12/site-packages/tailrace/logstore/java.py", "pip install 'tailrace[spark]'"),
        ("uv/tools/tailrace/lib/tailrace/logstore/java.py", "uv tool install 'tailrace[spark]'"),
    ],
)
def test_a_hint_names_the_command_of_the_installation(
    tmp_path: Path, path: str, command: str
) -> None:
    assert install_command(str(tmp_path / path)) == command
    (tmp_path / "checkout" / ".ci").mkdir(parents=True)
    (tmp_path / "checkout" / ".ci" / "setup").touch()
    assert install_command(str(tmp_path / "checkout/tailrace/logstore/java.py")) == "make setup"
