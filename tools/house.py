"""`python -m tools.house`: counts what makes a change touch more places than it should, by reading the code.

tests/test_choices.py and tests/test_house.py hold each count; `--places` lists where they are. With `--parts`, the parts that
can be taken away by deleting their files.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from enum import StrEnum
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from training.config.choices import EngineName
from training.config.task import Task
from worker.settings import ROOT

Trees = Mapping[Path, ast.Module]
PARTS = {
    "backups": ("worker.backups",),
    "configurations of other programs": ("training.foreign",),
    "GGUF": ("training.results.gguf",),
    "playground": ("worker.serving", "training.serving"),
    "Slurm": ("worker.engines.slurm", "worker.engines.job_side"),
    "sweeps": ("worker.sweeps",),
}
"""The packages of what an installation can do without (training/parts.py)."""
PARTIAL = ("only", "Otherwise")


class DeclaredEnum(NamedTuple):
    file: Path
    name: str
    members: frozenset[str]
    values: frozenset[str]


class Table(NamedTuple):
    place: str
    name: str
    """That of its constant; empty for one within an expression."""
    enum: DeclaredEnum
    members: frozenset[str]
    partial: bool


@cache
def trees() -> Trees:
    files = [path for package in ("app", "worker", "training") for path in (ROOT / package).rglob("*.py")]
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in files}


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    return [*ast.walk(tree)]


def imported_names(tree: ast.Module) -> Iterator[tuple[str, ast.alias]]:
    """Each `from MODULE import NAME` of a file, in functions too."""
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, name) for name in node.names)


def enums(code: Trees) -> Iterator[DeclaredEnum]:
    for path, tree in code.items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in ("Enum", "StrEnum") for base in node.bases):
                given = {ast.unparse(each.targets[0]): each.value for each in node.body if isinstance(each, ast.Assign)}
                values = {getattr(value, "value", name.lower()) for name, value in given.items()}
                yield DeclaredEnum(path, node.name, frozenset(given), frozenset(values))


def named(path: Path, tree: ast.Module, known: Mapping[str, list[DeclaredEnum]]) -> dict[str, DeclaredEnum]:
    """The enums that a file defines or imports, by the names that it has for them."""
    found = {each.name: each for group in known.values() for each in group if each.file == path}
    for source, name in imported_names(tree):
        folder = Path(*source.split("."))
        group = known.get(name.name, [])
        own = [each for each in group if each.file in (folder.with_suffix(".py"), folder / "__init__.py")]
        if own or len(group) == 1:  # a package passes on the enum of a file of its own
            found[name.asname or name.name] = (own or group)[0]
    return found


def tables(code: Trees) -> Iterator[Table]:
    """The dictionaries whose keys are members of one enum."""
    known: dict[str, list[DeclaredEnum]] = {}
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


def naming(code: Trees, enum: type[StrEnum], members: Set[str]) -> set[str]:
    """The files that name one of these members."""
    return {str(path) for path, tree in code.items() for node in nodes(tree) if _is_member(node, enum, members)}


def _is_member(node: ast.AST, enum: type[StrEnum], members: Set[str]) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == enum.__name__
        and node.attr in members
    )


def naming_a_task(code: Trees) -> set[str]:
    return naming(code, Task, Task.__members__.keys())


def naming_an_engine(code: Trees) -> set[str]:
    """The files outside of the engines that name one; `auto` is none."""
    found = naming(code, EngineName, EngineName.__members__.keys() - {EngineName.AUTO.name})
    return {path for path in found if not path.startswith("worker/engines/")}


def recurring(code: Trees) -> dict[str, list[str]]:
    """The public classes of a name that another class of the same folder of three has: their files."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in code.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[f"{path.parts[0]}: {node.name}"].append(str(path))
    return {name: files for name, files in found.items() if len(files) > 1}


def shadowing(code: Trees) -> list[str]:
    """The functions with a parameter or a variable that has the name of something that their file imports."""
    found = []
    for path, tree in code.items():
        own = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        imported = {(name.asname or name.name).partition(".")[0] for node in own for name in node.names} - {"_"}
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (same := _bound(node) & imported):
                found.append(f"{path}:{node.lineno} {', '.join(sorted(same))}")
    return found


def _bound(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    inside = [*ast.walk(function)]
    names = {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {node.arg for node in inside if isinstance(node, ast.arg)}


def aliases(code: Trees) -> dict[str, list[str]]:
    """The modules that are imported under two names besides their own."""
    files = {module(path) for path in code}
    found: dict[str, set[str]] = defaultdict(set)
    for tree in code.values():
        for source, name in imported_names(tree):
            if name.asname and f"{source}.{name.name}" in files:
                found[f"{source}.{name.name}"].add(name.asname)
    return {name: sorted(used) for name, used in found.items() if len(used) > 1}


def module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def circles(code: Trees) -> list[list[str]]:
    """The files that import each other, for types too; each circle once, those behind it after it is opened."""
    known = {module(path): tree for path, tree in code.items()}
    imports = {
        name: {found for node in nodes(tree) for found in _imported(node, known)} for name, tree in known.items()
    }
    found: list[list[str]] = []
    while True:
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            circle = [str(name) for name in error.args[1]][::-1]
            found.append(circle)
            imports[circle[0]].discard(circle[1])
        else:
            return found


def _imported(node: ast.AST, known: Mapping[str, ast.Module]) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module:
        for name in node.names:
            whole = f"{node.module}.{name.name}"
            yield from (found for found in (whole if whole in known else node.module,) if found in known)
    elif isinstance(node, ast.Import):
        yield from (name.name for name in node.names if name.name in known)


def files_of(part: str, code: Trees) -> set[Path]:
    """The files to delete with a part: its packages, and all that imports them."""
    known = {module(path): tree for path, tree in code.items()}
    importers: dict[str, set[str]] = defaultdict(set)
    for name, tree in known.items():
        for node in nodes(tree):
            for imported in _imported(node, known):
                importers[imported].add(name)
    todo = [name for name in known if f"{name}.".startswith(tuple(f"{package}." for package in PARTS[part]))]
    own: set[str] = set()
    while todo:
        name = todo.pop()
        own.add(name)
        todo += importers[name] - own
    return {path for path in code if module(path) in own}


def _print_parts(code: Trees) -> None:
    lines = {path: len((ROOT / path).read_text().splitlines()) for path in code}
    of_parts = {part: files_of(part, code) for part in PARTS}
    for part, files in of_parts.items():
        print(f"{len(files):>5} files  {sum(map(lines.__getitem__, files)):>7,} lines  {part}")
        for path in sorted(files) if "--places" in sys.argv else ():
            print(f"         {path}")
    core = code.keys() - set().union(*of_parts.values())
    print(f"{len(core):>5} files  {sum(map(lines.__getitem__, core)):>7,} lines  the rest")


def counts(code: Trees) -> dict[str, list[str]]:
    """What is counted, and where it is."""
    return {
        "circles of imports, also for types": [" -> ".join(circle) for circle in circles(code)],
        "class names that recur within app, worker or training": [
            f"{name} ({', '.join(files)})" for name, files in sorted(recurring(code).items())
        ],
        "modules imported under two aliases": [f"{name}: {', '.join(used)}" for name, used in aliases(code).items()],
        "functions that shadow an imported name": shadowing(code),
        "files that name a task": sorted(naming_a_task(code)),
        "files outside of the engines that name one": sorted(naming_an_engine(code)),
        "literals that copy an enum": [f"{place} {enum}" for place, enum in copies(code)],
        "tables of an enum that lack members": [f"{place}: {missing}" for place, missing in incomplete(code).items()],
        "tables of an enum looked up with a default": defaulted(code),
    }


def main() -> None:
    if "--parts" in sys.argv:
        _print_parts(trees())
        return
    for name, places in counts(trees()).items():
        print(f"{len(places):>5}  {name}")
        for place in places if "--places" in sys.argv else ():
            print(f"         {place}")


if __name__ == "__main__":
    main()
