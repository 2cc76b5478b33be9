"""A choice is declared once: no list repeats the values of an enum, and a table of what each of them needs has all of them."""

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path

import pytest
from paths import ROOT

from training.config import choices as settings
from training.config.optimizer_name import OptimizerName
from training.config.task import TASKS, Task
from worker import choices as stored

TOTAL = (
    OptimizerName,
    Task,
    settings.Wanted,
    stored.Event,
    stored.Freeable,
    stored.Priority,
    stored.SearchMethod,
    stored.WebhookFormat,
)
"""Enums of which every table has a row for each member."""


def enums() -> set[type[StrEnum]]:
    members = [member for module in (settings, stored) for _, member in inspect.getmembers(module, inspect.isclass)]
    return {member for member in members if issubclass(member, StrEnum) and len(member) > 2} | {OptimizerName, Task}


@cache
def trees() -> dict[Path, ast.Module]:
    files = [path for package in ("app", "worker", "training") for path in (ROOT / package).rglob("*.py")]
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in files}


def repeated(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The literals that have at least three texts, half of the values of an enum, and nothing else: line and enum."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
            items = node.keys if isinstance(node, ast.Dict) else node.elts
            texts = {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}
            for enum in enums():
                if len(texts) > 2 and texts <= set(enum) and len(texts) * 2 >= len(enum):
                    yield node.lineno, enum.__name__


def test_no_literal_repeats_the_values_of_an_enum() -> None:
    assert len(enums()) > 15
    ours = {path: tree for path, tree in trees().items() if "foreign" not in path.parts}  # names of other programs
    copies = {str(path): found for path, tree in ours.items() if (found := [*repeated(tree)])}
    assert copies == {}


def test_a_literal_that_repeats_them_is_noticed() -> None:
    [(line, name)] = repeated(ast.parse('\nEVENTS = ("finished", "failed", "test")'))
    assert (line, name) == (2, "Event")


def tables(enum: type[StrEnum]) -> Iterator[tuple[str, set[str]]]:
    """The tables of modules whose keys are members of the enum, by name, with the names of their members."""
    for path, tree in trees().items():
        for node in tree.body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if isinstance(value, ast.Dict) and value.keys:
                keys = [key for key in value.keys if isinstance(key, ast.Attribute) and isinstance(key.value, ast.Name)]
                if len(keys) == len(value.keys) and {key.value.id for key in keys} == {enum.__name__}:
                    yield f"{path}:{node.lineno}", {key.attr for key in keys}


@pytest.mark.parametrize("enum", TOTAL)
def test_each_table_of_a_choice_has_all_of_its_members(enum: type[StrEnum]) -> None:
    missing = {name: set(enum.__members__) - members for name, members in tables(enum)}
    assert not any(missing.values()), missing


def test_the_tables_are_looked_for() -> None:
    assert {enum.__name__ for enum in TOTAL if any(tables(enum))} == {enum.__name__ for enum in TOTAL}


def test_few_files_name_a_task() -> None:
    """What differs between tasks is asked of their row; a file that names one is a place to look for with each new task."""
    naming = {str(path) for path, tree in trees().items() for node in ast.walk(tree) if _names_task(node)}
    assert "training/config/task.py" in naming
    assert len(naming) <= 15, sorted(naming)


def _names_task(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Task"
        and node.attr in Task.__members__
    )


def test_each_trait_of_a_task_tells_tasks_apart() -> None:
    rows = [TASKS[task] for task in Task]
    for field in dataclasses.fields(rows[0]):
        assert len({getattr(row, field.name) for row in rows}) > 1, field.name
