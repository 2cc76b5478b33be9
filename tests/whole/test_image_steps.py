"""The Dockerfile's steps that install Lathe, run in a fresh virtual environment instead of an image. Nothing is downloaded."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from deploy_files import stages
from paths import ROOT

_VENV = "-m venv /opt/lathe"


@pytest.mark.nightly
@pytest.mark.parametrize("image", ["web", "worker"])
def test_the_steps_of_an_image_install_lathe(tmp_path: Path, image: str) -> None:
    pytest.importorskip("hatchling", reason="hatchling, which builds the package, is not installed")
    source, installed = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    for instruction, rest in stages()[image].instructions:
        if instruction == "COPY":
            copy_files(rest, source)
        elif instruction == "RUN" and "apt-get" not in rest and "useradd" not in rest:
            for step in rest.split(" && "):
                run(step.strip(), source, installed)
    assert not source.exists()
    done = subprocess.run([installed / "bin" / "lathe", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("lathe")


def copy_files(rest: str, source: Path) -> None:
    """A COPY instruction: of the checkout, or of the stage `source`, which has its folders."""
    names = rest.split()[:-1]
    if names[0].startswith("--from="):
        assert names == ["--from=source", "/"]
        names = [name for line in stages()["source"].all("COPY") for name in line.split()[:-1]]
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, dirs_exist_ok=True)
        else:
            shutil.copy(ROOT / name, source)


def run(step: str, source: Path, installed: Path) -> None:
    """A command of a RUN instruction. The environment borrows the tests' packages, which must be what pip would install."""
    creates = step.endswith(_VENV)
    if creates:
        step = f"{sys.executable} {_VENV}"
    command = step.replace("/opt/lathe", str(installed)).replace("/src", str(source))
    # pip's way to say that the build uses the environment's packages.
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "false", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    folder = source if source.exists() else source.parent
    done = subprocess.run(
        ["sh", "-ec", command], cwd=folder, env=os.environ | offline, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"
    if creates:
        packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(installed)}))
        for old in packages.glob("setuptools*"):  # Python 3.12, which the images have, brings none along
            shutil.rmtree(old)
        borrowed = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        (packages / "dependencies.pth").write_text("\n".join(borrowed) + "\n")
