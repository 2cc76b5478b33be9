"""The table of environment variables in docs/deploy.md is up to date with Settings."""

from tools.references import environment as reference
from worker.settings import Settings


def test_the_document_is_up_to_date_with_the_settings():
    fix = "docs/deploy.md is out of date: run `python -m tools.references.environment`"
    assert reference.TARGET.read_text(encoding="utf-8") == reference.render(), fix


def test_every_setting_has_a_row_with_its_meaning():
    rows = reference.render().splitlines()
    assert all(any(row.startswith(f"| `LATHE_{name.upper()}` | ") for row in rows) for name in Settings.model_fields)
    assert all(field.description for field in Settings.model_fields.values())
