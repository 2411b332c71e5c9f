"""The client as a distribution of its own: built, installed, and used as its README says."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.programs import ROOT, messages, records, state_of
from tests.e2e.service_process import ServiceProcess

CLIENT = ROOT / "client"
MODULES = sorted((CLIENT / "tailrace_client").glob("*.py"))


def _run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that has the built wheel and nothing else."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(CLIENT, folder / "client", ignore=shutil.ignore_patterns("__pycache__"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    wheel = ("wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", folder / "dist")
    _run(*pip, *wheel, folder / "client", cwd=folder)
    _run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    (built,) = (folder / "dist").iterdir()
    _run(*pip, "--python", python, "install", "--no-index", built, cwd=folder)
    return python


@pytest.mark.in_turn(3)
def test_the_readmes_first_minute(installed: Path, service: ServiceProcess, tmp_path: Path) -> None:
    logs, runs = re.findall(r"```python\n(.*?)```", (CLIENT / "README.md").read_text(), re.DOTALL)
    for number, code in enumerate((logs, runs)):
        program = tmp_path / f"{number}.py"
        program.write_text(
            code.replace("http://127.0.0.1:8790", service.url).replace(
                "/var/tmp/shop-spool", str(tmp_path / "spool")
            )
        )
        output = _run(installed, "-I", program, cwd=tmp_path)
    assert messages(service.url, "run-1") == ["read 5000 rows"]
    assert state_of(service.url, "run-1") == ("closed", "success")
    assert messages(service.url, "run-2") == ["hello", "world", "slow"]
    assert records(service.url, "run-2")[2]["attributes"] == {"step": "load"}
    assert output.startswith("['hello', 'world', 'slow']\n")
    assert output.count("\n") == 4


def test_what_the_distribution_has(installed: Path, tmp_path: Path) -> None:
    code = (
        "import importlib.metadata as m, tailrace_client as c;"
        "d = m.distribution('tailrace-client');"
        "print(c.__version__ == d.version, d.requires, *sorted(str(f) for f in d.files))"
    )
    output = _run(installed, "-I", "-c", code, cwd=tmp_path)
    assert output.startswith("True None ")
    assert "tailrace_client/py.typed" in output
    assert "licenses/LICENSE" in output
    assert (CLIENT / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_needs_the_standard_library_of_python_3_9_alone(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add((node.module or "").partition(".")[0])
    assert names <= sys.stdlib_module_names | {"tailrace_client"}
    assert "tomllib" not in names


def test_every_public_name_is_documented() -> None:
    import tailrace_client

    page = (ROOT / "docs" / "use" / "client.md").read_text()
    from tailrace_client.buffer import Options

    assert [name for name in Options._fields if f"`{name}`" not in page] == []
    assert [
        name for name in tailrace_client.__all__ if not getattr(tailrace_client, name).__doc__
    ] == []
