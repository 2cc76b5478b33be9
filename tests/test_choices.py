"""A choice is declared once: no list repeats the values of an enum, and a table of what each of them needs has all of them.

Enums and tables are found by reading the code. A table with rows for some members only says so where it stands
(training/tables.py), and none is looked up with a default.
"""

import ast
import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from paths import ROOT

from training.config.choices import EngineName
from training.config.task import TASKS, Task
from worker.engine_traits import ENGINES
from worker.engines.registry import _ALL

Trees = Mapping[Path, ast.Module]
PARTIAL = ("only", "Otherwise")


class Enum(NamedTuple):
    file: Path
    name: str
    members: frozenset[str]
    values: frozenset[str]


class Table(NamedTuple):
    place: str
    name: str
    """That of its constant; empty for one within an expression."""
    enum: Enum
    members: frozenset[str]
    partial: bool


@cache
def trees() -> Trees:
    files = [path for package in ("app", "worker", "training") for path in (ROOT / package).rglob("*.py")]
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in files}


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    return [*ast.walk(tree)]


def enums(code: Trees) -> Iterator[Enum]:
    for path, tree in code.items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in ("Enum", "StrEnum") for base in node.bases):
                given = {each.targets[0].id: each.value for each in node.body if isinstance(each, ast.Assign)}
                values = {getattr(value, "value", name.lower()) for name, value in given.items()}
                yield Enum(path, node.name, frozenset(given), frozenset(values))


def named(path: Path, tree: ast.Module, known: Mapping[str, list[Enum]]) -> dict[str, Enum]:
    """The enums that a file defines or imports, by the names that it has for them."""
    found = {each.name: each for group in known.values() for each in group if each.file == path}
    for node in nodes(tree):
        for name in node.names if isinstance(node, ast.ImportFrom) else []:
            folder = Path(*(node.module or "").split("."))
            group = known.get(name.name, [])
            own = [each for each in group if each.file in (folder.with_suffix(".py"), folder / "__init__.py")]
            if own or len(group) == 1:  # a package passes on the enum of a file of its own
                found[name.asname or name.name] = (own or group)[0]
    return found


def tables(code: Trees) -> Iterator[Table]:
    """The dictionaries whose keys are members of one enum."""
    known: dict[str, list[Enum]] = {}
    for enum in enums(code):
        known.setdefault(enum.name, []).append(enum)
    for path, tree in code.items():
        local = named(path, tree, known)
        found = [node for node in nodes(tree) if isinstance(node, ast.Dict) and (_owner(node) in local)]
        parents = {child: node for node in nodes(tree) for child in ast.iter_child_nodes(node)} if found else {}
        for node in found:
            members = frozenset(key.attr for key in node.keys if isinstance(key, ast.Attribute))
            place, enum = f"{path}:{node.lineno}", local[_owner(node)]
            yield Table(place, _name(node, parents), enum, members, _partial(node, parents))


def _owner(node: ast.Dict) -> str:
    """The class whose attributes all keys are; empty if there is none."""
    owners = {
        key.value.id if isinstance(key, ast.Attribute) and isinstance(key.value, ast.Name) else "" for key in node.keys
    }
    return owners.pop() if len(owners) == 1 else ""


def _partial(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """True if the table says so, or changes some rows of one that is made for all members."""
    parent = parents[node]
    if isinstance(parent, ast.Call):
        return isinstance(parent.func, ast.Name) and parent.func.id in PARTIAL
    return isinstance(parent, ast.BinOp) and isinstance(parent.left, ast.DictComp)


def _name(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> str:
    parent = parents[node]
    while isinstance(parent, ast.Call | ast.BinOp):
        parent = parents[parent]
    target = parent.targets[0] if isinstance(parent, ast.Assign) else getattr(parent, "target", None)
    return target.id if isinstance(target, ast.Name) else ""


def incomplete(code: Trees) -> dict[str, set[str]]:
    """The tables that lack members and do not say so: their places and what they lack."""
    return {
        table.place: set(table.enum.members - table.members)
        for table in tables(code)
        if not table.partial and table.members < table.enum.members
    }


def defaulted(code: Trees) -> list[str]:
    """The lookups with a default in a table of an enum: their places."""
    found = [*tables(code)]
    names, places = {table.name for table in found} - {""}, {table.place for table in found}
    lookups = [
        (f"{path}:{node.lineno}", node.func.value)
        for path, tree in code.items()
        for node in nodes(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get"
    ]
    return [
        place
        for place, looked_up in lookups
        if getattr(looked_up, "id", getattr(looked_up, "attr", "")) in names
        or (isinstance(looked_up, ast.Dict) and f"{place.partition(':')[0]}:{looked_up.lineno}" in places)
        or (isinstance(looked_up, ast.Call) and getattr(looked_up.func, "id", "") in PARTIAL)
    ]


def copies(code: Trees) -> list[tuple[str, str]]:
    """The literals with three values of an enum or more, and few other texts: place and enum.

    The values of other programs are their own (training/foreign/).
    """
    declared = [enum for enum in enums(code) if len(enum.members) > 2]
    literals = [
        (f"{path}:{node.lineno}", texts)
        for path, tree in code.items()
        for node in nodes(tree)
        if "foreign" not in path.parts and isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict)
        if len(texts := _texts(node)) > 2
    ]
    return [
        (place, enum.name)
        for place, texts in literals
        for enum in declared
        if len(same := texts & enum.values) > 2 and 4 * len(same) > 3 * len(texts)
    ]


def _texts(node: ast.List | ast.Tuple | ast.Set | ast.Dict) -> set[str]:
    items = node.keys if isinstance(node, ast.Dict) else node.elts
    return {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}


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
    assert {table.enum.file.as_posix() for table in found if table.enum.name == "Kind"} == {"worker/disk/usage.py"}


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
    naming = {str(path) for path, tree in trees().items() for node in nodes(tree) if _names_task(node)}
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


def test_no_file_beside_the_engines_names_one() -> None:
    """What differs between engines is asked of their row or their class, so that another scheduler is a row and a package."""
    naming = {str(path) for path, tree in trees().items() for node in nodes(tree) if _names_engine(node)}
    others = {path for path in naming if not path.startswith("worker/engines/")}
    assert others == {"worker/engine_traits.py"}
    assert len(naming) > 2


def _names_engine(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "EngineName"
        and node.attr in {*EngineName.__members__} - {EngineName.AUTO.name}
    )


def test_each_engine_has_a_row_and_a_class() -> None:
    assert {*ENGINES} == {*_ALL} == {*EngineName} - {EngineName.AUTO}
