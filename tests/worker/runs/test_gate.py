"""Nothing is queued or served whose configuration has not passed the gate."""

import ast
from pathlib import Path

import pytest
from paths import ROOT

from training.config.run_config import RunConfig
from worker.runs.submit import Prepared

# What lets a configuration in: of the store, by module and function.
ENTRANCES = {
    ("runs", "create"), ("runs", "resume"), ("evaluations", "create"), ("builds", "create"),
    ("served_models", "create"), ("served_models", "_added"), ("submit", "stored"),
}  # fmt: skip
# Each function that calls one, and the check that it makes, or the value that only the check makes.
CALLERS = {
    ("worker/runs/submit.py", "stored"): "Prepared",
    ("worker/runs/requests.py", "resume"): "admitted",
    ("worker/runs/submit.py", "_create"): "Prepared",
    ("worker/sweeps/lifecycle.py", "_store"): "Prepared",
    ("worker/evaluations/submit.py", "submit"): "admitted",
    ("worker/builds.py", "submit"): "admitted",
    ("worker/serving/requests.py", "ask"): "_admit",
    ("worker/store/served_models.py", "create"): "quotas",  # its callers are above
    ("worker/store/served_models.py", "loaded"): "served",  # a model that `ask` has admitted
}


def callers(file):
    """The functions of a file that call an entrance, with the names that they mention."""
    for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef):
            nodes = [*ast.walk(function)]
            called = {node.func for node in nodes if isinstance(node, ast.Call)}
            names = {(ast.unparse(one.value), one.attr) for one in called if isinstance(one, ast.Attribute)}
            names |= {(file.stem, one.id) for one in called if isinstance(one, ast.Name)}
            if names & ENTRANCES:
                yield function.name, {node.id for node in nodes if isinstance(node, ast.Name)}


@pytest.mark.slow
def test_the_store_is_entered_only_by_functions_that_check_first():
    entered = {
        (file.relative_to(ROOT).as_posix(), name): mentioned
        for package in ("app", "worker", "training")
        for file in Path(ROOT, package).rglob("*.py")
        for name, mentioned in callers(file)
    }
    assert entered.keys() == CALLERS.keys()
    assert all(CALLERS[caller] in mentioned for caller, mentioned in entered.items())


def test_a_run_that_may_be_stored_is_made_by_the_check_alone():
    with pytest.raises(TypeError, match="Only prepared"):
        Prepared(RunConfig(model="m", data="d"), data=None, owner="alice", gate=None)
