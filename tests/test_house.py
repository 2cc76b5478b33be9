"""The counts of `python -m tools.house` that tests/test_choices.py does not hold."""

import ast
from pathlib import Path

from tools.house import aliases, circles, recurring, shadowing, trees

SHADOWING = 12
"""Where the name of a parameter is that of a setting, an option or a library, or no other says it as well."""


def planted(**sources: str):
    return {Path("house", f"{name}.py"): ast.parse(text) for name, text in sources.items()}


def test_few_class_names_recur_within_a_folder() -> None:
    assert len(recurring(trees())) <= 25, recurring(trees())
    assert recurring(
        planted(one="class Part: ...", two="class Part: ...\nclass _Own: ...", three="class _Own: ...")
    ) == {"house: Part": ["house/one.py", "house/two.py"]}


def test_no_module_has_two_aliases() -> None:
    assert aliases(trees()) == {}
    code = planted(
        one="from house import two as words", two="", three="from house import two as texts\nfrom house import two"
    )
    assert aliases(code) == {"house.two": ["texts", "words"]}


def test_few_functions_shadow_an_imported_name() -> None:
    assert len(shadowing(trees())) <= SHADOWING, shadowing(trees())
    code = planted(one="import json\nfrom a import b as c\ndef f(json): ...\ndef g(b):\n    c = 1\ndef h(d): ...")
    assert shadowing(code) == ["house/one.py:3 json", "house/one.py:4 c"]


def test_no_files_import_each_other_for_types_either() -> None:
    assert circles(trees()) == []
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.two import Name"
    [circle] = circles(planted(one=for_types, two="from house import one", three="from house import two"))
    assert {*circle} == {"house.one", "house.two"}
