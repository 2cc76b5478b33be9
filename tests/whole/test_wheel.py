"""The wheel: its contents, and the quickstart with an installation from it outside a checkout."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import ROOT
from patience import ended, eventually

from worker.machine import processes

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: list[str] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
VERSION: str = PYPROJECT["project"]["version"]


@dataclass(frozen=True)
class Installation:
    """A virtual environment with the wheel, and a working folder outside a checkout."""

    environment: Path
    folder: Path

    @property
    def site_packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.environment)}))

    def command(self, name: str, *arguments: str) -> list[str]:
        return [str(self.environment / "bin" / name), *arguments]

    @property
    def variables(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LATHE_", "PYTHON"))}
        ours = {"LATHE_DATA_DIR": str(self.folder / "data"), "LATHE_PORT": "0", "LATHE_DEVICES": "cpu"}
        # Spinning threads make training many times slower if other tests use the same cores.
        return inherited | ours | {"OMP_WAIT_POLICY": "PASSIVE"}

    def run(self, name: str, *arguments: str) -> str:
        """Runs a program that must succeed, and returns its output."""
        done = subprocess.run(
            self.command(name, *arguments),
            env=self.variables,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def files(self) -> set[str]:
        """The files of the environment, without compiled modules."""
        return {str(path) for path in self.site_packages.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel in a separate environment. It uses the tests' dependencies, after its own packages on the path."""
    created = Installation(tmp_path_factory.mktemp("installed") / "venv", tmp_path_factory.mktemp("elsewhere"))
    venv.create(created.environment, symlinks=True, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(created.environment / "bin/python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", str(wheel)], check=True)
    borrowed = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (created.site_packages / "dependencies.pth").write_text("\n".join(borrowed) + "\n")
    return created


@contextlib.contextmanager
def up(installation: Installation) -> Iterator[str]:
    """A context that runs `lathe up` and ends it with Ctrl-C. Yields its address."""
    output = installation.folder / "up.txt"
    with output.open("wb") as file:
        started = subprocess.Popen(
            installation.command("lathe", "up"),
            env=installation.variables,
            cwd=installation.folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )

    def address() -> str | None:
        assert started.poll() is None, output.read_text()
        match = re.search(r"^Lathe is running at (\S+)$", output.read_text(), re.MULTILINE)
        return match[1] if match else None

    try:
        yield eventually(address)
        started.send_signal(signal.SIGINT)
        assert ended(started) == 0, output.read_text()
    finally:
        processes.kill_tree(started.pid)
        started.wait()


def fetch(address: str) -> bytes:
    with urllib.request.urlopen(address) as answer:
        return bytes(answer.read())


def test_the_wheel_contains_only_the_packages(wheel: Path) -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so the files that belong to the project are not known")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES]
    tracked = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert names == {name for name in tracked if (ROOT / name).exists()}


def test_the_wheel_has_name_version_and_license(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        information = f"lathe_workbench-{VERSION}.dist-info"
        metadata = Parser().parsestr(packed.read(f"{information}/METADATA").decode())
        text = packed.read(f"{information}/licenses/LICENSE").decode()
    assert (metadata["Name"], metadata["Version"]) == ("lathe-workbench", VERSION)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert text == (ROOT / "LICENSE").read_text() and "Apache License" in text


def test_changelog_and_citation_name_the_same_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d[^\]]*)\] - (\S+)$", changelog, re.MULTILINE)
    assert released[0] == (VERSION, str(citation["date-released"]))
    assert citation["version"] == VERSION


def test_every_package_comes_from_the_wheel(installation: Installation) -> None:
    code = (
        f"import importlib, json; print(json.dumps([list(importlib.import_module(n).__path__)[0] for n in {PACKAGES}]))"
    )
    data = json.loads(installation.run("python", "-c", code))
    assert [Path(path) for path in data] == [installation.site_packages / name for name in PACKAGES]
    assert installation.run("lathe", "--version") == f"lathe {VERSION}\n"


@pytest.mark.train
@pytest.mark.nightly
def test_the_quickstart_runs_outside_of_a_checkout_and_writes_nothing_into_the_installation(
    installation: Installation,
) -> None:
    before = installation.files()
    with up(installation) as address:
        assert b"<gradio-app" in fetch(f"{address}/")
        assert fetch(f"{address}/static/lathe/lathe.css") == (ROOT / "static/lathe.css").read_bytes()
        few = ["--max-steps", "4", "--answer-rows", "4"]
        run = json.loads(installation.run("lathe", "run", "static/starter/quickstart.yaml", *few, "--follow", "--json"))
        summary = json.loads(installation.run("lathe", "show", run["id"], "--json"))["summary"]
        assert (run["status"], run["summary"]) == ("finished", summary)
        assert summary["answers"]["rows"] == 4
        share = 100 * summary["trainable_parameters"] / summary["total_parameters"]
        assert summary["trainable_percent"] == pytest.approx(share)
        assert summary["adapter_bytes"] > 4 * summary["trainable_parameters"]
        assert all(len(summary["memory"][f"{moment}_bytes"]) == 1 for moment in ("before", "after", "peak"))
        assert min(summary["tokens_per_second"], summary["samples_per_second"], summary["final_loss"]) > 0
        assert summary["strategy"]["world_size"] == 1
        archive = installation.folder / "adapter.zip"
        installation.run("lathe", "export", run["id"], "-o", str(archive))
        assert archive.read_bytes() == fetch(f"{address}/api/runs/{run['id']}/adapter.zip")
    with zipfile.ZipFile(archive) as packed:
        files = {Path(name).name: name for name in packed.namelist()}
        assert {"adapter_config.json", "adapter_model.safetensors", "README.md"} <= files.keys()
        assert f"| lathe-workbench | {VERSION} |" in packed.read(files["README.md"]).decode()
    assert installation.files() == before
