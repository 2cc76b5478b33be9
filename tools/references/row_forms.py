"""`python -m tools.references.row_forms` writes the table of forms of rows in docs/data.md from training/data/forms.py."""

import re
from pathlib import Path

from training.data.forms import FORMS, RowForm

TARGET = Path(__file__).resolve().parents[2] / "docs" / "data.md"
_ROWS = re.compile(r"(?<=\| rows of \| recognized by \| read as \|\n\| --- \| --- \| --- \|\n)(?:\|.*\n)*")


def render() -> str:
    """The whole page, with the rows of all forms."""
    rows = "".join(map(_row, FORMS))
    page, tables = _ROWS.subn(lambda _: rows, TARGET.read_text(encoding="utf-8"))
    assert tables == 1
    return page


def _row(form: RowForm) -> str:
    columns = ", ".join(f"`{name}`" for name in form.columns)
    return f"| {form.name} | {columns} | {form.meaning} |\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
