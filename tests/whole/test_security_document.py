"""SECURITY.md promises what tests show: each cell of its table names one that exists."""

import ast
import re

from paths import ROOT

TEXT = (ROOT / "SECURITY.md").read_text()
TABLE = TEXT.partition("## Who may do what")[2].partition("\n1. ")[0]
NAMED = dict(re.findall(r"^(\d+)\. `([^`]+)`$", TEXT, re.MULTILINE))


def test_each_cell_of_the_table_names_a_test():
    rows = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("| ")]
    header, _, *promises = rows
    assert len(header) == 7 and len(promises) > 10
    cells = {(row[0], caller): cell for row in promises for caller, cell in zip(header[1:], row[1:], strict=True)}
    assert [place for place, cell in cells.items() if not re.search(r"\[\d+\]$", cell)] == []
    assert {number for cell in cells.values() for number in re.findall(r"\[(\d+)\]", cell)} == NAMED.keys()


def test_each_named_test_exists():
    for name in NAMED.values():
        file, _, test = name.partition("::")
        functions = {
            node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)
        }
        assert test in functions, name
    for file in re.findall(r"`(tests/[\w/]+\.py)`", TEXT):
        assert (ROOT / file).is_file(), file
