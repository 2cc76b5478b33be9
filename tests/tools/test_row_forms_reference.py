"""The table of forms of rows in docs/data.md is up to date with training/data/forms.py."""

from tools.references import row_forms as reference
from training.data.forms import FORMS


def test_the_document_is_up_to_date_with_the_forms():
    fix = "docs/data.md is out of date: run `python -m tools.references.row_forms`"
    assert reference.TARGET.read_text(encoding="utf-8") == reference.render(), fix


def test_every_form_has_a_row():
    rows = reference.render().splitlines()
    assert all(any(row.startswith(f"| {form.name} | `{form.columns[0]}`") for row in rows) for form in FORMS)
