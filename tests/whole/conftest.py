"""An installation from the wheel, for the tests of a file."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from installed import Installation
from paths import ROOT


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
