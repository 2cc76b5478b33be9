"""docs/diagnosis.md says what the table of causes says."""

from worker import diagnosis_reference
from worker.causes import CAUSES


def test_the_table_on_disk_is_what_the_causes_give():
    fix = "docs/diagnosis.md is out of date: run `python -m worker.diagnosis_reference`"
    assert diagnosis_reference.TARGET.read_text(encoding="utf-8") == diagnosis_reference.render(), fix


def test_the_table_has_one_row_for_every_cause():
    rows = [line.split("`")[1] for line in diagnosis_reference.render().splitlines() if line.startswith("| `")]
    assert rows == [cause.name for cause in CAUSES]
