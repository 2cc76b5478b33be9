"""A choice is declared once: no list repeats the values of an enum, and a table of what each of them needs has all of them.

Enums and tables are found by reading the code. A table with rows for some members only says so where it stands
(training/tables.py), and none is looked up with a default.
"""

import ast
import dataclasses
from pathlib import Path

import pytest

from app.format.evaluation_text import LABELS
from tools.house import copies, defaulted, enums, incomplete, naming_a_task, naming_an_engine, tables, trees
from training.config.choices import EngineName, Quantization
from training.config.task import TASKS, Task
from training.rewards.built_in import COMPARING, JUDGE, MODEL, REWARDS
from worker.engine_traits import ENGINES
from worker.engines.registry import engine
from worker.settings import ROOT


def test_no_literal_repeats_the_values_of_an_enum() -> None:
    assert copies(trees()) == []


def test_each_table_of_a_choice_has_all_of_its_members_or_says_that_it_is_partial() -> None:
    assert incomplete(trees()) == {}


def test_no_table_of_a_choice_is_looked_up_with_a_default() -> None:
    assert defaulted(trees()) == []


def test_enums_and_tables_are_found() -> None:
    assert len([*enums(trees())]) > 50
    found = [*tables(trees())]
    assert len(found) > 40
    assert {"TASKS", "OPTIMIZERS", "EXIT"} <= {table.name for table in found}


PLANTED = """
from enum import StrEnum

class Color(StrEnum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"
"""


@pytest.mark.parametrize(
    ("line", "reader"),
    [
        ("NAMES = {Color.RED: 1, Color.BLUE: 2}", incomplete),
        ("def of(color): return {Color.RED: 1}[color]", incomplete),
        ("NAMES = only({Color.RED: 1})\nNAMES.get(Color.RED)", defaulted),
        ("NAMES = {Color.RED: 1, Color.BLUE: 2, Color.GREEN: 3}\nNAMES.get(Color.RED, 4)", defaulted),
        ("def of(color): return {Color.RED: 1}.get(color)", defaulted),
        ("NAMES = ('red', 'blue', 'green')", copies),
        ("NAMES = {'red': 1, 'blue': 2, 'green': 3}", copies),
    ],
)
def test_what_repeats_forgets_or_guesses_is_noticed(line, reader) -> None:
    assert len(reader({Path("planted.py"): ast.parse(PLANTED + line)})) == 1
    whole = "NAMES = {Color.RED: 1, Color.GREEN: 2, Color.BLUE: 3}\nNAMES[Color.RED]\nSOME = only({Color.RED: 1})"
    assert not reader({Path("planted.py"): ast.parse(PLANTED + whole)})


def test_few_files_name_a_task() -> None:
    """What differs between tasks is asked of their row; a file that names one is a place to look for with each new task."""
    naming = naming_a_task(trees())
    assert "training/config/task.py" in naming
    assert len(naming) <= 15, sorted(naming)


def test_each_trait_of_a_task_tells_tasks_apart() -> None:
    rows = [TASKS[task] for task in Task]
    for field in dataclasses.fields(rows[0]):
        assert len({getattr(row, field.name) for row in rows}) > 1, field.name


def test_no_file_beside_the_engines_names_one() -> None:
    """What differs between engines is asked of their row or their class, so that another scheduler is a row and a package."""
    assert naming_an_engine(trees()) == {"worker/engine_traits.py"}


def test_each_engine_has_a_row_and_a_class() -> None:
    assert {*ENGINES} == {engine(name).name for name in ENGINES} == {*EngineName} - {EngineName.AUTO}


def test_each_built_in_reward_has_a_label_and_a_row_in_the_documents() -> None:
    documented = (ROOT / "docs" / "evaluation.md").read_text()
    named = [*REWARDS, JUDGE, MODEL]
    assert [name for name in named if name not in LABELS or f"| `{name}` |" not in documented] == []
    assert REWARDS.keys() >= COMPARING


def test_a_quantized_weight_has_its_bytes() -> None:
    sizes = {kind: kind.packed_bytes() for kind in Quantization if kind is not Quantization.NONE}
    assert all(0 < size < 2 for size in sizes.values())
    assert Quantization.NF4.packed_bytes(double=True) < sizes[Quantization.NF4]
