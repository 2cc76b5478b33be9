"""Rewards tried on New run: what they give for the expected answers of the first rows, and what goes wrong."""

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from app.pages.common import form
from app.pages.new_run.page import refreshed
from app.pages.new_run.rewards_panel import ROWS, rewards_html
from training.config.applies import APPLIES
from training.config.fields import ConfigError, parse, settings
from worker.allowed_paths import AllowedPaths
from worker.datasets import datasets
from worker.evaluations.reward_trial import try_run

CODE = """
def city(prompt, answer, expected, row):
    return float(row["city"] in answer)


def total(prompt, answer, expected, row):
    return row["total"]
"""


@pytest.fixture
def data(home: Path, tmp_path: Path) -> str:
    """A data set whose second row has no total."""
    rows = [
        {"prompt": f"{n}?", "completion": f"In Bonn, {n}", "city": "Bonn"} | ({} if n == 1 else {"total": n})
        for n in range(30)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return datasets.add_file(path=file, name="rows.jsonl").id


def answered(data: str, /, **values: Any) -> str:
    """What the panel shows."""
    typed = {"data": data, "task": "grpo", "rewards": "city*0.5, total", "reward_code": CODE} | values
    return unescape(str(rewards_html(form.defaults() | typed)))


def test_each_reward_its_total_and_what_goes_wrong_are_shown_without_a_model(data: str) -> None:
    text = answered(data)
    heads = [part.split("</th>")[0] for part in text.split('<th scope="col">')[1:]]
    assert heads == ["Row", "city*0.5", "total", "Total", "Expected"]
    rows = [[cell.split(">")[1].split("<")[0] for cell in row.split("<td")[1:]] for row in text.split("<tr>")[2:]]
    assert len(rows) == ROWS + 1
    assert rows[0] == ["1", "1", "0", "0.5", "In Bonn, 0"] and rows[1] == ["2", "1", "-", "0.5", "In Bonn, 1"]
    assert rows[-1][0] == "mean" and rows[-1][1] == "1"
    assert "total: no score for 1 row. row 2, rewards.py, line 7: KeyError: 'total'" in text


def test_code_in_a_file_of_the_server_is_read(data: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CODE)
    assert ">In Bonn, 19</td>" in answered(data, reward_code=str(tmp_path / "own.py"), rewards="city")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"data": ""}, "Choose a data set to try the rewards on its rows."),
        ({"rewards": "cty"}, "is unknown."),
        ({"reward_code": "def f(:\n"}, "is not valid Python: line 1"),
        ({"reward_code": "/none.py"}, "is neither Python of several lines nor an existing file."),
        ({"data": "/none.jsonl"}, "is neither a file nor a data set id."),
        ({"learning_rate": "fast"}, "Fix the problems above to try the rewards."),
    ],
)
def test_what_is_wrong_with_the_form_is_said(data: str, values: dict[str, Any], said: str) -> None:
    assert said in answered(data, **values)


def test_code_is_refused_where_only_the_user_of_the_server_may_use_it(data: str) -> None:
    config = parse({"model": "none", "data": data, "task": "grpo", "rewards": "city", "reward_code": CODE})
    with pytest.raises(ConfigError, match="is code, which only the user who runs the server may run"):
        try_run(config, ROWS, AllowedPaths((), ()))


def test_the_button_is_shown_with_the_settings_of_rewards() -> None:
    hidden, shown = (
        dict(zip([*(name for name in settings() if name in APPLIES), "button"], _visible(task), strict=True))
        for task in ("sft", "grpo")
    )
    assert (hidden["button"], hidden["rewards"]) == (False, False) and (shown["button"], shown["rewards"]) == (
        True,
        True,
    )


def _visible(task: str) -> tuple[bool, ...]:
    values = form.defaults() | {"task": task}
    return tuple(refreshed(*(values[name] for name in settings()), None, (), ())[1])
