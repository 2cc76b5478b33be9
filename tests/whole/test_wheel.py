"""The wheel: its contents, and the quickstart with an installation from it outside a checkout."""

import json
import re
import shutil
import subprocess
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
import yaml
from installed import Installation, fetch, up
from paths import ROOT

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: list[str] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
VERSION: str = PYPROJECT["project"]["version"]


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
        assert b"<gradio-app" in fetch(f"{address}/new")
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
