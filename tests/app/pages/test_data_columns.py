"""The choice of a data set's columns on New run: what is suggested for a task, and what a change makes of it. No server."""

import pytest

from app.pages.new_run import data_columns
from worker.store.tables import Dataset

ROW = {"nr": "1", "frage": "Wie bestelle ich Äpfel?", "antwort": "Klicken Sie auf Bestellen.", "gut": "true"}
MAPPED = "prompt=frage, completion=antwort"


def stored(row_format="unknown", columns_map=None, row=ROW):
    return Dataset(
        id="ab", sha256="ab", name="a.csv", format="csv", row_format=row_format, rows=1, bytes=1, created_at=0,
        columns=list(row), sample=[row], columns_map=columns_map,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("task", "kind", "line"),
    [
        ("sft", "prompt", MAPPED),
        ("dpo", "preference", "prompt=frage"),
        ("classification", "prompt", MAPPED),
        ("grpo", "prompt", MAPPED),
        ("kto", "label", MAPPED),
    ],
)
def test_a_kind_of_rows_that_the_task_trains_on_is_offered_first(task, kind, line):
    choice = data_columns.choice(stored(), "", task, -1)
    assert (choice.kind, choice.line, choice.is_set) == (kind, line, False)


def test_a_data_set_that_needs_no_mapping_is_not_asked_about_until_the_run_has_one():
    for item in (stored("prompt/completion"), stored(columns_map=MAPPED)):
        assert data_columns.choice(item, "", "sft", -1) is None
        assert data_columns.choice(item, MAPPED, "sft", -1).is_set
    shown = data_columns.changed(stored(columns_map=MAPPED), "", "sft", {"key": "columns", "value": ""})
    assert shown == MAPPED


@pytest.mark.parametrize(
    ("columns", "change", "expected"),
    [
        ("", {"key": "columns", "value": MAPPED}, MAPPED),
        ("", {"key": "role.completion", "value": "frage"}, "prompt=frage, completion=frage"),
        (MAPPED, {"key": "role.completion", "value": ""}, "prompt=frage"),
        (MAPPED, {"key": "role.system", "value": "nr"}, f"{MAPPED}, system=nr"),
        (MAPPED, {"key": "kind", "value": "instruction"}, "instruction=nr, output=frage"),
        (MAPPED, {"key": "kind", "value": "label"}, f"{MAPPED}, label=nr"),
        (MAPPED, {"key": "kind", "value": "magic"}, MAPPED),
    ],
)
def test_a_change_gives_the_new_mapping(columns, change, expected):
    assert data_columns.changed(stored(), columns, "sft", change) == expected


def test_the_mapping_of_other_data_does_not_stay():
    assert data_columns.still_fitting(MAPPED, stored()) == MAPPED
    assert data_columns.still_fitting(MAPPED, stored(row={"a": "b"})) == ""
