"""Several data sets on the page New run and on the page of a run: changes, shares, tables, plots; once in a browser."""

import json

import pytest
from browser import IN_BROWSER, field, says

from app.documents.live import panels
from app.pages.new_run import data_chooser, data_mix
from app.pages.new_run import page as new_run
from app.pages.run.overview import data_sets
from worker.datasets import datasets
from worker.store.tables import Run

PAIR = json.dumps([{"path": "a"}, {"path": "b"}])


@pytest.mark.parametrize(
    ("value", "change", "expected"),
    [
        ("", {"add": "a"}, "a"),
        ("a", {"add": "b"}, PAIR),
        (PAIR, {"add": "b"}, PAIR),
        (PAIR, {"remove": 0}, "b"),
        ("a", {"remove": 0}, ""),
        (PAIR, {"set": 1, "key": "weight", "value": "2"}, '[{"path": "a"}, {"path": "b", "weight": 2}]'),
        (PAIR, {"set": 0, "key": "max_rows", "value": "50"}, '[{"path": "a", "max_rows": 50}, {"path": "b"}]'),
        ('[{"path": "a", "max_rows": 50}, {"path": "b"}]', {"set": 0, "key": "max_rows", "value": ""}, PAIR),
        ('[{"path": "a", "weight": 1}, {"path": "b", "weight": 3}]', {"set": 1, "key": "weight", "value": ""}, PAIR),
        (PAIR, {"set": 1, "key": "columns", "value": "text=t"}, '[{"path": "a"}, {"path": "b", "columns": "text=t"}]'),
        ('[{"path": "a", "columns": "text=t"}, {"path": "b"}]', {"set": 0, "key": "columns", "value": ""}, PAIR),
        (PAIR, {"set": 9, "key": "weight", "value": "2"}, PAIR),
        (PAIR, {"set": 0, "key": "path", "value": "/etc/passwd"}, PAIR),
    ],
)
def test_a_change_gives_the_new_setting(value, change, expected):
    assert data_mix.changed(value, change) == expected


def test_a_wrong_weight_is_named_by_the_check_of_the_form_and_kept_in_its_field(home):
    value = data_mix.changed(PAIR, {"set": 0, "key": "weight", "value": "-1"})
    checked = new_run.review({"model": "m", "data": value})
    assert any("data set 1: weight must be a number above 0" in problem.message for problem in checked.problems)
    assert 'value="-1"' in data_chooser.describe(value)[0]


@pytest.fixture
def stored(home, tmp_path):
    found = []
    for name, count in (("long", 30), ("short", 10)):
        rows = [{"prompt": f"{n}?", "completion": f"{name if n > 1 else ''}{n}"} for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
        found.append(datasets.add_file(path=tmp_path / f"{name}.jsonl", name=f"{name}.jsonl"))
    return found


def test_shares_are_those_of_the_rows_or_of_the_weights(stored):
    value = json.dumps([{"path": item.id} for item in stored])
    description, _ = data_chooser.describe(value)
    assert "75.0%" in description and "25.0%" in description
    weighted = data_mix.changed(value, {"set": 1, "key": "weight", "value": "3"})
    assert "25.0%" in data_chooser.describe(weighted)[0] and 'placeholder="1"' in data_chooser.describe(weighted)[0]
    assert data_chooser.choices(value)[0] == ("2 data sets: long.jsonl, short.jsonl", value)


@pytest.mark.slow
def test_equal_rows_are_counted_when_the_sets_are_tokenized(stored):
    from app.pages.new_run import data_cost
    from worker.datasets import token_stores

    value = json.dumps([{"path": item.id} for item in stored])
    model = "static/starter"
    assert data_chooser.describe(value, model, "64")[1]  # starts to tokenize both
    for item in stored:
        token_stores.wait(lambda item=item: data_cost.tokens_of(item, model, ""))
    data_cost._states.clear()
    description, waits = data_chooser.describe(value, model, "64")
    assert not waits and "2 rows of short.jsonl are also in long.jsonl." in description
    description, _ = data_chooser.describe(stored[0].id, model, "64", "", stored[1].id)
    assert "2 rows of the evaluation data short.jsonl are also in long.jsonl" in description


def test_a_run_shows_shares_and_losses_of_its_sets():
    sets = [
        {"name": "a.jsonl", "rows": 100, "epoch_rows": 30, "epoch_tokens": 900},
        {"name": "b.jsonl", "rows": 10, "epoch_rows": 10, "epoch_tokens": 100},
    ]
    run = Run(
        id="r",
        name="r",
        config={},
        created_at=0,
        queued_at=0,
        plan={"sets": sets, "eval_sets": [{"name": "b.jsonl", "rows": 2}]},
    )
    shown = data_sets(run, {"loss/a.jsonl": 1.5, "eval_loss/b.jsonl": 2.5})
    assert shown[0][:1] == ["a.jsonl"] and {"75.0%", "90.0%", "1.5000"} <= set(shown[0])
    assert shown[1][0] == "b.jsonl" and "2.5000" in shown[1]
    assert data_sets(Run(id="r", name="r", config={}, created_at=0, queued_at=0, plan={}), {}) == []


def test_each_set_has_a_line_of_the_same_color_in_both_plots():
    names = ("loss", "loss/a.jsonl", "loss/b.jsonl", "eval_loss/a.jsonl", "eval_loss/b.jsonl", "loss_scale")
    lines = [line for panel in panels.panels({name: [-1] for name in names}) for line in panel["lines"]]
    colors = {line["key"]: line["color"] for line in lines}
    assert colors["loss/a.jsonl"] == colors["eval_loss/a.jsonl"] != colors["loss/b.jsonl"]
    assert "loss_scale" not in colors


def test_markup_in_a_name_is_escaped_in_tables(home):
    name = "<a href='x'>b</a>"
    shown = data_chooser.describe(json.dumps([{"path": "p", "name": name}, {"path": "q"}]))[0]
    assert "&lt;a href=" in shown and "<a href='x'>" not in shown


@IN_BROWSER[0]
@IN_BROWSER[1]
@pytest.mark.nightly
def test_sets_are_mixed_and_the_run_has_their_weights(page, tmp_path):
    ids = []
    for name in ("first", "second"):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(f'{{"prompt": "{name} {n}", "completion": "{n}"}}\n' for n in range(20))
        )
        ids.append(datasets.add_file(path=tmp_path / f"{name}.jsonl", name=f"{name}.jsonl").id)
    page.goto(f"/new?data={ids[0]}&model=static/starter")
    page.locator(".add-set select").select_option(ids[1])
    page.locator("table.mix tbody tr").nth(1).wait_for()
    weight = page.locator('input[data-set="1"][data-key="weight"]')
    weight.fill("3")
    weight.press("Tab")
    says(page, "table.mix tbody tr:nth-child(2)", "75.0%")
    assert page.evaluate("document.activeElement.dataset.key") == "max_rows"
    assert field(page, "data").input_value() == "2 data sets: first.jsonl, second.jsonl"
    says(page, ".start-card", "Ready to start")
    page.locator("#start").click()
    page.wait_for_url("**/run?id=*")
    says(page, "main", "first.jsonl (weight 1) + second.jsonl (weight 3)")
