"""The project's YAML files: a workflow that is not valid YAML never runs, and nothing says so."""

import subprocess

import pytest
import yaml
from deploy_files import ComposeLoader
from paths import ROOT

FILES = subprocess.run(
    ["git", "ls-files", "*.yml", "*.yaml"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()


@pytest.mark.parametrize("file", [file for file in FILES if not file.startswith("tests/")])
def test_a_yaml_file_is_valid(file):
    assert isinstance(yaml.load((ROOT / file).read_text(), Loader=ComposeLoader), dict | list)


def test_workflows_start_and_run_something():
    workflows = [yaml.safe_load((ROOT / file).read_text()) for file in FILES if "workflows/" in file]
    commands = [
        step.get("run", "") for workflow in workflows for job in workflow["jobs"].values() for step in job["steps"]
    ]
    assert len(workflows) == 2 and {".ci/run", "make test-all"} <= set(commands)
