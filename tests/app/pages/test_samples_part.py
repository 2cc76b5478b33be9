"""Runs of tasks grpo and distill: their samples on their page, over REST and with `lathe samples`; their results and code."""

import json
from html import escape, unescape
from typing import Any

import pytest
from commands import lathe
from played_run import SUMMARY, PlayedRun
from web import client

from training.run_folder.events import Metrics, SampleDrawn

GRPO = {"task": "grpo", "rewards": "contains, json_valid", "num_generations": 2}


def drawn(step: int, sample: int, reward: float | None = 0.0, text: str = "Kiel", **values: Any) -> SampleDrawn:
    group = sample // 2
    usual = {
        "group": group,
        "row": group + 6,
        "file": "rows.jsonl",
        "prompt": f"Where is order {group}?",
        "expected": "Bonn",
    }
    usual |= {"tokens": 3, "ended": True, "scores": {"contains": reward, "json_valid": None}, "advantage": 0.0}
    return SampleDrawn(step=step, sample=sample, reward=reward, text=text, **usual | values)


@pytest.fixture
def run(home: object) -> str:
    """A running run with seven prompts of step 10, and one of steps 0 and 5."""
    played = PlayedRun("samples", **GRPO).claim()
    played.report(drawn(0, 0), drawn(0, 1), drawn(5, 0, text="five"), drawn(5, 1))
    played.report(*(drawn(10, number, 0.5) for number in range(12)))
    played.report(drawn(10, 12, 1.0, "Bonn", advantage=0.7), drawn(10, 13, text="<b>Bo", ended=False, advantage=-0.7))
    return played.id


def page(run: str, **query: object) -> str:
    answer = client().get("/run", params={"id": run, **query})
    assert answer.status_code == 200
    text = answer.text
    return text[text.index('<section class="panel" id="samples"') : text.index('data-part="held_out"')]


def prompts(text: str) -> list[str]:
    """The prompts that are shown, each with its step."""
    parts = text.split('<tr class="prompt">')[1:]
    return [
        f"{unescape(part.split('Step ')[1].split(',')[0])}: {part.split('order ')[1].split('?')[0]}" for part in parts
    ]


def test_the_last_step_is_shown_by_prompt_page_by_page(run: str) -> None:
    first = page(run)
    assert prompts(first) == [f"10: {number}" for number in range(5)] and "1 to 5 of 7 prompts" in first
    second = page(run, samples_page=2)
    assert prompts(second) == ["10: 5", "10: 6"]
    assert "&lt;b&gt;Bo" in second and second.count("cut off</span>") == 1
    assert (
        "+0.7" in second
        and "-0.7" in second
        and "row 13 (rows.jsonl)" in second
        and first.count("equal rewards</span>") == 5
    )


def test_another_step_is_reached_by_links_and_by_its_number(run: str) -> None:
    assert "samples_step=5" in page(run) and "samples_step=0" in page(run, samples_step=5)
    assert prompts(page(run, samples_step=5)) == ["5: 0"] and "five" in page(run, samples_step=6)
    assert prompts(page(run, samples_step=0)) == ["0: 0"]
    assert prompts(page(run, samples_every=1, samples_search="order 0")) == ["10: 0", "5: 0", "0: 0"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"samples_only": "cut_off"}, ["10: 6"]),
        ({"samples_search": "BONN<"}, []),
        ({"samples_search": "<b>bo"}, ["10: 6"]),
        ({"samples_only": "equal", "samples_page": 2}, ["10: 5"]),
        ({"samples_order": "lowest:contains", "samples_page": 2}, ["10: 5", "10: 6"]),
        ({"samples_step": "x", "samples_order": "?", "samples_only": "?", "samples_page": "-1"}, None),
    ],
)
def test_prompts_are_found_and_sorted(run: str, query: dict[str, str], found: list[str] | None) -> None:
    assert prompts(page(run, **query)) == ([f"10: {number}" for number in range(5)] if found is None else found)
    assert found != [] or "No samples match." in page(run, **query)


def test_samples_of_a_student_have_the_score_of_the_teacher_and_nothing_of_rewards(home: object) -> None:
    played = PlayedRun("student", task="distill", teacher="t").claim()
    for number, score in enumerate((-1.5, -0.25, -7.0)):
        values = {"scores": {"teacher_logprob": score}, "advantage": None, "group": number, "ended": number != 2}
        played.report(drawn(4, number, score, f"text {number}", prompt=f"Where is order {number}?", **values))
    text = page(played.id)
    assert "Log-probability of a token" in text and "-0.25" in text
    assert not any(word in text for word in ("Total", "Advantage", "equal rewards", "With equal rewards"))
    assert prompts(page(played.id, samples_order="lowest:teacher_logprob")) == ["4: 2", "4: 0", "4: 1"]
    assert prompts(page(played.id, samples_only="cut_off")) == ["4: 2"]
    assert lathe("samples", played.id, "--cut-off").stdout.splitlines() == [
        "Step 4, row 8 of rows.jsonl: Where is order 2?",
        "Expected: Bonn",
        "teacher_logprob      TOKENS  SAMPLE",
        "             -7  3, cut off  text 2",
    ]


def test_a_run_without_samples_says_so_and_other_tasks_have_no_such_section(home: object) -> None:
    waiting, ended = PlayedRun("new", **GRPO), PlayedRun("ended", **GRPO).claim().end()
    assert "appear here after the first step" in page(waiting.id)
    assert "This run kept no samples." in page(ended.id)
    assert 'id="samples"' not in client().get(f"/run?id={PlayedRun('sft').id}").text


def test_rest_answers_a_part_of_them_and_the_command_prints_it(run: str) -> None:
    answer = client().get(f"/api/runs/{run}/samples?search=bonn&limit=1&cut_off=true").json()
    (group,) = answer.pop("groups")
    samples = group.pop("samples")
    assert group == {"step": 10, "row": 13, "file": "rows.jsonl", "prompt": "Where is order 6?", "expected": "Bonn"}
    assert answer == {"rewards": ["contains", "json_valid"], "total": 1, "steps": [0, 5, 10]}
    assert samples[1] == {
        "sample": 13, "text": "<b>Bo", "tokens": 3, "ended": False, "scores": {"contains": 0.0, "json_valid": None},
        "reward": 0.0, "advantage": -0.7, "damaged": [], "damage": "",
    }  # fmt: skip
    printed = lathe("samples", run, "--search", "bonn", "--limit", "1", "--cut-off", "--json")
    assert (
        json.loads(printed.stdout) == client().get(f"/api/runs/{run}/samples?search=bonn&limit=1&cut_off=true").json()
    )
    assert lathe("samples", run, "--cut-off").stdout.splitlines() == [
        "Step 10, row 13 of rows.jsonl: Where is order 6?",
        "Expected: Bonn",
        "contains  json_valid  TOTAL  ADVANTAGE      TOKENS  SAMPLE",
        "       1           -      1       +0.7           3  Bonn",
        "       0           -      0       -0.7  3, cut off  <b>Bo",
    ]


def test_the_command_says_where_there_are_none(run: str) -> None:
    assert lathe("samples", run, "--step", "7").stdout == "No samples match.\n"
    other = PlayedRun("sft").id
    assert lathe("samples", other).stdout == f"Run {other} has no samples. Runs of tasks grpo and distill have.\n"
    assert lathe("samples", "none", "--step", "-1").exit_code == 2


def test_groups_of_runs_that_are_rewarded_name_their_best_reward(home: object) -> None:
    for settings, loss in ((GRPO, -0.75), ({}, 0.5)):
        run = PlayedRun("grouped", **settings).claim().report(Metrics(step=1, values={"eval_loss": loss}))
        run.end()
    text = client().get("/?group=task").text
    assert "best eval reward 0.7500" in text and "best eval loss 0.5000" in text


def test_its_results_are_rewards_and_its_code_has_lines(home: object) -> None:
    code = "def short(answer):\n    return len(answer) < 9\n"
    run = PlayedRun("rewarded", **GRPO | {"reward_code": code}).claim().end(summary=SUMMARY | {"eval_loss": -0.75})
    text = client().get(f"/run?id={run.id}").text
    assert '<th scope="row">Evaluation reward</th><td>0.7500' in text and "Evaluation loss" not in text
    assert f'<pre class="code-value" tabindex="0">{escape(code.strip())}</pre>' in text
    printed = lathe("show", run.id).stdout
    assert "Evaluation reward" in printed and "Evaluation loss" not in printed
