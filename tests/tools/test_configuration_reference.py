"""docs/configuration.md is up to date with RunConfig."""

from tools.references import configuration as reference
from training.config.fields import settings


def test_the_document_is_up_to_date_with_the_settings():
    fix = "docs/configuration.md is out of date: run `python -m tools.references.configuration`"
    assert reference.TARGET.read_text(encoding="utf-8") == reference.render(), fix


def test_the_reference_has_one_row_for_every_setting_with_its_default_and_bounds():
    rows = {line.split("`")[1]: line for line in reference.render().splitlines() if line.startswith("| `")}
    assert list(rows) == list(settings())
    assert rows["learning_rate"].endswith("| a number, above 0, at most 1 | `0.0002` |")
    assert rows["model"].endswith("| none: required |")
