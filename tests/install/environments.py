"""What a release publishes, and clean environments into which pip installs it.

`python -m tests.install.environments` installs the wheels for each Python of this machine and
serves from them: `make wheels`.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from tests.e2e.service_process import BASE
from tests.servers.ports import free_port

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://forge.example/owner/tailrace"
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")


def build_release(folder: Path) -> Path:
    """Makes source distributions and wheels of a release 0.1.0 in a folder, and returns it."""
    named = {"REPOSITORY": REPOSITORY, "REF": "v0.1.0"}
    command = [str(ROOT / ".ci" / "dist"), str(folder)]
    done = subprocess.run(
        command, env=os.environ | named, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def pip_install(python: str, *words: str) -> None:
    """Has pip install something into the environment of an interpreter."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    pip += ["install", *words]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr


class CleanEnvironment:
    """A virtual environment with nothing in it; `added_bytes` is what was installed."""

    def __init__(self, folder: Path, python: str) -> None:
        self._folder = folder
        subprocess.run(
            [python, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=300
        )
        self._empty = _size(folder)

    @property
    def added_bytes(self) -> int:
        """What the environment's files have grown by, compiled modules included."""
        return _size(self._folder) - self._empty

    def install(self, built: Path, *words: str) -> None:
        """Installs what is named, out of `built` and the index."""
        pip_install(self.program("python"), "--quiet", "--find-links", str(built), *words)

    def program(self, name: str) -> str:
        """The path of a program of this environment."""
        return str(self._folder / "bin" / name)

    def tailrace(self, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs the command, without what the checkout would add to it."""
        done = subprocess.run(
            [self.program("tailrace"), *words],
            capture_output=True,
            text=True,
            cwd=self._folder,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            timeout=300,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done

    def serve_one_run(self) -> None:
        """Serves, takes a line and gives it back."""
        serve_one_run([self.program("tailrace")], self._folder)


def serve_one_run(tailrace: Sequence[str], folder: Path) -> None:
    """Has a command of ours serve in `folder`, take a line and give it back."""
    port = free_port()
    words = ["serve", "--port", str(port), "--data", str(folder / "data")]
    with subprocess.Popen([*tailrace, *words], cwd=folder) as service:
        try:
            run = f"http://127.0.0.1:{port}{BASE}/shop.load/run-1"
            wait_for(f"http://127.0.0.1:{port}/health/ready")
            text = {"content-type": "text/plain"}
            httpx.post(run, content=b"first\n", headers=text, timeout=60).raise_for_status()
            assert httpx.get(f"{run}/download", timeout=60).text == "first\n"
            found = httpx.get(f"http://127.0.0.1:{port}/query?q=first", timeout=60)
            assert '"message":"first"' in found.text, found.text
        finally:
            service.terminate()


def wait_for(url: str) -> None:
    """Waits until an address answers with success, three minutes at most."""
    end = time.monotonic() + 180
    while True:
        try:
            httpx.get(url, timeout=5).raise_for_status()
        except httpx.HTTPError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def pythons() -> Iterator[tuple[str, str | None]]:
    """Each supported version and an interpreter of it: on `PATH`, else one of pyenv's."""
    for version in SUPPORTED:
        found = glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python"))
        yield version, found[-1] if found else shutil.which(f"python{version}")


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> int:
    """Installs and serves for each Python here, says which are not, and serves by uvx."""
    with tempfile.TemporaryDirectory(prefix="tailrace-wheels-") as name:
        built = build_release(Path(name))
        for version, python in pythons():
            if python is None:
                print(f"{version}: not on this machine")
                continue
            environment, start = CleanEnvironment(Path(name, version), python), time.monotonic()
            environment.install(built, "tailrace")
            took = time.monotonic() - start
            environment.serve_one_run()
            print(f"{version}: {environment.added_bytes / 1e6:.0f} MB in {took:.0f} s, serves")
        program = str(Path(sys.executable).with_name("uvx"))
        uvx = ["env", "UV_SYSTEM_CERTS=true", program, "--python", sys.executable]
        start, theirs = time.monotonic(), Path(name, "uvx")
        (theirs / "service").mkdir(parents=True)  # a folder of a user's own
        serve_one_run([*uvx, "--find-links", name, "tailrace"], theirs)
        print(f"uvx: serves after {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
