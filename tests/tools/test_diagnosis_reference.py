"""docs/diagnosis.md is up to date with the table of causes."""

from tools.references import diagnosis as reference
from worker.diagnosis.causes import CAUSES


def test_the_document_is_up_to_date_with_the_causes():
    fix = "docs/diagnosis.md is out of date: run `python -m tools.references.diagnosis`"
    assert reference.TARGET.read_text(encoding="utf-8") == reference.render(), fix


def test_the_table_has_one_row_for_every_cause():
    rows = [line.split("`")[1] for line in reference.render().splitlines() if line.startswith("| `")]
    assert rows == [cause.name for cause in CAUSES]
