"""Modules and files named in commands, documents, docstrings and comments exist; imports do not check these."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from paths import ROOT

CODE = ["app", "worker", "training", "benchmarks", "tests", "migrations"]
TEXTS = ["*.md", "docs/*.md", "*.yml", "Dockerfile", "Makefile", "pyproject.toml"]
PACKAGES = "app|worker|training|benchmarks"
WORTH_PARSING = re.compile(rf"-[mA]\b|[\"'](?:{PACKAGES})\.[a-z_]")  # parsing all files takes seconds
MODULE = re.compile(rf"(?:{PACKAGES})(?:\.[a-z_]+)+(?::[a-z_]+)?")  # as a whole string: "worker.settings"
NOT_MODULES = re.compile(r"no_such|\.(?:py|log)$|_$")
COMMAND = re.compile(rf"(?:-m|-A) \"?((?:{PACKAGES})(?:\.[a-z_]+)+)")  # in a sentence: python -m worker.settings
PATH = re.compile(rf"(?<![\w./{{-])((?:{PACKAGES}|tests|static|migrations|docs)/[\w./-]+\.(?:py|js|css|md|json))\b")


def source_files() -> list[Path]:
    return sorted(file for folder in CODE for file in (ROOT / folder).rglob("*.py"))


def text_files() -> list[Path]:
    return sorted(file for pattern in TEXTS for file in ROOT.glob(pattern))


def strings(file: Path) -> Iterator[str]:
    source = file.read_text()
    for node in ast.walk(ast.parse(source)) if WORTH_PARSING.search(source) else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def named_modules() -> dict[str, str]:
    """Returns each module named in a text, with a file that names it."""
    named = {}
    for file in source_files():
        for text in strings(file):
            is_module = (
                MODULE.fullmatch(text) and "foreign" not in file.parts
            )  # there it may be a key: training.use_peft
            result = [text] if is_module else COMMAND.findall(text)
            named |= dict.fromkeys(result, str(file.relative_to(ROOT)))
    for file in text_files():
        text = file.read_text()
        named |= dict.fromkeys(
            COMMAND.findall(text) + re.findall(rf'"((?:{PACKAGES})(?:\.\w+)+:\w+)"', text), file.name
        )
    return {name: where for name, where in named.items() if not NOT_MODULES.search(name)}


def exists(name: str) -> bool:
    """True for a package or module, and for a function, class or variable of a module."""
    module, _, attribute = name.partition(":")
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:length])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                names = [*parts[length:], *filter(None, attribute.split("."))]
                return all(re.search(rf"\b{part}\b", file.read_text()) for part in names)
    return False


def test_every_module_named_in_a_command_exists():
    assert not {name: where for name, where in named_modules().items() if not exists(name)}


def test_every_path_named_in_a_document_or_docstring_exists():
    named = {(path, file.name) for file in source_files() + text_files() for path in PATH.findall(file.read_text())}
    assert not [
        f"{path} in {where}" for path, where in sorted(named) if not (ROOT / path).exists() and "NAME" not in path
    ]


def test_a_name_of_a_file_is_used_at_most_three_times() -> None:
    files = (path for folder in ("app", "worker", "training") for path in (ROOT / folder).rglob("*.py"))
    counts = Counter(path.name for path in files if path.stem not in ("__init__", "__main__", "page", "view"))
    assert {name: count for name, count in counts.items() if count > 3} == {}
