"""Texts about runs."""

import pytest

from app.format.run_text import evaluation, short_names
from worker.store.tables import Run


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["llama-3.1-8b-tickets-v1 r=8", "llama-3.1-8b-tickets-v2 r=16"], ["…v1 r=8", "…v2 r=16"]),
        (["Orders, learning rate 0.001", "Orders, learning rate 0.01"], ["…rate 0.001", "…rate 0.01"]),
        (["Rates · lr=0.001", "Rates · lr=0.003"], ["lr=0.001", "lr=0.003"]),
        (["Rates lr=0.001", "Rates lr=0.003"], ["Rates lr=0.001", "Rates lr=0.003"]),  # short enough
        (
            ["a long beginning ", "a long beginning of"],
            ["a long beginning ", "a long beginning of"],
        ),  # else one is empty
        (["only one with a long name"], ["only one with a long name"]),
        ([], []),
    ],
)
def test_names_of_compared_runs_leave_out_the_words_with_which_all_begin(names, shown):
    runs = [Run(id=f"{number:08d}", name=name, config={}) for number, name in enumerate(names)]
    assert list(short_names(runs).values()) == shown


@pytest.mark.parametrize(
    ("task", "loss", "shown"),
    [
        ("sft", 0.5, "0.5000"),
        ("grpo", -0.9375, "reward 0.9375"),
        ("grpo", 0.0, "reward 0.0000"),
        ("grpo", None, "-"),
        (None, 1.0, "1.0000"),
    ],
)
def test_the_evaluation_of_a_task_that_is_rewarded_is_its_reward(task, loss, shown):
    assert evaluation(task, loss) == shown
